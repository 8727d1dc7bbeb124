"""Passes of a model for measurement: in eval mode, with its embedding observed or replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.anatomy.modes import evaluation_mode
from regard.errors import RegardError, UnavailableError
from regard.explain.tasks.inputs import Inputs

Model = Callable[..., Any]


def call(model: Model, inputs: Inputs, embedding: nn.Module | None = None) -> Any:
    """What the model returns for these inputs, with their embeddings where they were changed."""
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        if inputs.swapped:
            stack.enter_context(_replaced_embedding(embedding, inputs))
        if list(inputs.named) == [""]:
            return model(inputs.named[""])
        return model(**inputs.named)


def outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules that are inside no other."""
    candidates = list(modules)
    inside = {
        id(child) for module in candidates for child in module.modules() if child is not module
    }
    return [module for module in candidates if id(module) not in inside]


@contextmanager
def observed_embedding(
    inputs: Inputs, embedding: nn.Module | None
) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Yields the embedding that is called with the ids, or the one named, with its output.

    The hook is global, since the model may be a function, whose modules are unknown.
    """
    calls: list[tuple[nn.Module, Tensor]] = []

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if calls or not isinstance(output, Tensor) or output.dim() < 3:
            return
        if embedding is None:
            wanted = isinstance(module, nn.Embedding) and _called_with(args, inputs.ids)
        else:
            wanted = module is embedding
        if wanted:
            calls.append((module, output.detach()))

    if embedding is None and inputs.is_features:
        yield calls
        return
    handle = hooks.register_module_forward_hook(after)
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def _replaced_embedding(embedding: nn.Module | None, inputs: Inputs) -> Iterator[None]:
    """Replace the output of the embedding by the inputs' embeddings within a block."""
    if embedding is None:
        raise UnavailableError("no embedding was found whose output could be replaced")
    embeddings = inputs.need_embeddings()
    times = 0

    def after(module: nn.Module, args: Any, output: Any) -> Tensor | None:
        nonlocal times
        if not isinstance(output, Tensor) or output.shape != embeddings.shape:
            return None
        by_ids = not inputs.is_features and isinstance(module, nn.Embedding)
        if by_ids and not _called_with(args, inputs.ids):
            return None
        times += 1
        return embeddings

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
