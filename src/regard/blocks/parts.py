"""What a block is made of, checked when it is put together."""

from __future__ import annotations

import warnings

from torch import nn

from regard.blocks.sublayers import Sublayer
from regard.contract import Mechanism
from regard.errors import RegardError, ShapeError
from regard.mechanisms import Luong


class NearIdentityWarning(UserWarning):
    """Self-attention without projections: each position attends almost only to itself."""


def check_sublayers(block: nn.Module, **sublayers: Sublayer) -> None:
    """Refuse parts that are not wrapped, that differ in width, or attend where none should."""
    place = type(block).__name__
    widths = set()
    for name, sublayer in sublayers.items():
        if not isinstance(sublayer, Sublayer):
            raise RegardError(
                f"{place}: {name} is {type(sublayer).__name__}, expected a sub-layer: "
                f"PreNorm(width, part) or PostNorm(width, part)"
            )
        attends = name != "feed_forward"
        if attends != isinstance(sublayer.part, Mechanism):
            raise RegardError(
                f"{place}: the part of {name} is {type(sublayer.part).__name__}, expected "
                + ("a regard.Mechanism, as MultiHead" if attends else "a module on features")
            )
        widths.add(sublayer.width)
    if len(widths) > 1:
        found = ", ".join(f"{name} {sublayer.width}" for name, sublayer in sublayers.items())
        raise ShapeError(f"{place}: sub-layers of different width: {found}")


def warn_of_identity(block: nn.Module, attention: Mechanism) -> None:
    """Warn where queries and keys of a self-attention are the same features: nothing is learned."""
    scores = attention.score if isinstance(attention, Luong) else attention  # not its window
    if next(scores.parameters(), None) is None:
        warnings.warn(
            f"{type(block).__name__}: self-attention without projections is nearly the identity: "
            "after scaling by the root of the width a position's score with itself is about "
            "√width, and with others about 1. MultiHead(width, n_heads) projects",
            NearIdentityWarning,
            stacklevel=3,
        )
