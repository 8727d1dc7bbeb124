"""Laws of blocks: bad input gives an error that names argument, axis, size and expectation."""

from __future__ import annotations

import functools

import torch

from regard.testing.block_law import block_law, run, sides, takes_context
from regard.testing.laws_errors import refuses
from regard.testing.subject import Subject


@block_law("wrong shapes raise an error that names the argument, the axis, the sizes")
def wrong_shapes(subject: Subject) -> None:
    module, (x, *context) = subject.module(), sides(subject)
    width, batch = x.shape[2], x.shape[0]
    refuses(lambda: module(x[0], *context), "x", "2 axes", "3")
    wide = torch.cat([x, x[..., :1]], -1)
    refuses(lambda: module(wide, *context), "x", "width", str(width + 1), str(width))
    if context:
        about = context[0]
        refuses(lambda: module(x, about[0]), "context", "2 axes", "3")
        refuses(lambda: module(x, about[:1]), "context", "batch", "1", str(batch))


@block_law("wrong masks raise an error that names the argument, the axis, the sizes")
def wrong_masks(subject: Subject) -> None:
    module, inputs = subject.module(), sides(subject)
    for argument, features in zip(("mask", "context_mask"), inputs):
        keys = features.shape[1]
        for mask, words in (
            (torch.zeros(1, 1, 1, keys), ("float", "boolean")),
            (torch.ones(1, keys, dtype=torch.bool), ("2 axes", "4")),
            (torch.ones(1, 1, 1, keys + 1, dtype=torch.bool), ("key", str(keys + 1), str(keys))),
        ):
            call = functools.partial(module, *inputs, **{argument: mask})
            refuses(call, argument, *words)


@block_law("wrong dtypes raise an error that names the argument and both dtypes")
def wrong_dtypes(subject: Subject) -> None:
    module, (x, *context) = subject.module(), sides(subject)
    refuses(lambda: module(x.long(), *context), "x", "int64")
    if next(module.parameters(), None) is not None:
        floats = [features.float() for features in (x, *context)]
        refuses(lambda: module(*floats), "x", "float32", "float64")
    if context:
        refuses(lambda: module(x, context[0].float()), "context", "float32", "float64")


@block_law("a context that is missing, given twice, or of no use raises an error that says so")
def wrong_context(subject: Subject) -> None:
    subject.takes("context")
    module, (x, *context) = subject.module(), sides(subject)
    if not takes_context(subject):
        refuses(lambda: module(x, x), "context")
        refuses(lambda: module(x, context_mask=x.new_ones(1, 1, 1, 1).bool()), "context_mask")
        return
    refuses(lambda: module(x), "context")
    refuses(lambda: module(x, state=True), "context")
    subject.takes("state")
    state = run(module, x, *context, state=True).state
    refuses(lambda: module(x, *context, state=state), "state", "context")


@block_law("a state of something else raises an error that says what was expected")
def wrong_state(subject: Subject) -> None:
    subject.takes("state")
    module, inputs = subject.module(), sides(subject)
    refuses(lambda: module(*inputs, state="yesterday"), "state", "str", "True")
    refuses(lambda: module(*inputs, state=({},) * 99), "state", "True")
    state = run(module, *inputs, state=True).state
    refuses(lambda: module(inputs[0][:1], state=state), "batch", str(inputs[0].shape[0]), "1")
