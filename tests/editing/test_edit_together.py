"""Edits with captures, grafts, other edits, threads and errors; what is refused, and how."""

from __future__ import annotations

import contextlib
import copy
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from families import FAMILIES
from small_attention import Attention, X, stack
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import masks
from regard.editing import (
    Change,
    allow,
    bias,
    forbid,
    multiply,
    replace,
    replace_values,
    scale,
    scale_values,
    silence,
)
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.grafting import ReuseLayer
from regard.recipe import Recipe
from regard.reuse import WeightedAggregation


@pytest.mark.parametrize("fused", [True, False])
def test_capture_sees_the_changed_weights(fused: bool) -> None:
    model = stack(fused)
    changes = [replace("previous", heads=1), forbid(keys=2, heads=0), multiply(0.5, heads=3)]
    shift = F.one_hot(torch.arange(-1, 5).clamp_min(0), 6).float()
    with torch.no_grad():
        for edit_first in (True, False):
            edit, capture = regard.edit(model, *changes), regard.capture(model, values=True)
            first, second = (edit, capture) if edit_first else (capture, edit)
            with first as one, second as two:
                output = model(X)
            trace = two if edit_first else one
            with regard.edit(model, *changes):
                assert torch.allclose(model(X), output, atol=1e-6)
            assert trace.names() == ["0", "1"] and not trace.notes
            inputs = X
            for record, layer in zip(trace, model):
                weights = record.weights()
                assert torch.equal(weights[:, 1], shift.expand(2, 6, 6))
                assert not weights[:, 0, :, 2].any()
                mixed = record.mixed().transpose(1, 2).flatten(2)
                expected = layer.out(mixed)
                with regard.edit(model, *changes):
                    torch.testing.assert_close(layer(inputs), expected, atol=1e-6, rtol=1e-5)
                inputs = expected


def test_plans_of_captures_survive_an_edit() -> None:
    model = stack()
    with torch.no_grad():
        with regard.capture(model):
            model(X)
        with regard.capture(model) as learned, regard.edit(model, silence(heads=0)):
            model(X)
            model(X)
        with regard.capture(model) as plain:
            model(X)
    assert len(learned) == 4 and len(plain) == 2


def test_nested_edits_add_up() -> None:
    for fused in (True, False):
        model = stack(fused)
        outer = [replace("self", heads=2), bias(2.0, keys=1)]
        inner = [multiply(0.25, heads=2, renormalise=False), forbid(queries=3, keys=[0, 1])]
        with torch.no_grad():
            with regard.edit(model, *outer, *inner):
                together = model(X)
            with regard.edit(model, *outer) as around:
                alone = model(X)
                with regard.edit(model, *inner):
                    nested = model(X)
                again = model(X)
        assert torch.equal(nested, together)
        assert torch.equal(again, alone) and not torch.equal(alone, nested)
        assert around.touched == [{"0": 3, "1": 3}, {"0": 3, "1": 3}]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_with_a_graft(implementation: str) -> None:
    """A graft reads the changed weights where the model made them, and says where it cannot."""
    model = FAMILIES["bert"].build(implementation)
    layer, seen = WeightedAggregation(64, 4), []
    regard.graft(
        model, ReuseLayer(layer, reads="encoder.layer.0.attention.self", into="encoder.layer.1")
    )
    layer.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    inputs = {"input_ids": FAMILIES["bert"].inputs()["input_ids"]}
    model(**inputs)
    edit = regard.edit(model, replace("self", heads=1, where="encoder.layer.0*"))
    if implementation == "sdpa":
        with pytest.raises(UnavailableError, match=r"graft: regard\.edit changes the"), edit:
            model(**inputs)
        return
    with edit:
        model(**inputs)
    ends = seen[0], seen[-1]  # the captured pass is between them
    plain, changed = (each.weights() if isinstance(each, Recipe) else each for each in ends)
    assert torch.equal(changed[:, 1], torch.eye(12).expand(2, 12, 12))
    assert torch.equal(changed[:, 0], plain[:, 0])


