"""The type of a head in one word, from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.aggregate.statistics.head_sums import SINK

SHARE = 0.4  #: of the attention on one thing, from which a head is named after it
EVEN = 0.85  #: evenness from which a head is broad
LOCAL = 0.6  #: of the attention within the window, from which a head is local
POSITIONAL = 0.6  #: share that relative position explains, from which a head is positional
CONTENT = 0.3  #: the same share, and the largest of one key, up to which a head follows content
SHARP = 0.6  #: evenness up to which a head is sharp
REPEATS = 10  #: queries with an earlier copy, from which induction can be told
REST = 0.1  #: of the attention left without the sink, from which it is given a type
WITH_SINK = "with a sink"  #: said of a head whose type is that of the rest of its attention


class Type(NamedTuple):
    """How heads of a type are shown."""

    sign: str  #: stands for it in a grid
    figure: str  #: ranks its heads
    least: bool = False  #: whether those with the least come first


TYPES = {
    "previous": Type("p", "previous"),
    "next": Type("n", "next"),
    "self": Type("o", "itself"),
    "induction": Type("i", "induction"),
    "duplicate": Type("d", "duplicate"),
    "broad": Type("b", "evenness"),
    "special": Type("*", "special"),
    "sink": Type("s", "peak"),
    "local": Type("l", "local"),
    "positional": Type("+", "positional"),
    "content": Type("c", "evenness", least=True),
    "sharp": Type("!", "evenness", least=True),
    "mixed": Type("·", "evenness"),
}
NAMES = tuple(TYPES)  #: the words, by number
_PATTERNS = (
    "previous",
    "next",
    "itself",
    "induction",
    "duplicate",
)  # the figures of the first ones
_NUMBER = {name: number for number, name in enumerate(NAMES)}

Figures = Mapping[str, Float[Tensor, "*head"]]


class HeadTypes(NamedTuple):
    """Types of heads."""

    numbers: Int[Tensor, "*head"]  #: of the words in `NAMES`
    with_sink: Bool[Tensor, "*head"]  #: whether a sink was set aside


def head_types(
    figures: Figures, repeats: Tensor | int = 0, rest: Figures | None = None
) -> HeadTypes:
    """The type of each head, and whether a sink was set aside for it.

    Args:
        figures: by name, as in `HeadStatistics`; of any shape.
        repeats: how many queries `induction` and `duplicate` are the mean of.
        rest: the same figures of what does not go to a sink.
    """
    whole = _types(figures, repeats)
    if rest is None:
        return HeadTypes(whole, torch.zeros_like(whole, dtype=torch.bool))
    broad, sink, special = (_NUMBER[name] for name in ("broad", "sink", "special"))
    judged = (figures["aside"] >= SINK) & (whole != broad)
    beside = _types(rest, repeats)
    nothing = (figures["aside"] > 1 - REST) | (beside == broad) | (beside == sink)  # or a second
    alone = torch.where(whole == special, whole, sink)
    return HeadTypes(
        torch.where(judged, torch.where(nothing, alone, beside), whole), judged & ~nothing
    )


def _types(figures: Figures, repeats: Tensor | int) -> Int[Tensor, "*head"]:
    """The first rule that holds; no comparison does for NaN."""
    shares = torch.stack([figures[name] for name in _PATTERNS]).nan_to_num(0.0)
    shares[3:] *= torch.as_tensor(repeats) >= REPEATS
    shares = shares.round(decimals=6)  # of equals the first one counts, whatever rounding says
    pattern = shares.argmax(0)
    strong = shares.amax(0) >= SHARE
    evenness, positional, peak = (figures[name] for name in ("evenness", "positional", "peak"))
    special = figures["special"]
    sharp = evenness <= SHARP
    rules = {
        "broad": evenness >= EVEN,
        "special": (special >= SHARE) & (figures["sink"] < special / 2),
        "sink": peak >= SHARE,
        "local": figures["local"] >= LOCAL,
        "positional": positional >= POSITIONAL,
        "content": sharp & (torch.maximum(positional, peak) <= CONTENT),
        "sharp": sharp & positional.isnan(),
    }
    numbers = torch.full_like(pattern, _NUMBER["mixed"])
    for name, holds in reversed(rules.items()):
        numbers = torch.where(holds, _NUMBER[name], numbers)
    return torch.where(strong, pattern, numbers)
