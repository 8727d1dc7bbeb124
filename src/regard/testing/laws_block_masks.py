"""Laws of blocks: masks, padding, causality, rows with nothing to see, empty batches."""

from __future__ import annotations

import torch

from regard import masks
from regard.testing.block_law import (
    all_weights,
    attends_itself,
    block_law,
    check_shape,
    finite_gradients,
    needs_context,
    needs_scores,
    needs_self,
    run,
    sides,
    takes_sets,
)
from regard.testing.subject import Subject, Unchecked, close, largest


@block_law("a mask is applied: a flipped position that may not be seen moves no other")
def mask_is_applied(subject: Subject) -> None:
    subject.takes("causal")
    needs_self(subject)
    needs_scores(subject, "it takes no masks of pairs")
    inputs, module = sides(subject), subject.module()
    x, hidden = inputs[0], 1
    allowed = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool)
    allowed[..., hidden] = False
    allowed[..., hidden, hidden] = True  # seen by itself, so that it is not padding
    flipped = x.clone()
    flipped[:, hidden] *= -1
    others = [place for place in range(x.shape[1]) if place != hidden]

    def moved(mask: torch.Tensor | None) -> torch.Tensor:
        before, after = (
            run(module, first, *inputs[1:], mask=mask, causal=False).output
            for first in (x, flipped)
        )
        return (after - before)[:, others]

    assert largest(moved(None)) > 1e-6, "flipping a position moves nothing even without a mask"
    assert largest(moved(allowed)) <= 1e-9, (
        f"a masked position was flipped, and others moved by {largest(moved(allowed)):.3g}"
    )
    blocked = run(module, *inputs, mask=allowed, causal=False, weights=True)
    for name, weights in all_weights(blocked, "self").items():
        leaked = largest(weights.masked_fill(allowed, 0.0))
        assert leaked == 0.0, f"a forbidden pair of {name} has weight {leaked:.3g}"


@block_law("a context mask is applied: a flipped place of the context that is masked moves nothing")
def context_mask_is_applied(subject: Subject) -> None:
    needs_context(subject)
    x, context = sides(subject)
    module, keep = subject.module(), torch.ones(context.shape[:2], dtype=torch.bool)
    keep[:, 2] = False
    flipped = torch.where(keep[..., None], context, -context)
    free = run(module, x, flipped).output - run(module, x, context).output
    assert largest(free) > 1e-6, "flipping a place of the context moves nothing without a mask"
    options = {"context_mask": masks.padding(keep), "weights": True}
    before, after = run(module, x, context, **options), run(module, x, flipped, **options)
    close(after.output, before.output, 1e-9, "output after a masked place of the context flipped")
    for name, weights in all_weights(before, "cross").items():
        leaked = largest(weights[..., 2])
        assert leaked == 0.0, f"a masked place of the context has weight {leaked:.3g} in {name}"


@block_law("padding of x may hold NaN and is as if it were not there, gradients included")
def padding(subject: Subject) -> None:
    inputs, module = sides(subject), subject.module()
    x, real = inputs[0], inputs[0].shape[1] - 2
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[:, real:] = False
    dirty = x.masked_fill(~keep[..., None], torch.nan).requires_grad_()
    got = run(module, dirty, *inputs[1:], mask=masks.padding(keep), weights=True)
    want = run(module, x[:, :real], *inputs[1:]).output
    output = got.output[:, : want.shape[1]]  # real positions, or those of learned queries
    close(output, want, 1e-9, "real positions, against deletion")
    assert not got.output.isnan().any(), "NaN in padding reached the output"
    if attends_itself(subject):
        for name, weights in all_weights(got, "self").items():
            assert largest(weights[..., real:]) == 0.0, f"padding has weight in {name}"
    finite_gradients(module, output.square().sum(), "NaN in padding")
    assert dirty.grad is not None and dirty.grad.isfinite().all(), "the gradient of x"


@block_law("the order of a set carries no meaning: its output follows it, or stays as it is")
def permutation(subject: Subject) -> None:
    if not takes_sets(subject):
        raise Unchecked("positions of a block may have an order")
    (x,), module = sides(subject), subject.module()
    keep = torch.ones(x.shape[:2], dtype=torch.bool)
    keep[0, 1] = False
    order = torch.arange(x.shape[1]).roll(2)
    before = run(module, x, mask=masks.padding(keep)).output
    after = run(module, x[:, order], mask=masks.padding(keep[:, order])).output
    follows = getattr(module, "n_outputs", None) is None
    close(after, before[:, order] if follows else before, 1e-9, "output of a permuted set")