def test_other_models_and_threads_are_not_touched() -> None:
    model, other = stack(), stack()
    with torch.no_grad():
        plain = model(X)
        elsewhere: list[Tensor] = []
        begin, end = threading.Event(), threading.Event()

        def run() -> None:
            begin.wait()
            with torch.no_grad():
                elsewhere.append(model(X))
            end.set()

        thread = threading.Thread(target=run)
        thread.start()
        with regard.edit(model, silence()):
            begin.set()
            end.wait()
            assert torch.equal(other(X), plain)
            changed = model(X)
            with ThreadPoolExecutor(1) as pool:  # submitted inside: belongs to the block
                inside = pool.submit(torch.no_grad()(model), X).result()
        thread.join()
    assert torch.equal(elsewhere[0], plain)
    assert torch.equal(inside, changed) and not torch.equal(changed, plain)


def test_everything_is_as_before_after_an_error() -> None:
    model = stack()
    before = {path: dict(module.__dict__) for path, module in model.named_modules()}
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        plain = model(X)
        hook = model[1].register_forward_hook(_divide)
        with pytest.raises(ZeroDivisionError), regard.edit(model, forbid(keys=0)):
            model(X)
        hook.remove()
        with pytest.raises(ShapeError), regard.edit(model, silence(heads=9)):
            model(X)
        hook = model[1].register_forward_hook(_interrupt)
        with pytest.raises(KeyboardInterrupt), regard.edit(model, forbid(keys=0)):
            model(X)
        hook.remove()
        assert torch.equal(model(X), plain)
        with regard.capture(model) as trace:
            model(X)
    assert len(trace) == 2
    assert before == {path: dict(module.__dict__) for path, module in model.named_modules()}
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert not torch._C._dispatch_tls_is_dispatch_key_included("TESTING_ONLY_GenericMode")


def _divide(*_: object) -> None:
    raise ZeroDivisionError


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_captured_pass_leaves_no_trace() -> None:
    class Counting(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.calls = nn.BatchNorm1d(16), 0
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.last = x
            x.add_(1.0)
            return super().forward(self.drop(self.norm(x.mT).mT))

    model, twin = Counting(), Counting()
    twin.load_state_dict(model.state_dict())
    ours, theirs = X.clone(), X.clone()
    with regard.edit(model, scale(1.0)):
        torch.manual_seed(2)
        output = model(ours)
    torch.manual_seed(2)
    torch.testing.assert_close(output, twin(theirs))
    assert model.calls == 1 and model.last is ours and torch.equal(ours, theirs)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, twin.get_buffer(name)), name


def test_a_trace_saves_the_captured_pass_and_knows_words() -> None:
    model = stack(fused=False)
    calls = []
    hook = model[0].qkv.register_forward_hook(lambda *_: calls.append(1))
    tokens = [f"▁w{i}" for i in range(6)]
    with torch.no_grad():
        with regard.capture(model, tokens=tokens) as trace:
            model(X)
        calls.clear()
        with regard.edit(model, forbid(queries="w3", keys=["w1", "w2"]), like=trace):
            by_word = model(X)
        assert len(calls) == 1
        with regard.edit(model, forbid(queries=3, keys=[1, 2])):
            by_number = model(X)
        with regard.edit(model, forbid(queries="w3", keys=["w1", "w2"]), tokens=tokens):
            by_tokens = model(X)
        marked = torch.zeros(2, 3, dtype=torch.bool)
        marked[0, 1:] = True
        with regard.edit(model, forbid(queries=3, keys=marked)):
            by_example = model(X)
        hook.remove()
        plain = model(X)
    assert torch.equal(by_word, by_number) and torch.equal(by_word, by_tokens)
    torch.testing.assert_close(by_example[1], plain[1])
    torch.testing.assert_close(by_example[0], by_number[0])


