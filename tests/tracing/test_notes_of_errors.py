"""What fails in regard, in a filter or in a reducer is a note, and the model goes on."""

import warnings

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from torch import nn
from torch.utils._pytree import tree_map_only

import regard
from regard.errors import RegardError


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_a_filter_that_fails(build, path):
    model, x = build(1), words(2, 5, 8)
    expected = model(x)

    def where(site):
        raise ZeroDivisionError("in the filter")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model, where=where, path=path) as trace:
            for _ in range(3):
                assert torch.equal(model(x), expected)
    kinds = [note.kind for note in trace.notes]
    assert kinds == ["error"] and len(caught) == 1 and len(trace) == 0
    assert "layers.0" in str(trace.notes[0]) and "in the filter" in str(trace.notes[0])


class Explodes(regard.Reducer):
    def __init__(self, error):
        self.error = error

    def start(self, matrix):
        raise self.error

    def tile(self, rows, columns, log_weights, weights):
        pass

    def merge(self, other):
        pass

    def result(self):
        pass


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
@pytest.mark.parametrize(
    "error", [ValueError("boom"), RegardError("boom"), AssertionError("boom")], ids=repr
)
def test_a_reducer_that_fails(path, error):
    model, x = fused(2), words(2, 5, 8)
    expected = model(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model, keep=[Explodes(error)], path=path) as trace:
            for _ in range(3):
                assert torch.equal(model(x), expected)
    refused = isinstance(error, RegardError)  # a reducer that cannot answer says so like this
    assert {note.kind for note in trace.notes} == {"dropped" if refused else "error"}
    assert {note.where for note in trace.notes} == {"layers.0", "layers.1"}
    assert all("boom" in note.text for note in trace.notes)
    assert len(caught) == len(trace.notes) == 2


def test_a_reducer_that_cannot_answer_for_one_site():
    """Entropy of signed weights does not exist; the other sites have theirs."""

    class Talking(nn.Module):
        num_heads = 2

        def __init__(self):
            super().__init__()
            self.query, self.mix = nn.Linear(8, 8), nn.Parameter(words(2, 2))

        def forward(self, x):
            query, key = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in (self.query(x), x))
            weights = torch.einsum("bhqk,hg->bgqk", (query @ key.mT).softmax(-1), self.mix)
            return (weights @ key).transpose(1, 2).flatten(2)

    model, x = Stack(Attention(), Talking(), Attention()), words(2, 5, 8)
    expected = model(x)
    with (
        pytest.warns(regard.CaptureWarning, match=r"layers\.1.*Entropy: signed.*no logarithm"),
        regard.capture(model, keep=[regard.Entropy()]) as trace,
    ):
        out = model(x)
    assert torch.equal(out, expected)
    answered = [record.name for record in trace if record.reductions]
    assert answered == ["layers.0", "layers.2"]


def test_a_handler_of_regard_that_fails(monkeypatch):
    """Whatever it is: a note, and the model goes on."""

    def fails(*args, **kwargs):
        raise KeyError("a bug of ours")

    monkeypatch.setattr("regard.tracing.collector.Collector._add", fails)
    model, x = Stack(Attention(), Attention(False)), words(2, 5, 8)
    expected = model(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model) as trace:
            assert torch.equal(model(x), expected)
    assert "error" in {note.kind for note in trace.notes} and caught
    assert any("a bug of ours" in note.text for note in trace.notes)


class Sealed(torch.Tensor):
    """A tensor inside another, that does not say which."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        raise LookupError("sealed")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        return func(*args, **kwargs)


def test_a_wrapper_that_cannot_be_looked_into():
    model, x = fused(1), words(2, 5, 8)
    expected = model(x)
    with (
        pytest.warns(regard.CaptureWarning, match="LookupError: sealed"),
        regard.capture(model) as trace,
    ):
        assert torch.equal(model(Sealed(x)), expected)
    assert {note.kind for note in trace.notes} == {"error"} and len(trace) == 1


def test_keyboard_interrupt_is_not_swallowed():
    model, x = fused(1), words(2, 5, 8)

    def where(site):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), regard.capture(model, where=where):
        model(x)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
