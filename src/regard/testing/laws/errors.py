"""Laws of bad input: an error that names argument, axis, size and expectation."""

from __future__ import annotations

from functools import partial

import torch

from regard.contract import Mechanism
from regard.testing.assertions import refuses
from regard.testing.law import law
from regard.testing.subject import BlockSubject, ImageSubject, MechanismSubject, call


@law("wrong shapes raise an error that names the axis, the size and what was expected", "mechanism")
def wrong_shapes(subject: MechanismSubject) -> None:
    module = subject.module()
    query, key, value = subject.inputs()
    refuses(lambda: call(module, query[0], key, value), "3")
    if subject.traits.self_only:
        return
    batch, keys = query.shape[0], key.shape[1]
    refuses(lambda: call(module, query, key[:1], value[:1]), "batch", "1", str(batch))
    if subject.takes_value:
        refuses(lambda: call(module, query, key, value[:, :-1]), "key", str(keys - 1), str(keys))
    if isinstance(module, Mechanism) and subject.traits.longest is not None:
        most = subject.traits.longest
        long = subject.inputs(keys=most + 1)
        refuses(lambda: call(module, *long), "key", str(most + 1), str(most))


@law(
    "wrong shapes raise an error that names the argument, the axis, the sizes",
    "block",
    name="wrong_shapes",
)
def block_wrong_shapes(subject: BlockSubject) -> None:
    module, (x, *context) = subject.module(), subject.sides()
    width, batch = x.shape[2], x.shape[0]
    refuses(lambda: module(x[0], *context), "x", "2 axes", "3")
    wide = torch.cat([x, x[..., :1]], -1)
    refuses(lambda: module(wide, *context), "x", "width", str(width + 1), str(width))
    if context:
        refuses(lambda: module(x, context[0][0]), "context", "2 axes", "3")
        refuses(lambda: module(x, context[0][:1]), "context", "batch", "1", str(batch))


@law("wrong images raise an error that names the axis, the size and what was expected", "image")
def wrong_images(subject: ImageSubject) -> None:
    module, image = subject.module(), subject.image()
    refuses(lambda: module(image[0]), "image", "3", "4")
    refuses(lambda: module(image.long()), "image", "int64")
    if next(module.parameters(), None) is not None:
        refuses(lambda: module(image.float()), "image", "float32", "float64")
    rows, columns = subject.smallest
    short, narrow = subject.image(height=rows - 1), subject.image(width=columns - 1)
    refuses(lambda: module(short), "image", "height", str(rows - 1), str(rows))
    refuses(lambda: module(narrow), "image", "width", str(columns - 1), str(columns))
    if getattr(module, "channels", None) is not None:
        channels = image.shape[1]
        more = torch.cat([image, image[:, :1]], 1)
        refuses(lambda: module(more), "image", "channel", str(channels + 1), str(channels))


@law("wrong masks raise an error that names the axis, or the argument they belong to", "mechanism")
def wrong_masks(subject: MechanismSubject) -> None:
    module = subject.module()
    subject.takes("mask")
    query, key, value = subject.inputs()
    keys, queries = key.shape[1], query.shape[1]
    refuses(lambda: call(module, query, key, value, mask=torch.zeros(1, 1, queries, keys)), "bias")
    flat = torch.ones(queries, keys, dtype=torch.bool)
    refuses(lambda: call(module, query, key, value, mask=flat), "2", "4", "pairs")
    long = torch.ones(1, 1, queries, keys + 1, dtype=torch.bool)
    refuses(lambda: call(module, query, key, value, mask=long), "key", str(keys + 1), str(keys))


@law(
    "wrong masks raise an error that names the argument, the axis, the sizes",
    "block",
    name="wrong_masks",
)
def block_wrong_masks(subject: BlockSubject) -> None:
    module, inputs = subject.module(), subject.sides()
    for argument, features in zip(("mask", "context_mask"), inputs):
        keys = features.shape[1]
        for mask, words in (
            (torch.zeros(1, 1, 1, keys), ("float", "boolean")),
            (torch.ones(1, keys, dtype=torch.bool), ("2 axes", "4")),
            (torch.ones(1, 1, 1, keys + 1, dtype=torch.bool), ("key", str(keys + 1), str(keys))),
        ):
            refuses(partial(module, *inputs, **{argument: mask}), argument, *words)


@law("wrong dtypes raise an error that names the argument and the dtype", "mechanism")
def wrong_dtypes(subject: MechanismSubject) -> None:
    module = subject.module()
    query, key, value = subject.inputs()
    refuses(lambda: call(module, query.long(), key, value), "query", "int64")
    if not subject.traits.self_only:
        mixed = partial(call, module, query, key.float(), value.float())
        refuses(mixed, "key", "float32", "float64")


@law(
    "wrong dtypes raise an error that names the argument and both dtypes",
    "block",
    name="wrong_dtypes",
)
def block_wrong_dtypes(subject: BlockSubject) -> None:
    module, (x, *context) = subject.module(), subject.sides()
    refuses(lambda: module(x.long(), *context), "x", "int64")
    if next(module.parameters(), None) is not None:
        floats = [features.float() for features in (x, *context)]
        refuses(lambda: module(*floats), "x", "float32", "float64")
    if context:
        refuses(lambda: module(x, context[0].float()), "context", "float32", "float64")


@law("a context that is missing, given twice, or of no use raises an error that says so", "block")
def wrong_context(subject: BlockSubject) -> None:
    subject.takes("context")
    module, (x, *context) = subject.module(), subject.sides()
    if not subject.takes_context:
        refuses(lambda: module(x, x), "context")
        refuses(lambda: module(x, context_mask=x.new_ones(1, 1, 1, 1).bool()), "context_mask")
        return
    refuses(lambda: module(x), "context")
    refuses(lambda: module(x, state=True), "context")
    subject.takes("state")
    state = subject.run(module, x, *context, state=True).state
    refuses(lambda: module(x, *context, state=state), "state", "context")


@law("a state of something else raises an error that says what was expected", "block")
def wrong_state(subject: BlockSubject) -> None:
    subject.takes("state")
    module, inputs = subject.module(), subject.sides()
    refuses(lambda: module(*inputs, state="yesterday"), "state", "str", "True")
    refuses(lambda: module(*inputs, state=({},) * 99), "state", "True")
    state = subject.run(module, *inputs, state=True).state
    refuses(lambda: module(inputs[0][:1], state=state), "batch", str(inputs[0].shape[0]), "1")
