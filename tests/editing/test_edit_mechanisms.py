"""Edits of the library's own mechanisms, each in all its forms, beside what their own masks do."""

from __future__ import annotations

import functools

import pytest
import torch
from members import MEMBERS
from torch import Tensor

import regard
from regard import masks
from regard.editing import Change, forbid, multiply, scale, silence
from regard.errors import RegardError, UnavailableError
from regard.kernel import fused
from regard.masks import Mask
from regard.mechanisms import MultiHead, Scoring
from regard.vision import LocalSelfAttention

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))

#: What their weights are made of, where no softmax over scores can be changed: what the error says.
_UNSEEN = "the model has no attention that can be seen"
_MEMORY = "weights are computed by read_memory"
REFUSED = {
    "multi_head_sigmoid": "attention that is no softmax",
    "multi_head_sparsemax": "attention that is no softmax",
    "multi_head_entmax": _UNSEEN,
    "multi_head_talking_heads": "heads or softmaxes are mixed in them",
    "luong_location": _UNSEEN,
    "pointer": _UNSEEN,
    "monotonic": _UNSEEN,
    "hard": _UNSEEN,
    "hard_multi_head": _UNSEEN,
    "linear_attention": _MEMORY,
    "linear_attention_1992": _MEMORY,
    "linear_attention_decay": _MEMORY,
    "linear_attention_inputs": _MEMORY,
    "linear_attention_dpfp": _MEMORY,
    "performer": _MEMORY,
    "performer_hyperbolic": _MEMORY,
    "performer_trigonometric": _MEMORY,
    "delta_rule": _MEMORY,
    "delta_rule_dpfp": _MEMORY,
    "delta_rule_gated": _MEMORY,
}
#: Masks of these say something else than an edit: they move windows, or have steps of their own.
NO_TRUTH = ("luong_local_p", "shaped", "coverage")

_LEFT = torch.ones(2, 6, dtype=torch.bool)
_LEFT[1, :2] = False
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "padding": {"mask": masks.padding(_LEFT)},
    "causal and padding": {"causal": True, "mask": masks.padding(_LEFT)},
    "causal and pairs": {"causal": True, "mask": masks.pairs(_LEFT[:, None, None])},
}


