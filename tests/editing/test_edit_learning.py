"""What an edit learns of a model before its first call: nothing of it stays, and nothing shows."""

from __future__ import annotations

import contextlib
import gc
import random
import warnings
import weakref

import numpy
import pytest
import torch
from small_attention import Attention, X, stack
from targets import targets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import regard
from regard.editing import Change, EditWarning, bias, scale, silence
from regard.errors import RegardError


@pytest.mark.parametrize("fused", [True, False])
def test_an_edited_model_can_be_freed(fused: bool) -> None:
    model = stack(fused)
    with torch.no_grad(), regard.edit(model, scale(2.0)) as edits:
        model(X)
    alive = weakref.ref(model)
    del model, edits
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("name", ["projections_fully_sharded", "projections_tensor_parallel"])
def test_parameters_that_are_sharded(name: str) -> None:
    """FSDP exchanges parameters while a model runs, and notes which are there."""
    target = next(target for target in targets() if target.name == name)
    with target.around():
        plain, edited = target.case(), target.case()
        expected = plain.run()
        with regard.edit(edited.model, scale(1.0)):
            output = edited.run()
        torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", ["hooked", "twin"])
def test_a_trace_that_does_not_tell_all_is_no_harm(case: str) -> None:
    """A trace of a twin tells no axes, and one that was made between two edits of a model that
    changed in the meantime may tell old ones: then a pass is captured."""
    model, calls = stack(fused=False), []
    with torch.no_grad():
        with regard.edit(model, scale(2.0)):
            expected = model(X)
        if case == "hooked":
            model[0].register_forward_hook(lambda *_: calls.append(1))
        like = regard.trace(model if case == "hooked" else stack(fused=False), X)
        other = model if case == "hooked" else stack(fused=False)
        with regard.edit(other, scale(2.0), like=like):
            assert torch.equal(other(X), expected)
        effects = regard.patch(other, X, X.flip(1), metric=lambda output: output[0, 0, 0])
    assert effects.values.isfinite().all()


def test_a_trace_of_another_model_is_refused_and_not_kept() -> None:
    model, other = stack(), nn.ModuleDict({"attention": Attention()})
    other.forward = lambda x: other["attention"](x)
    with torch.no_grad():
        like = regard.trace(other.eval(), X)
        with (
            pytest.raises(RegardError, match="at 'attention', where this model has no module"),
            regard.edit(model, scale(2.0), like=like),
        ):
            model(X)
        with (
            pytest.raises(RegardError, match="'attention' matches none of 2 sites; near: '0', '1'"),
            regard.edit(model, scale(2.0, where="attention")),
        ):
            model(X)


def test_nothing_is_changed_while_a_pass_is_learned() -> None:
    model, calls = stack(), []
    model[0].qkv.register_forward_hook(lambda *_: calls.append(1))
    with (
        torch.no_grad(),
        regard.edit(model, bias(1.0)) as outer,
        regard.edit(model, silence(heads=0)) as inner,
    ):
        model(X)
    assert outer.touched == inner.touched == [{"0": 1, "1": 1}]
    assert len(calls) == 2  # one of them captured


class Remembering(Attention):
    """Keys and values of all calls in a list, their number in a dict; noise of three sources."""

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.counts = [], {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        self.cache.append((k, v))
        self.counts["calls"] += 1
        k, v = (torch.cat(parts, 2) for parts in zip(*self.cache))
        noise = random.random() + numpy.random.rand() + float(torch.rand(()))
        return F.scaled_dot_product_attention(q, k, v)[:, 0] + noise


def test_the_learned_pass_leaves_no_trace() -> None:
    def steps(*changes: Change) -> list[Tensor]:
        for source in (random.seed, numpy.random.seed, torch.manual_seed):
            source(0)
        model = Remembering().eval()
        edit = regard.edit(model, *changes) if changes else contextlib.nullcontext()
        with torch.no_grad(), edit:
            outputs = [model(X), model(X[:, :1])]
        assert model.counts == {"calls": 2} and len(model.cache) == 2
        return outputs

    for plain, edited in zip(steps(), steps(scale(1.0))):
        torch.testing.assert_close(edited, plain, atol=1e-6, rtol=0)


class Leaf(nn.Module):
    """Attends, and holds no module."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*[x[:, None]] * 3)[:, 0]


def test_a_leaf_that_attends_can_be_called_by_itself() -> None:
    model = nn.Sequential(Leaf(), Attention()).eval()
    for _ in range(2):  # learned in the block, then known before it
        with torch.no_grad(), regard.edit(model, silence()) as edits:
            model(X)
            assert not model[0](X).any()
        assert edits.touched == [{"0": 2, "1": 1}]
    assert model[0](X).any() and "_compiled_call_impl" not in model[0].__dict__


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_without_gradients_need_no_warning(reentrant: bool) -> None:
    model = stack()
    run = lambda: checkpoint(model, X.clone().requires_grad_(), use_reentrant=reentrant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad(), regard.edit(model[0], scale(2.0)):
            model(X)
            run()
    with (
        pytest.warns(EditWarning, match="call backward"),
        regard.edit(model, scale(2.0)),
    ):
        run()