REFUSED: list[tuple[Change, type[Exception], str]] = [
    (
        forbid(keys=0, where="layer.9*"),
        RegardError,
        "where='layer.9*' matches none of 2 sites; near: '0'",
    ),
    (forbid(keys=17), RegardError, "it selects none of the 6 queries and 6 keys of '1'"),
    (silence(heads=7), ShapeError, "heads=7: 7 at '0', expected a number from 0 to 3"),
    (silence(heads=[1, 4]), ShapeError, "4 at '0', expected a number from 0 to 3: it has 4 heads"),
    (forbid(keys="cat"), RegardError, "the tokens of '0' are not known"),
    (forbid(keys=1.5), RegardError, "keys=1.5: expected a position"),
    (
        bias(torch.zeros(2, 3, 6, 6)),
        ShapeError,
        "axis 1 (head) has size 3, expected 1 or 4 at '0'",
    ),
    (bias(torch.zeros(1, 1, 6, 5)), ShapeError, "axis 3 (key) has size 5, expected 1 or at least"),
    (replace(torch.zeros(6, 6)), ShapeError, "a tensor of 2 axes (6, 6), expected (batch or 1"),
    (
        forbid(keys=torch.zeros(3, 6, dtype=torch.bool)),
        ShapeError,
        "axis batch has size 3, expected 1 or 2",
    ),
    (
        allow(torch.ones(1, 3, 6, 6, dtype=torch.bool)),
        ShapeError,
        "axis head has size 3, expected 1 or 4",
    ),
    (
        replace_values(torch.zeros(1, 1, 1, 3)),
        ShapeError,
        "axis width has size 3, expected 4",
    ),
    (
        scale_values(torch.ones(1, 1, 6, 6)),
        ShapeError,
        "axis query has size 6, expected 1: all queries mix the same values",
    ),
]


@pytest.mark.parametrize(("change", "error", "text"), REFUSED)
def test_errors_say_what_would_fit(change: Change, error: type[Exception], text: str) -> None:
    model = stack()
    with (
        torch.no_grad(),
        pytest.raises(error, match=re.escape(text)),
        regard.edit(model, change),
    ):
        model(X)


@pytest.mark.usefixtures("without_shape_checks")
def test_arguments_are_checked_at_once() -> None:
    for make, text in (
        (lambda: bias("a"), "bias('a'): expected a number or a tensor"),
        (lambda: replace("next"), "replace('next'): expected a tensor, a trace or"),
        (lambda: allow(torch.ones(1, 1, 2, 2)), "a mask of torch.float32, expected torch.bool"),
        (lambda: silence(heads="all"), "heads='all': expected a number or several"),
        (lambda: silence(heads=[]), "heads=[]: expected at least one"),
        (lambda: bias(float("nan")), "bias(nan): it holds NaN"),
        (lambda: multiply(-1.0), "a factor is -1, expected at least 0, as rows are divided"),
        (lambda: regard.edit(stack(), "forbid"), "edit: 'forbid', expected a change"),
        (lambda: regard.edit(stack(), [silence()]), "each by itself, as regard.edit(model, *ch"),
        (lambda: regard.edit(stack(), silence), "as silence(...)"),
        (lambda: regard.edit(3, silence()), "edit: int, expected a module"),
        (lambda: regard.edit(len, silence()), "edit: len, expected a module, a method of one, or"),
        (lambda: bias(float("inf")), "bias(inf): it holds an infinity, which gives NaN; allow()"),
        (lambda: multiply(torch.tensor(torch.inf)), "multiply(<()>): it holds an infinity"),
    ):
        with pytest.raises(RegardError, match=re.escape(text)):
            make()


def test_tokens_without_the_special_ones_are_refused() -> None:
    model, tokens = stack(), [f"w{i}" for i in range(4)]
    said = "tokens=: 4 of them, but '0' has 6 keys; expected one for each position, special"
    edit = regard.edit(model, forbid(keys="w1"), tokens=tokens)
    with pytest.raises(ShapeError, match=re.escape(said)), edit:
        model(X)


