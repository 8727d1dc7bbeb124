"""Edits of the library's own mechanisms, each in all its forms, beside what their own masks do."""

from __future__ import annotations

import functools

import pytest
import torch
from members import MEMBERS
from torch import Tensor

import regard
from regard import masks
from regard.editing import Change, forbid, scale, silence
from regard.errors import RegardError
from regard.masks import Mask

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))

#: What their weights are made of, where no softmax over scores can be changed: what the error says.
_UNSEEN = "the model has no attention that can be seen"
_MEMORY = "weights are computed by read_memory"
REFUSED = {
    "multi_head_sigmoid": _UNSEEN,
    "multi_head_sparsemax": _UNSEEN,
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
#: Masks of these say something else than an edit: they move windows, or weights are not all learned.
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
