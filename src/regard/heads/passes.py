"""Passes of a model for measurement: how it is run on a batch, and left as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.anatomy.modes import evaluation_mode
from regard.errors import RegardError, ShapeError

#: How a model is run on one batch.
Run = Callable[[Any, Any], Any]
#: A loss of what the model returned and of the batch.
Loss = Callable[[Any, Any], Tensor]


@contextmanager
def undisturbed(model: nn.Module, *, frozen: bool = True, eval_mode: bool = True) -> Iterator[None]:
    """Eval mode and frozen parameters within a block; modes and random numbers are restored."""
    asking = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with ExitStack() as stack:
        stack.enter_context(same_random_numbers(model))
        stack.enter_context(torch.inference_mode(False))
        if "torch._dynamo" in sys.modules:  # compiled code would not see the hooks
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if eval_mode:
            stack.enter_context(evaluation_mode(model))
        for parameter, asks in asking:
            stack.callback(parameter.requires_grad_, asks)
            if frozen:
                parameter.requires_grad_(False)
        yield


@contextmanager
def same_random_numbers(model: nn.Module) -> Iterator[None]:
    """Random numbers drawn inside are drawn again after it."""
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


def batches_of(data: Any) -> Iterator[Any]:
    """The batches of `data`, which must not be a batch itself."""
    if isinstance(data, Tensor | Mapping | str) or not isinstance(data, Iterable):
        shape = f" of shape {tuple(data.shape)}" if isinstance(data, Tensor) else ""
        raise RegardError(
            f"data is a {type(data).__name__}{shape}, expected a list or a loader of batches: for "
            "a single one data=[batch]"
        )
    return iter(data)


def run_on(model: Any, inputs: Any) -> Any:
    """A model on one batch: a mapping is named arguments, a tuple several."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    if isinstance(inputs, Tensor):
        return model(inputs)
    raise RegardError(
        f"data: an element is a {type(inputs).__name__}, expected a tensor, a tuple of arguments "
        "or a dictionary of named ones; for others say run=lambda model, inputs: …"
    )


def losses_of(loss: Loss, output: Any, inputs: Any) -> Tensor:
    """The losses of one batch, (example,), or one number as a tensor without axes."""
    losses: Any = loss(output, inputs)
    if not isinstance(losses, Tensor) or losses.dim() > 1 or not losses.is_floating_point():
        shown = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ShapeError(
            f"loss gave {shown}, expected floating point losses (batch,), one for each example, as "
            "of F.cross_entropy(…, reduction='none'), or one number"
        )
    return losses
