"""Grafts under torch.compile and torch.export: graft first."""

import pytest
import torch
from graft_models import HEADS, PARTS, Attention, Small, batch, pooling, reusing, wake
from torch.nn import functional as F

from regard.errors import UnavailableError
from regard.grafting import graft

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def gradients(model, run, *batches):
    model.zero_grad()
    outputs = [run(**given) for given in batches]
    sum(output.square().sum() for output in outputs).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters()}


# What torch asks a tensor after a break makes it warn by itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_and_checkpointed():
    model, first, second = Small(checkpointing="again"), batch(), batch()
    part = pooling()
    graft(model, part)
    wake(part)
    expected = gradients(model, model, first, second)
    compiled = torch.compile(model, backend="aot_eager")
    for key, one in gradients(model, compiled, first, second).items():
        torch.testing.assert_close(one, expected[key], msg=key)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("name", ["decoding", "reusing"])
def test_a_site_changed_in_a_checkpoint_is_refused_when_compiled(name):
    model, given = Small(checkpointing="again"), batch()
    part = PARTS[name]()
    graft(model, part)
    wake(part)
    with pytest.raises(UnavailableError, match=r"into='layers\.2' is inside an activation checkp"):
        torch.compile(model, backend="aot_eager")(**given).sum().backward()


@pytest.mark.parametrize(
    ("name", "fused"),
    [("pooling", True), ("decoding", True), ("reusing", True), ("gating", False)],
)
def test_compiled_without_a_break(name, fused):
    model, given = Small(fused), batch()
    plain = model(**given)
    part = PARTS[name]()
    grafted = graft(model, part)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**given), plain)
    wake(part)
    torch.testing.assert_close(compiled(**given), model(**given))
    expected = gradients(model, model, given)
    for key, one in gradients(model, compiled, given).items():
        torch.testing.assert_close(one, expected[key], msg=key)
    grafted.remove()
    torch.testing.assert_close(compiled(**given), plain)


# What torch asks a tensor after a break makes it warn by itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_model_that_breaks_by_itself():
    class Breaks(Attention):
        def forward(self, x, keep):
            made = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            torch._dynamo.graph_break()
            return self.out(F.scaled_dot_product_attention(*made).transpose(1, 2).flatten(2))

    model, given = Small(), batch(padded=False)
    for layer in model.layers:
        layer.attention = Breaks(True)
    for part in (pooling(), reusing()):
        graft(model, part)
        wake(part)
    expected = model(**given)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(**given), expected)


def test_a_compiled_model_is_refused_by_name():
    with pytest.raises(UnavailableError, match="already wrapped by OptimizedModule"):
        graft(torch.compile(Small(), backend="aot_eager"), pooling())
    model = Small()
    model.layers[0].compile(backend="aot_eager")
    with pytest.raises(UnavailableError, match=r"'layers\.0' is already compiled"):
        graft(model, pooling())


@pytest.mark.parametrize("name", ["pooling", "reusing"])
def test_exported(name):
    model, given = Small(), batch()
    part = PARTS[name]()
    graft(model, part)
    wake(part)
    length = torch.export.Dim("length", max=64)
    lengths = {key: {1: length} for key in given}
    program = torch.export.export(model, (), given, dynamic_shapes=lengths)
    longer = batch(length=9)
    torch.testing.assert_close(program.module()(**longer), model(**longer))
