"""The list of laws of blocks, and what the laws share."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks import BlockOutput
from regard.blocks.sets import SetBlock
from regard.contract import Attended, Mechanism
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


def takes_sets(subject: Subject) -> bool:
    """Whether it is a module on sets, whose output may have another length than x."""
    return isinstance(subject.build(), SetBlock)


def attends_itself(subject: Subject) -> bool:
    """Whether positions of x see each other by an attention `self`."""
    return not takes_sets(subject) and getattr(subject.build(), "attends_itself", True)


def needs_self(subject: Subject) -> None:
    """Raise `Unchecked` where the block has no self-attention."""
    if not attends_itself(subject):
        raise Unchecked("the block has no attention named self")


def needs_scores(subject: Subject, why: str) -> None:
    """Raise `Unchecked` where a mechanism inside has a memory in place of scores."""
    parts = [part for part in subject.build().modules() if isinstance(part, Mechanism)]
    if not all(part.traits.scored for part in parts):
        raise Unchecked(f"a mechanism inside has a memory in place of scores: {why}")


def check_shape(subject: Subject, output: Tensor, x: Tensor, what: str) -> None:
    """Fail where the output has not x's shape, or not as many positions as a set's module says."""
    module, got, want = subject.build(), tuple(output.shape), tuple(x.shape)
    if isinstance(module, SetBlock) and module.n_outputs is not None:
        got, want = got[:2], (want[0], module.n_outputs)  # its width is its own
    assert got == want, f"{what}: output is {got}, expected {want}"


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


def run(module: nn.Module, *inputs: Tensor, **options: Any) -> BlockOutput:
    """Call a block and make sure that it returned a `BlockOutput`."""
    blocked = module(*inputs, **options)
    assert isinstance(blocked, BlockOutput), (
        f"forward returned {type(blocked).__name__}, expected regard.blocks.BlockOutput"
    )
    return blocked


def of_kind(blocked: BlockOutput, kind: str) -> dict[str, Attended]:
    """The attentions named `self` or `cross`, alone or behind what tells their layer."""
    found = blocked.attentions.items()
    return {name: attended for name, attended in found if name.split(".")[-1] == kind}


def all_weights(blocked: BlockOutput, kind: str | None = None) -> dict[str, Tensor]:
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