@pytest.mark.usefixtures("without_shape_checks")
def test_sweeps_say_what_they_expect() -> None:
    model, metric = stack(), lambda output: output[0, -1, 0]
    edges = {"last to first": (-1, 0)}
    for run, text in (
        (lambda: regard.patch(model, "a", "b", metric=metric), "inputs: 'a', expected a tensor"),
        (lambda: regard.patch(model, X, X[:, :5], metric=metric), "expected inputs of one length"),
        (lambda: regard.patch(model, X, X, metric=metric), "on both inputs, so nothing tells"),
        (lambda: regard.knockout(model, X, [(1, 2)], metric=metric), "edges=[(1, 2)], expected"),
        (lambda: regard.knockout(model, X, {"a": 3}, metric=metric), "edges={'a': 3}, expected"),
        (lambda: regard.knockout(model, X, edges, metric=str), "expected one number"),
        (lambda: regard.knockout(model, X, edges, metric=lambda o: o[0]), "of shape (6, 16)"),
        (lambda: regard.knockout(model, X, edges, metric=metric, window=0), "window=0, expected"),
        (
            lambda: regard.knockout(model, X, {"last": (-1, "cat")}, metric=metric, window=2),
            "knockout: edges 'last': keys='cat': a word, but the tokens of '0' are not known",
        ),
        (
            lambda: regard.knockout(model, X, {"far": (9, 0)}, metric=metric),
            "knockout: edges 'far': forbid(where='0', queries=9, keys=0): changed nothing",
        ),
        (
            lambda: regard.patch(stack(False), X, X + 1, metric=metric, what="values"),
            "replace_values(): '0' writes its softmax itself",
        ),
    ):
        with pytest.raises(RegardError, match=re.escape(text)):
            run()


def test_a_model_that_did_not_run() -> None:
    edit = regard.edit(stack(), silence())
    with pytest.raises(RegardError, match="no module of the model was called"), edit:
        pass
    linear = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(RegardError, match="has no attention that can be seen"), torch.no_grad():  # noqa: SIM117
        with regard.edit(linear, silence()):
            linear(X)


@pytest.mark.parametrize("fused", [True, False])
def test_capture_sees_factors_of_weights(fused: bool) -> None:
    model = stack(fused)
    with torch.no_grad():
        plain = regard.trace(model, X)[0].weights()
        for changes, factor in (
            ([multiply(0.5, keys=2, renormalise=False)], torch.tensor([1, 1, 0.5, 1, 1, 1])),
            ([silence(heads=1)], torch.tensor([1.0, 0, 1, 1])[:, None, None]),
            ([silence(queries=3)], torch.tensor([1.0, 1, 1, 0, 1, 1])[:, None]),
        ):
            with regard.edit(model, *changes):
                output = model(X)
                with regard.capture(model) as trace:
                    torch.testing.assert_close(model(X), output, atol=1e-6, rtol=0)
            torch.testing.assert_close(trace[0].weights(), plain * factor, atol=1e-6, rtol=0)


def test_selections_as_they_come() -> None:
    """Numbers of numpy, slices of heads, and effects of patch."""
    model = stack()
    best = regard.patch(model, X, X.flip(1), metric=lambda output: output[0, -1, 0]).top(1)[0]
    pairs = (
        (silence(queries=np.int64(3)), silence(queries=3)),
        (forbid(keys=np.arange(2)), forbid(keys=[0, 1])),
        (silence(heads=slice(1, 3)), silence(heads=[1, 2])),
        (silence(heads=best.column, where=best.row), silence(heads=[best.column], where=best.row)),
    )
    with torch.no_grad():
        for change, other in pairs:
            with regard.edit(model, change):
                output = model(X)
            with regard.edit(model, other):
                assert torch.equal(output, model(X)), change


def test_an_edit_that_was_not_entered_says_so() -> None:
    assert "use it as `with regard.edit(...):`" in repr(regard.edit(stack(), silence()))


def test_a_mask_that_is_too_short() -> None:
    model, mask = stack(), torch.ones(1, 1, 3, 3, dtype=torch.bool)
    text = "axis query has size 3, expected 1 or 6 at '0'"
    with pytest.raises(ShapeError, match=text), regard.edit(model, allow(mask)):
        model(X)


