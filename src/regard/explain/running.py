"""Running a model for measurement: in eval mode, watched at its embedding, and put back after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.anatomy.modes import evaluation_mode
from regard.errors import RegardError, UnavailableError
from regard.explain.inputs import Inputs

Model = Callable[..., Any]


def call(model: Model, inputs: Inputs, embedding: nn.Module | None = None) -> Any:
    """What the model returns for these inputs, with their embeddings where they were changed."""
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        if inputs.swapped:
            stack.enter_context(_swapped(embedding, inputs))
        if list(inputs.named) == [""]:
            return model(inputs.named[""])
        return model(**inputs.named)


def outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that are no part of another."""
    found = list(modules)
    inside = {id(part) for one in found for part in one.modules() if part is not one}
    return [one for one in found if id(one) not in inside]


@contextmanager
def watched(
    inputs: Inputs, embedding: nn.Module | None
) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Notes the embedding that is called with the ids, or the one named, and what it made.

    The hook is a global one, since the model may be a function, whose modules are not known.
    """
    found: list[tuple[nn.Module, Tensor]] = []

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if found or not isinstance(output, Tensor) or output.dim() < 3:
            return
        if embedding is None:
            wanted = isinstance(module, nn.Embedding) and _called_with(args, inputs.ids)
        else:
            wanted = module is embedding
        if wanted:
            found.append((module, output.detach()))

    if embedding is None and inputs.is_features:
        yield found
        return
    handle = hooks.register_module_forward_hook(after)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def _swapped(embedding: nn.Module | None, inputs: Inputs) -> Iterator[None]:
    """While this lasts, the embedding gives what the inputs say instead of what it makes."""
    if embedding is None:
        raise UnavailableError("no embedding is known in whose place others could be put")
    given = inputs.need_embeddings()
    times = 0

    def after(module: nn.Module, args: Any, output: Any) -> Tensor | None:
        nonlocal times
        if not isinstance(output, Tensor) or output.shape != given.shape:
            return None
        by_ids = not inputs.is_features and isinstance(module, nn.Embedding)
        if by_ids and not _called_with(args, inputs.ids):
            return None
        times += 1
        return given

    handle = embedding.register_forward_hook(after)
    try:
        yield
        if not times:
            raise RegardError(
                f"the embedding {type(embedding).__name__} was not called with these ids, so "
                "other embeddings did not reach the model"
            )
    finally:
        handle.remove()


def _called_with(args: Any, ids: Tensor) -> bool:
    if not args or not isinstance(args[0], Tensor):
        return False
    return args[0] is ids or (args[0].shape == ids.shape and torch.equal(args[0], ids))
