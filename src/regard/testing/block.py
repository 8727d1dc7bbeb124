"""`check_block`: every law of blocks, on any module with their signature."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn

from regard.errors import RegardError
from regard.testing import (  # importing a file enters its laws into the list
    laws_block_compile,
    laws_block_errors,
    laws_block_masks,
    laws_block_state,
    laws_block_training,
    laws_block_weights,
)
from regard.testing.block_law import BLOCK_LAWS
from regard.testing.mechanism import Check, Report, reported
from regard.testing.subject import Sizes, Subject

#: What goes wrong most plainly is said first, what takes longest last.
_ORDER = [
    file.__name__
    for file in (
        laws_block_weights,
        laws_block_masks,
        laws_block_state,
        laws_block_training,
        laws_block_errors,
        laws_block_compile,
    )
]


def block_checks(
    build: Callable[[], nn.Module],
    *,
    width: int = 16,
    context_width: int | None = None,
    batch: int = 2,
    length: int = 5,
    context_length: int = 7,
    without: Collection[str] = (),
) -> list[Check]:
    """One check for each law, to run by yourself or to give to `pytest.mark.parametrize`."""
    if isinstance(build, nn.Module):
        raise RegardError("build is a module; pass what makes one: lambda: MyBlock(16)")
    unknown = set(without) - set(BLOCK_LAWS)
    if unknown:
        names = ", ".join(BLOCK_LAWS)
        raise RegardError(f"without={sorted(unknown)}: no such law; there are {names}")
    subject = Subject(build, Sizes(width, context_width, None, batch, length, context_length))
    laws = sorted(BLOCK_LAWS.values(), key=lambda law: _ORDER.index(law.check.__module__))
    return [Check(law, subject) for law in laws if law.name not in without]


def check_block(
    build: Callable[[], nn.Module],
    *,
    width: int = 16,
    context_width: int | None = None,
    batch: int = 2,
    length: int = 5,
    context_length: int = 7,
    without: Collection[str] = (),
) -> Report:
    """Check every law of blocks on a module, ours or anybody's.

    Args:
        build: makes a new block each time it is called.
        width: features of a position.
        context_width: features of the context; `width` when None. A module that does not say
            whether it `needs_context` is given one where this is set.
        batch: examples of the inputs.
        length: positions of x, at least 4.
        context_length: positions of the context, at least 4.
        without: names of laws to leave out.

    Returns:
        What holds, and what could not be seen and why.

    Raises:
        ContractError: with every law that is broken.

    >>> from regard.blocks import EncoderBlock, FeedForward, PreNorm
    >>> from regard.mechanisms import MultiHead
    >>> from regard.testing import check_block
    >>> def build():
    ...     return EncoderBlock(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8)))
    >>> report = check_block(build, width=8, without=["compiles", "exports"])
    >>> "causality" in report.passed
    True
    """
    return reported(
        block_checks(
            build,
            width=width,
            context_width=context_width,
            batch=batch,
            length=length,
            context_length=context_length,
            without=without,
        )
    )