def test_a_module_with_a_length() -> None:
    """Asked for by its truth, which raises for a compiled model."""

    class Empty(nn.Sequential):
        def __len__(self) -> int:
            raise TypeError("no length")

    plain = stack()
    model = Empty(*plain)
    with torch.no_grad():
        with regard.edit(model, silence()):
            silenced = model(X)
        torch.testing.assert_close(silenced, plain[1].out.bias.expand(2, 6, 16))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_cannot_be_edited_is_refused() -> None:
    class Spelled(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            powers = (q @ k.mT).exp()
            return powers / powers.sum(-1, keepdim=True) @ v

    class Jagged(Attention):
        def forward(self, x: Tensor) -> Tensor:
            parts = torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)
            q, k, v = (
                part.contiguous().unflatten(-1, [4, 4]).transpose(1, 2)
                for part in self.qkv(parts).chunk(3, -1)
            )
            return F.scaled_dot_product_attention(q, k, v)

    class Lost(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
            )
            weights = (q @ k.mT).softmax(-1)
            return torch.einsum("bhqk,hg->bgqk", weights, torch.randn(4, 4)) @ v

    class Sigmoid(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            return (q @ k.mT).sigmoid() @ v

    class Talking(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
            )
            return (
                torch.einsum("bhqk,hg->bgqk", (q @ k.mT).softmax(-1), self.out.weight[:4, :4]) @ v
            )

    for model, change, text in (
        (Spelled(), scale(2.0), "whose axes are known: they are spelled with exp and sum"),
        (Talking(), scale(2.0), "whose axes are known: heads or softmaxes are mixed in them"),
        (
            nn.Sequential(Attention(), Lost()),
            scale(2.0),
            "1: a softmax of products, .* not followed",
        ),
        (nn.Sequential(Attention(), Sigmoid()), scale(2.0), "1: .* attention that is no softmax"),
        (Jagged(), scale(2.0), "'Jagged' .* cannot be changed: its tensors are nested"),
        (nn.Sequential(Attention(), Jagged()), scale(2.0), "'1' .* its tensors are nested"),
        (stack(fused=False), replace_values(torch.zeros(1, 1, 1, 4)), "writes its softmax itself"),
    ):
        with (
            torch.no_grad(),
            pytest.raises(RegardError, match=text),
            regard.edit(model, change),
        ):
            model(X)
    with pytest.raises(UnavailableError, match="vmap"), regard.edit(model, scale(2.0)):
        torch.vmap(model)(X[None])


def test_values_and_masks_at_a_fused_operator() -> None:
    model = stack()[0]
    with torch.no_grad():
        with regard.capture(model, values=True) as clean:
            model(X)
        with regard.edit(model, replace_values(clean), replace(clean)):
            assert torch.allclose(
                model(X + 1),
                model.out(clean[0].mixed().mT.mT.transpose(1, 2).flatten(2)),
                atol=1e-6,
            )
        with regard.edit(model, allow(masks.causal()), scale_values(0.0, keys=0)):
            output = model(X)
        q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in model.qkv(X).chunk(3, -1))
        v[:, :, 0] = 0
        truth = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(output, model.out(truth.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    "change",
    [
        forbid(keys=0),
        silence(heads=0),
        multiply(0.5, keys=[1], renormalise=False),
        replace("uniform", heads=1),
    ],
    ids=str,
)
def test_weights_that_a_module_returns(change: Change) -> None:
    """torch's fast path, its slow one (with gradients), and both under capture return the same."""
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    results = []
    for gradients in (False, True):
        for captured in (True, False):
            with contextlib.ExitStack() as contexts:
                contexts.enter_context(torch.set_grad_enabled(gradients))
                contexts.enter_context(regard.edit(model, change))
                trace = contexts.enter_context(regard.capture(model)) if captured else None
                results.append(model(x, x, x, average_attn_weights=False))
            if trace is not None:
                assert torch.equal(trace[0].weights(), results[-1][1])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