@functools.cache
def _inputs(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    sizes = MEMBERS[name][1]
    widths = [sizes.get("key_width", 16), sizes.get("value_width")]
    others = [torch.randn(2, 6, width) for width in widths if width] if sizes else []
    return (X, *others)


def _mechanism(name: str):
    torch.manual_seed(0)
    return MEMBERS[name][0]().eval()


def _edited(mechanism, inputs: tuple[Tensor, ...], *changes: Change, **options) -> Tensor:
    with torch.no_grad(), regard.edit(mechanism, *changes):
        return mechanism(*inputs, **options).output


def _without(*, query: int | None = None, key: int | None = None) -> Mask:
    """A mask of all pairs but those of a query or a key."""
    allowed = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    if query is not None:
        allowed[:, :, query] = False
    if key is not None:
        allowed[..., key] = False
    return masks.pairs(allowed)


@pytest.mark.parametrize("name", [name for name in MEMBERS if name not in REFUSED])
def test_edits_do_what_masks_do(name: str) -> None:
    """The first pass of each mechanism is captured, the rest are not."""
    mechanism, inputs = _mechanism(name), _inputs(name)
    truths = {silence(queries=3): _without(query=3), forbid(keys=2): _without(key=2)}
    for case, options in CASES.items():
        with torch.no_grad():
            plain = mechanism(*inputs, **options).output
        for identity in (scale(1.0), scale(torch.ones(1, 1, 1, 6))):  # fused, and by weights
            same = _edited(mechanism, inputs, identity, **options)
            torch.testing.assert_close(same, plain, atol=2e-6, rtol=0, msg=case)
        for change, mask in truths.items() if name not in NO_TRUTH else ():
            own = options.get("mask")
            masked = options | {"mask": mask if own is None else own & mask}
            with torch.no_grad():
                expected = mechanism(*inputs, **masked).output
            changed = _edited(mechanism, inputs, change, **options)
            message = f"{change}, {case}"
            torch.testing.assert_close(changed, expected, atol=2e-6, rtol=0, msg=message)
            assert not torch.allclose(changed, plain, atol=1e-4), message


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    with pytest.raises(RegardError, match=REFUSED[name]):
        _edited(_mechanism(name), _inputs(name), silence(heads=0))


def _sunk() -> MultiHead:
    mechanism = MultiHead(16, 4, scoring=Scoring(sinks=True))
    torch.nn.init.normal_(mechanism.sinks)
    return mechanism.eval()


def test_a_sink_is_no_key() -> None:
    torch.manual_seed(0)
    mechanism = _sunk()
    with torch.no_grad():
        plain = mechanism(X).output
        for change, mask in (
            (silence(queries=3), _without(query=3)),
            (forbid(keys=0), _without(key=0)),
            (forbid(keys=5, heads=[0, 1, 2, 3]), _without(key=5)),
        ):
            expected = mechanism(X, mask=mask).output
            torch.testing.assert_close(
                _edited(mechanism, (X,), change), expected, atol=2e-6, rtol=0
            )
            assert not torch.allclose(expected, plain)
        weights = mechanism(X, weights=True).weights
        with regard.edit(mechanism, multiply(0.5, keys=1)), regard.capture(mechanism) as trace:
            mechanism(X)
    left = 1 - weights.sum(-1, keepdim=True)  # on the sink
    changed = weights * torch.tensor([1, 0.5, 1, 1, 1, 1])
    changed = changed / (changed.sum(-1, keepdim=True) + left)
    torch.testing.assert_close(trace[0].weights(), changed, atol=1e-6, rtol=0)


@pytest.mark.parametrize("first", ["short", "long"])
def test_long_calls_that_run_in_blocks(first: str) -> None:
    torch.manual_seed(0)
    mechanism = MultiHead(16, 4, window=(8, 0)).eval()
    x = torch.randn(1, 600, 16)
    mask = torch.ones(1, 1, 600, 600, dtype=torch.bool)
    mask[:, :, 500, 495] = mask[:, :, 3, 1] = False
    with torch.no_grad():
        expected = mechanism(x, mask=masks.pairs(mask)).output
        changes = [forbid(queries=500, keys=495), forbid(queries=3, keys=1)]
        with regard.edit(mechanism, *changes) as edits:
            if first == "short":
                mechanism(x[:, :6])
            changed = mechanism(x).output
    torch.testing.assert_close(changed, expected, atol=2e-6, rtol=0)
    assert [sum(sites.values()) for sites in edits.touched] == [1, 1 + (first == "short")]


def test_long_calls_that_run_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_STRIP", 1)  # 64 rows each
    torch.manual_seed(0)
    mechanism, x = MultiHead(16, 4).eval(), torch.randn(1, 150, 16)
    bias = torch.randn(1, 1, 150, 150)
    with torch.no_grad():
        plain = mechanism(x, bias=bias).output
        with regard.edit(mechanism, silence(queries=140)) as edits:
            changed = mechanism(x, bias=bias).output
    moved = (changed - plain).abs().amax((0, 2)) > 1e-6
    assert moved.nonzero().flatten().tolist() == [140]
    assert edits.touched == [{"MultiHead": 1}]


def test_gradients_reach_sinks_and_projections() -> None:
    torch.manual_seed(0)
    mechanism = _sunk()
    mechanism(X, mask=_without(key=2)).output.square().sum().backward()
    expected = [parameter.grad.clone() for parameter in mechanism.parameters()]
    mechanism.zero_grad()
    with regard.edit(mechanism, forbid(keys=2)):
        mechanism(X).output.square().sum().backward()
    for parameter, gradient in zip(mechanism.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-4, rtol=1e-4)


def test_windows_of_an_image_are_refused() -> None:
    layer, image = LocalSelfAttention(8, 2, size=3).eval(), torch.randn(1, 8, 6, 5)
    with (
        torch.no_grad(),
        pytest.raises(UnavailableError, match="computed by regard::local_attention"),
        regard.edit(layer, silence(heads=0)),
    ):
        layer(image)
