"""Grafts under torch.compile: graft first, then compile."""

import pytest
import torch
from graft_models import HEADS, PARTS, Attention, Small, batch, pooling, reusing, wake
from torch.nn import functional as F

from regard.errors import UnavailableError
from regard.reuse import graft

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "fused"),
    [("pooling", True), ("reusing", True), ("gating", False)],
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
    compiled(**given).sum().backward()
    assert all(one.grad is not None for one in part.parameters())
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
