"""The list of laws of blocks, and what the laws share."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks import Blocked
from regard.contract import Attended
from regard.testing.law import Law, law
from regard.testing.subject import Subject, Unchecked, weights_of

BLOCK_LAWS: dict[str, Law] = {}
#: Enters a check function into the list under its own name.
block_law = partial(law, into=BLOCK_LAWS)


def takes_context(subject: Subject) -> bool:
    """Whether the block attends to a context: it says so, or a width was given for one."""
    needs = getattr(subject.build(), "needs_context", None)
    return subject.sizes.key_width is not None if needs is None else bool(needs)


def needs_context(subject: Subject) -> None:
    """Raise `Unchecked` where the block attends to itself only."""
    if not takes_context(subject):
        raise Unchecked("the block attends to no context")


def sides(
    subject: Subject,
    dtype: torch.dtype = torch.float64,
    *,
    length: int | None = None,
    context_length: int | None = None,
    seed: int = 1,
) -> tuple[Tensor, ...]:
    """x, and a context where the block attends to one."""
    x, context, _ = subject.inputs(dtype, queries=length, keys=context_length, seed=seed)
    return (x, context) if takes_context(subject) else (x,)


def run(module: nn.Module, *inputs: Tensor, **options: Any) -> Blocked:
    """Call a block and make sure that it returned a `Blocked`."""
    blocked = module(*inputs, **options)
    assert isinstance(blocked, Blocked), (
        f"forward returned {type(blocked).__name__}, expected regard.blocks.Blocked"
    )
    return blocked


def of_kind(blocked: Blocked, kind: str) -> dict[str, Attended]:
    """The attentions named `self` or `cross`, alone or behind the number of their layer."""
    found = blocked.attentions.items()
    return {name: attended for name, attended in found if name.split(".")[-1] == kind}


def all_weights(blocked: Blocked, kind: str | None = None) -> dict[str, Tensor]:
    """The weights by name, which must be there because they were asked for."""
    found = blocked.attentions if kind is None else of_kind(blocked, kind)
    assert found, f"there is no attention named {kind or 'self'}"
    return {name: weights_of(attended) for name, attended in found.items()}


def finite_gradients(module: nn.Module, loss: Tensor, cause: str) -> None:
    """Fail where a gradient of a parameter is not finite."""
    loss.backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), f"{cause}: gradient of {name} is not finite"