@block_law("padding of the context may hold NaN and reaches neither output nor gradients")
def context_padding(subject: Subject) -> None:
    needs_context(subject)
    x, context = sides(subject)
    module, keep = subject.module(), torch.ones(context.shape[:2], dtype=torch.bool)
    keep[0, -2:] = False
    mask = masks.padding(keep)
    want = run(module, x, context, context_mask=mask, causal=True)  # as it is with a state
    x = x.clone().requires_grad_()
    for state in (None, True):
        dirty = context.masked_fill(~keep[..., None], torch.nan).requires_grad_()
        got = run(module, x, dirty, context_mask=mask, causal=True, state=state)
        close(got.output, want.output, 1e-9, f"NaN in the context's padding, state={state}: output")
        finite_gradients(module, got.output.square().sum(), "NaN in the context's padding")
        assert dirty.grad is not None and dirty.grad.isfinite().all(), "the context's gradient"
    assert x.grad is not None and x.grad.isfinite().all(), "the gradient of x"


@block_law("what comes later, flipped and 1e4 times larger, changes nothing under causal=True")
def causality(subject: Subject) -> None:
    subject.takes("causal")
    needs_self(subject)
    inputs, module = sides(subject), subject.module()
    x, now = inputs[0], inputs[0].shape[1] // 2
    loud = x.clone()
    loud[:, now + 1 :] *= -1e4  # flipped too: a norm does not see how large a position is

    def outputs(**options: bool) -> list[torch.Tensor]:
        return [run(module, first, *inputs[1:], **options).output for first in (x, loud)]

    before, after = outputs(causal=True)
    close(after[:, : now + 1], before[:, : now + 1], 1e-9, "output before the change")
    free, moved = outputs(causal=False)
    assert largest((moved - free)[:, : now + 1]) > 1e-6, "causal=False hides the future too"
    habit = getattr(module, "causal", None)
    if habit is not None:
        default = run(module, *inputs).output
        close(default, before if habit else free, 1e-12, f"by default, where .causal is {habit}")
    blocked = run(module, *inputs, causal=True, weights=True)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for name, weights in all_weights(blocked, "self").items():
        leaked = largest(weights.masked_fill(~future, 0.0))
        assert leaked == 0.0, f"a later position has weight {leaked:.3g} in {name}"


@block_law("causal and mask intersect")
def causal_and_mask(subject: Subject) -> None:
    subject.takes("causal")
    needs_self(subject)
    inputs, module = sides(subject), subject.module()
    length = inputs[0].shape[1]
    keep = torch.ones(inputs[0].shape[:2], dtype=torch.bool)
    keep[:, 0] = False
    blocked = run(module, *inputs, mask=masks.padding(keep), causal=True, weights=True)
    allowed = torch.ones(length, length, dtype=torch.bool).tril() & keep[:1]
    for name, weights in all_weights(blocked, "self").items():
        leaked = largest(weights.masked_fill(allowed, 0.0))
        assert leaked == 0.0, f"a pair that causal or mask forbids has weight {leaked:.3g}: {name}"


@block_law("a position that may look at nothing has weights 0, a finite output, finite gradients")
def masked_rows(subject: Subject) -> None:
    needs_scores(subject, "it takes no masks of pairs")
    inputs, module = sides(subject), subject.module()
    x = inputs[0].clone().requires_grad_()
    options = {}
    for argument, features in zip(("mask", "context_mask"), inputs):
        options[argument] = torch.ones(1, 1, x.shape[1], features.shape[1], dtype=torch.bool)
        options[argument][:, :, 1] = False
    sets = takes_sets(subject)
    if sets:  # the queries are learned: none of them may look at the first set
        options = {"mask": torch.ones(x.shape[0], 1, 1, x.shape[1], dtype=torch.bool)}
        options["mask"][0] = False
    blocked = run(module, x, *inputs[1:], **options, weights=True)
    assert blocked.output.isfinite().all(), "the output is not finite"
    for name, weights in all_weights(blocked).items():
        if sets and weights.shape[-1] != x.shape[1]:
            continue  # learned queries are the keys
        alive = largest(weights[0] if sets else weights[:, :, 1])
        assert alive == 0.0, f"a position that may look at nothing has weight {alive:.3g} in {name}"
    finite_gradients(module, blocked.output.square().sum(), "a row with nothing to look at")
    assert x.grad is not None and x.grad.isfinite().all(), "the gradient of x"


@block_law("an empty batch, no positions and an empty context give outputs of x's shape")
def empty(subject: Subject) -> None:
    module, inputs = subject.module(), sides(subject)
    nobody = [features[:0] for features in inputs]
    nothing = sides(subject, length=0)
    alone = sides(subject, context_length=0)
    for name, given in (("an empty batch", nobody), ("no positions", nothing), ("context", alone)):
        blocked = run(module, *given, weights=True)
        check_shape(subject, blocked.output, given[0], name)
        assert blocked.output.isfinite().all(), f"{name}: the output is not finite"
