"""Laws of masks: padding, causality, rows with nothing to see, empty sequences."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.contract import Attended
from regard.testing.assertions import Unchecked, close, finite_gradients, largest, refuses
from regard.testing.law import law
from regard.testing.laws.weights import check_block_shape
from regard.testing.subject import (
    BlockSubject,
    ImageSubject,
    MechanismSubject,
    Result,
    all_weights,
    call,
    weights_of,
)


def _check_forbidden(result: Result, allowed: Tensor, what: str, name: str | None = None) -> None:
    """Fail where a forbidden pair has any weight."""
    for label, weights in all_weights(result, name).items():
        leaked = largest(weights.masked_fill(allowed, 0.0))
        assert leaked == 0.0, f"{what} has weight {leaked:.3g} ({label})"


@law(
    "a mask is applied: forbidden pairs have weight exactly 0, permitted rows keep their sums",
    "mechanism",
)
def mask_is_applied(subject: MechanismSubject) -> None:
    query, key, value = subject.inputs()
    random = torch.Generator().manual_seed(2)
    allowed = torch.rand(1, 1, query.shape[1], key.shape[1], generator=random) > 0.4
    allowed[..., 0] = True
    if not subject.traits.scored:  # a mask of pairs is refused, one of keys is not
        pairs = partial(call, subject.module(), query, key, value, mask=allowed)
        refuses(pairs, "mask", "keys")
        allowed = allowed[:, :, :1]
    plain = weights_of(call(subject.module(), query, key, value, weights=True))
    masked = call(subject.module(), query, key, value, mask=allowed, weights=True)
    _check_forbidden(masked, allowed, "a forbidden pair")
    assert largest(plain.masked_fill(allowed, 0.0)) > 0, "weights were 0 without the mask"
    if subject.kind == "distribution" and not subject.traits.order_matters:
        sums = weights_of(masked).sum(-1)
        close(sums, torch.ones_like(sums), 1e-6, "masked row sums")


@law(
    "a mask is applied: a flipped position that may not be seen moves no other",
    "block",
    name="mask_is_applied",
)
def block_mask_is_applied(subject: BlockSubject) -> None:
    subject.takes("causal")
    subject.needs_self()
    subject.needs_scores("it takes no masks of pairs")
    inputs, module = subject.sides(), subject.module()
    x, hidden = inputs[0], 1
    allowed = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool)
    allowed[..., hidden] = False
    allowed[..., hidden, hidden] = True  # seen by itself, so that it is not padding
    flipped = x.clone()
    flipped[:, hidden] *= -1
    others = [position for position in range(x.shape[1]) if position != hidden]

    def moved(mask: Tensor | None) -> float:
        before, after = (
            subject.run(module, first, *inputs[1:], mask=mask, causal=False).output
            for first in (x, flipped)
        )
        return largest((after - before)[:, others])

    assert moved(None) > 1e-6, "flipping a position moves nothing even without a mask"
    assert moved(allowed) <= subject.fine, (
        f"a masked position was flipped, and others moved by {moved(allowed):.3g}"
    )
    masked = subject.run(module, *inputs, mask=allowed, causal=False, weights=True)
    _check_forbidden(masked, allowed, "a forbidden pair", "self")


@law("a context mask is applied: flipping a masked position of the context moves nothing", "block")
def context_mask_is_applied(subject: BlockSubject) -> None:
    subject.needs_context()
    x, context = subject.sides()
    module, keep = subject.module(), torch.ones(context.shape[:2], dtype=torch.bool)
    keep[:, 2] = False
    flipped = torch.where(keep[..., None], context, -context)
    free = subject.run(module, x, flipped).output - subject.run(module, x, context).output
    assert largest(free) > 1e-6, "flipping a position of the context moves nothing without a mask"
    options = {"context_mask": masks.padding(keep), "weights": True}
    before, after = (subject.run(module, x, other, **options) for other in (context, flipped))
    what = "a masked position of the context"
    close(after.output, before.output, subject.fine, f"output after {what} flipped")
    _check_forbidden(before, keep[:, None, None], what, "cross")


@law(
    "padding that holds NaN equals deletion, and reaches neither output nor gradients", "mechanism"
)
def padding(subject: MechanismSubject) -> None:
    query, key, value = subject.inputs()
    subject.needs_context()
    keep = torch.ones(key.shape[:2], dtype=torch.bool)
    gone = [1, key.shape[1] - 1]
    keep[:, gone] = False
    left = [position for position in range(key.shape[1]) if position not in gone]
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
        kept = weights_of(dirty)[..., left]
        close(kept, weights_of(want), subject.fine, "weights, against deletion")
    _check_forbidden(dirty, keep[:, None, None], "padding")
    if subject.traits.hard:
        dirty = _drawn(module, query, dirty_key, dirty_value, mask=mask)
    finite_gradients(module, dirty.output.square().sum(), "NaN in padding", {"query": query})


@law("padded positions of a sequence that attends to itself may hold NaN", "mechanism")
def own_padding(subject: MechanismSubject) -> None:
    x = subject.own()
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[:, -2:] = False
    dirty = x.masked_fill(~keep[..., None], torch.nan).requires_grad_()
    module, mask = subject.module(), masks.padding(keep)
    got, want = (call(module, other, mask=mask).output[:, :-2] for other in (dirty, x))
    close(got, want, subject.fine, "real positions of a padded sequence")
    finite_gradients(module, got.square().sum(), "NaN in padding", {"query": dirty})


@law(
    "padding of x may hold NaN and is as if it were not there, gradients included",
    "block",
    name="padding",
)
def block_padding(subject: BlockSubject) -> None:
    inputs, module = subject.sides(), subject.module()
    x, real = inputs[0], inputs[0].shape[1] - 2
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[:, real:] = False
    dirty = x.masked_fill(~keep[..., None], torch.nan).requires_grad_()
    got = subject.run(module, dirty, *inputs[1:], mask=masks.padding(keep), weights=True)
    want = subject.run(module, x[:, :real], *inputs[1:]).output
    output = got.output[:, : want.shape[1]]  # real positions, or those of learned queries
    close(output, want, subject.fine, "real positions, against deletion")
    assert not got.output.isnan().any(), "NaN in padding reached the output"
    if subject.attends_itself:
        _check_forbidden(got, keep[:, None, None], "padding", "self")
    finite_gradients(module, output.square().sum(), "NaN in padding", {"x": dirty})


@law("padding of the context may hold NaN and reaches neither output nor gradients", "block")
def context_padding(subject: BlockSubject) -> None:
    subject.needs_context()
    x, context = subject.sides()
    module, keep = subject.module(), torch.ones(context.shape[:2], dtype=torch.bool)
    keep[0, -2:] = False
    options = {"context_mask": masks.padding(keep), "causal": True}  # causal, as with a state
    want = subject.run(module, x, context, **options)
    x = x.clone().requires_grad_()
    what = "NaN in the context's padding"
    for state in (None, True):
        dirty = context.masked_fill(~keep[..., None], torch.nan).requires_grad_()
        got = subject.run(module, x, dirty, **options, state=state)
        close(got.output, want.output, subject.fine, f"{what}, state={state}: output")
        loss = got.output.square().sum()
        finite_gradients(module, loss, what, {"context": dirty, "x": x})


@law("the order of a set carries no meaning: its output follows it, or stays as it is", "block")
def permutation(subject: BlockSubject) -> None:
    if not subject.takes_sets:
        raise Unchecked("positions of a block may have an order")
    (x,), module = subject.sides(), subject.module()
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[0, 1] = False
    order = torch.arange(x.shape[1]).roll(2)
    before = subject.run(module, x, mask=masks.padding(keep)).output
    after = subject.run(module, x[:, order], mask=masks.padding(keep[:, order])).output
    follows = getattr(module, "n_outputs", None) is None
    want = before[:, order] if follows else before
    close(after, want, subject.fine, "output of a permuted set")


@law("later positions, ten thousand times larger, change nothing under causal=True", "mechanism")
def causality(subject: MechanismSubject) -> None:
    x, module = subject.own(), subject.module()
    seen = slice(0, x.shape[1] // 2 + 1)
    loud = x.clone()
    loud[:, seen.stop :] *= 1e4
    before, after = (call(module, other, causal=True, weights=True) for other in (x, loud))
    close(after.output[:, seen], before.output[:, seen], subject.fine, "output before the change")
    _check_forbidden(before, _lower_triangle(x.shape[1]), "a later key")


@law(
    "later positions, flipped and 1e4 times larger, change nothing under causal=True",
    "block",
    name="causality",
)
def block_causality(subject: BlockSubject) -> None:
    subject.takes("causal")
    subject.needs_self()
    inputs, module = subject.sides(), subject.module()
    x, seen = inputs[0], slice(0, inputs[0].shape[1] // 2 + 1)
    loud = x.clone()
    loud[:, seen.stop :] *= -1e4  # flipped too: a norm does not see how large a position is

    def outputs(causal: bool) -> list[Tensor]:
        sides = ((first, *inputs[1:]) for first in (x, loud))
        return [subject.run(module, *side, causal=causal).output for side in sides]

    before, after = outputs(causal=True)
    close(after[:, seen], before[:, seen], subject.fine, "output before the change")
    free, moved = outputs(causal=False)
    assert largest((moved - free)[:, seen]) > 1e-6, "causal=False hides the future too"
    default = getattr(module, "causal", None)
    if default is not None:
        output = subject.run(module, *inputs).output
        close(output, before if default else free, 1e-12, f"by default, where .causal is {default}")
    causal = subject.run(module, *inputs, causal=True, weights=True)
    _check_forbidden(causal, _lower_triangle(x.shape[1]), "a later position", "self")


def _lower_triangle(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


@law("causal and mask intersect, and unequal lengths are aligned at the end", "mechanism")
def causal_and_mask(subject: MechanismSubject) -> None:
    subject.needs_context()
    query, key, value = subject.inputs()
    keep = torch.ones(key.shape[:2], dtype=torch.bool)
    keep[:, 0] = False
    options = {"mask": masks.padding(keep), "causal": True, "weights": True}
    masked = call(subject.module(), query, key, value, **options)
    offset = key.shape[1] - query.shape[1]
    allowed = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(offset)
    _check_forbidden(masked, allowed & keep[:1], "a pair that causal or mask forbids")
    if not subject.traits.order_matters and not subject.traits.sequential:
        last, free = (
            weights_of(call(subject.module(), query, key, value, causal=causal, weights=True))
            for causal in (True, False)
        )
        what = "the last query, which causal leaves free"
        close(last[:, :, -1], free[:, :, -1], subject.fine, what)


@law("causal and mask intersect", "block", name="causal_and_mask")
def block_causal_and_mask(subject: BlockSubject) -> None:
    subject.takes("causal")
    subject.needs_self()
    inputs, module = subject.sides(), subject.module()
    keep = torch.ones(inputs[0].shape[:2], dtype=torch.bool)
    keep[:, 0] = False
    masked = subject.run(module, *inputs, mask=masks.padding(keep), causal=True, weights=True)
    allowed = _lower_triangle(keep.shape[1]) & keep[:1]
    _check_forbidden(masked, allowed, "a pair that causal or mask forbids", "self")


@law("a row with no permitted key has weights 0, output 0 and finite gradients", "mechanism")
def masked_rows(subject: MechanismSubject) -> None:
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
    what = "a row with no permitted key"
    assert not attended.output.isnan().any(), f"{what} is NaN"
    weight = largest(weights_of(attended).transpose(1, 2)[dead])
    assert weight == 0.0, f"{what} has weight {weight:.3g}, expected 0"
    output = largest(attended.output[dead])
    assert output == 0.0, f"the output of {what} is {output:.3g}, expected 0"
    if subject.traits.hard:
        attended = _drawn(module, query, key, value, mask=allowed)
    finite_gradients(module, attended.output.square().sum(), what, {"query": query})


@law(
    "a position that may look at nothing has weights 0, a finite output, finite gradients",
    "block",
    name="masked_rows",
)
def block_masked_rows(subject: BlockSubject) -> None:
    subject.needs_scores("it takes no masks of pairs")
    inputs, module = subject.sides(), subject.module()
    x = inputs[0].clone().requires_grad_()
    options = {}
    for argument, features in zip(("mask", "context_mask"), inputs):
        options[argument] = torch.ones(1, 1, x.shape[1], features.shape[1], dtype=torch.bool)
        options[argument][:, :, 1] = False
    sets = subject.takes_sets
    if sets:  # the queries are learned: none of them may look at the first set
        options = {"mask": torch.ones(x.shape[0], 1, 1, x.shape[1], dtype=torch.bool)}
        options["mask"][0] = False
    result = subject.run(module, x, *inputs[1:], **options, weights=True)
    assert result.output.isfinite().all(), "the output is not finite"
    for label, weights in all_weights(result).items():
        if sets and weights.shape[-1] != x.shape[1]:
            continue  # learned queries are the keys
        weight = largest(weights[0] if sets else weights[:, :, 1])
        what = f"a position that may look at nothing has weight {weight:.3g}"
        assert weight == 0.0, f"{what} ({label})"
    what = "a row with nothing to look at"
    finite_gradients(module, result.output.square().sum(), what, {"x": x})


@law("no queries give an empty output; no keys give output 0", "mechanism")
def empty(subject: MechanismSubject) -> None:
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


@law(
    "an empty batch, no positions and an empty context give outputs of x's shape",
    "block",
    name="empty",
)
def block_empty(subject: BlockSubject) -> None:
    module = subject.module()
    cases = {
        "an empty batch": tuple(features[:0] for features in subject.sides()),
        "no positions": subject.sides(length=0),
        "an empty context": subject.sides(context_length=0),
    }
    for name, inputs in cases.items():
        result = subject.run(module, *inputs, weights=True)
        check_block_shape(subject, result.output, inputs[0], name)
        assert result.output.isfinite().all(), f"{name}: the output is not finite"


@law("an empty batch gives empty output and weights, and a gradient", "image", name="empty")
def image_empty(subject: ImageSubject) -> None:
    for training in (False, True):
        module, image = subject.module().train(training), subject.image(batch=0).requires_grad_()
        result = subject.run(module, image, weights=True)
        for name, tensor in (("output", result.output), *all_weights(result).items()):
            assert len(tensor) == 0, f"{name} of no image is {tuple(tensor.shape)}"
        result.output.sum().backward()
        for name, tensor in module.state_dict().items():
            assert tensor.isfinite().all(), f"{name} is not finite after an empty batch"


def _drawn(module: nn.Module, *inputs: Tensor, **options: Any) -> Attended:
    """A call in training: a choice made in eval has no gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        attended = call(module.train(), *inputs, **options)
    assert attended.output.isfinite().all(), "in training the output is not finite"
    return attended
