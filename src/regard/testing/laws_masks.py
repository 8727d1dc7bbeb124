"""Laws of masks: padding, causality, rows with nothing to see, empty sequences."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from regard import masks
from regard.contract import Attended
from regard.testing.law import law
from regard.testing.laws_errors import refuses
from regard.testing.subject import Subject, Unchecked, call, close, largest, weights_of


@law("a mask is applied: forbidden pairs have weight exactly 0, permitted rows keep their sums")
def mask_is_applied(subject: Subject) -> None:
    query, key, value = subject.inputs()
    random = torch.Generator().manual_seed(2)
    allowed = torch.rand(1, 1, query.shape[1], key.shape[1], generator=random) > 0.4
    allowed[..., 0] = True
    if not subject.traits.scored:  # a mask of pairs is refused, one of keys is not
        pairs = partial(call, subject.module(), query, key, value, mask=allowed)
        refuses(pairs, "mask", "keys")
        allowed = allowed[:, :, :1]
    plain = weights_of(call(subject.module(), query, key, value, weights=True))
    weights = weights_of(call(subject.module(), query, key, value, mask=allowed, weights=True))
    leaked = largest(weights.masked_fill(allowed, 0.0))
    assert leaked == 0.0, f"a forbidden pair has weight {leaked:.3g}"
    assert largest(plain.masked_fill(allowed, 0.0)) > 0, "weights were 0 without the mask"
    if subject.kind == "distribution" and not subject.traits.order_matters:
        close(weights.sum(-1), torch.ones_like(weights[..., 0]), 1e-6, "masked row sums")


@law("padding that holds NaN equals deletion, and reaches neither output nor gradients")
def padding(subject: Subject) -> None:
    query, key, value = subject.inputs()
    if subject.traits.self_only:
        raise Unchecked("the module attends to itself only")
    keep = torch.ones(key.shape[:2], dtype=torch.bool)
    gone = [1, key.shape[1] - 1]
    keep[:, gone] = False
    left = [place for place in range(key.shape[1]) if place not in gone]
    module = subject.module()
    dirty_key, dirty_value = key.clone(), value.clone()
    dirty_key[:, gone] = dirty_value[:, gone] = torch.nan
    if value is key:
        dirty_value = dirty_key
    mask = masks.padding(keep)
    query = query.clone().requires_grad_()
    dirty = call(module, query, dirty_key, dirty_value, mask=mask, weights=True)
    assert not dirty.output.isnan().any(), "NaN in padding reached the output"
    if subject.traits.order_matters:  # deleting would move what is left: other contents instead
        want = call(module, query, key, value, mask=mask, weights=True)
        close(dirty.output, want.output, subject.fine, "output with NaN in padding")
    else:
        want = call(module, query, key[:, left], value[:, left], weights=True)
        output = dirty.output[..., left] if subject.traits.points else dirty.output
        close(output, want.output, subject.fine, "output with padding, against deletion")
        close(
            weights_of(dirty)[..., left],
            weights_of(want),
            subject.fine,
            "weights, against deletion",
        )
    assert largest(weights_of(dirty)[..., gone]) == 0.0, "padding has weight"
    if subject.traits.hard:
        dirty = _drawn(module, query, dirty_key, dirty_value, mask=mask)
    _finite_gradients(module, dirty.output.square().sum(), "NaN in padding")
    assert query.grad is not None and query.grad.isfinite().all(), "the query's gradient"


@law("padded places of a sequence that attends to itself may hold NaN")
def own_padding(subject: Subject) -> None:
    x = subject.own()
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[:, -2:] = False
    dirty = x.masked_fill(~keep[..., None], torch.nan).requires_grad_()
    module, mask = subject.module(), masks.padding(keep)
    got, want = call(module, dirty, mask=mask).output, call(module, x, mask=mask).output
    close(got[:, :-2], want[:, :-2], subject.fine, "real places of a padded sequence")
    _finite_gradients(module, got[:, :-2].square().sum(), "NaN in padding")
    assert dirty.grad is not None and dirty.grad.isfinite().all(), "the gradient of the sequence"


@law("what comes later, ten thousand times larger, changes nothing under causal=True")
def causality(subject: Subject) -> None:
    x = subject.own()
    module, now = subject.module(), x.shape[1] // 2
    loud = x.clone()
    loud[:, now + 1 :] *= 1e4
    before = call(module, x, causal=True, weights=True)
    after = call(module, loud, causal=True, weights=True)
    close(
        after.output[:, : now + 1],
        before.output[:, : now + 1],
        subject.fine,
        "output before the change",
    )
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    leaked = largest(weights_of(before).masked_fill(~future, 0.0))
    assert leaked == 0.0, f"a later key has weight {leaked:.3g}"


@law("causal and mask intersect, and unequal lengths are aligned at the end")
def causal_and_mask(subject: Subject) -> None:
    if subject.traits.self_only:
        raise Unchecked("the module attends to itself only")
    query, key, value = subject.inputs()
    keep = torch.ones(key.shape[:2], dtype=torch.bool)
    keep[:, 0] = False
    options = {"mask": masks.padding(keep), "causal": True, "weights": True}
    weights = weights_of(call(subject.module(), query, key, value, **options))
    offset = key.shape[1] - query.shape[1]
    allowed = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(offset)
    allowed = allowed & keep[:1]
    leaked = largest(weights.masked_fill(allowed, 0.0))
    assert leaked == 0.0, f"a pair that causal or mask forbids has weight {leaked:.3g}"
    last = weights_of(call(subject.module(), query, key, value, causal=True, weights=True))[
        :, :, -1
    ]
    free = weights_of(call(subject.module(), query, key, value, weights=True))[:, :, -1]
    if not subject.traits.order_matters and not subject.traits.sequential:
        close(last, free, subject.fine, "the last query, which causal leaves free")


@law("a row with no permitted key has weights 0, output 0 and finite gradients")
def masked_rows(subject: Subject) -> None:
    query, key, value = subject.inputs()
    if subject.traits.scored:
        allowed = torch.ones(1, 1, query.shape[1], key.shape[1], dtype=torch.bool)
        allowed[:, :, 1] = False
        dead: tuple[slice | int, slice | int] = (slice(None), 1)
    else:  # no key of an example
        allowed = torch.ones(query.shape[0], 1, 1, key.shape[1], dtype=torch.bool)
        allowed[0] = False
        dead = (0, slice(None))
    module = subject.module()
    query = query.clone().requires_grad_()
    if subject.traits.self_only:
        key = value = query
    attended = call(module, query, key, value, mask=allowed, weights=True)
    assert not attended.output.isnan().any(), "a row with no permitted key is NaN"
    alive = largest(weights_of(attended).transpose(1, 2)[dead])
    assert alive == 0.0, f"a row with no permitted key has weight {alive:.3g}, expected 0"
    left = largest(attended.output[dead])
    assert left == 0.0, f"the output of a row with no permitted key is {left:.3g}, expected 0"
    if subject.traits.hard:
        attended = _drawn(module, query, key, value, mask=allowed)
    _finite_gradients(module, attended.output.square().sum(), "a row with no permitted key")
    assert query.grad is not None and query.grad.isfinite().all(), "the query's gradient"


@law("no queries give an empty output; no keys give output 0")
def empty(subject: Subject) -> None:
    module = subject.module()
    query, key, value = subject.inputs(queries=0)
    nothing = call(module, query, key, value, weights=True)
    assert nothing.output.shape[:2] == (subject.sizes.batch, 0), "output for no queries"
    if subject.traits.self_only:
        return
    query, key, value = subject.inputs(keys=0)
    attended = call(module, query, key, value, weights=True)
    assert weights_of(attended).shape[-1] == 0, "weights over no keys"
    assert attended.output.shape[:2] == query.shape[:2], "output over no keys"
    assert largest(attended.output) == 0.0, "output over no keys is not 0"


def _drawn(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> Attended:
    """A call in training: a choice made in eval has no gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        attended = call(module.train(), *inputs, **options)
    assert attended.output.isfinite().all(), "in training the output is not finite"
    return attended


def _finite_gradients(module: nn.Module, loss: torch.Tensor, cause: str) -> None:
    if loss.requires_grad:
        loss.backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), f"{cause}: gradient of {name} is not finite"
