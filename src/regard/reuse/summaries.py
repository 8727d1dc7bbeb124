"""What can be said of a position by the weights alone, in numbers that training goes through.

| name          | of the | meaning                                                                |
|---------------|--------|------------------------------------------------------------------------|
| `received`    | key    | log(1 + Σᵢ Aᵢⱼ): the attention it receives; the logarithm tames sinks   |
| `entropy`     | query  | −Σⱼ Aᵢⱼ log Aᵢⱼ: how spread out its row is, in nats                     |
| `strongest`   | query  | maxⱼ Aᵢⱼ: the largest weight of its row                                 |
| `self_weight` | self   | Aᵢᵢ: what it gives to itself, where queries and keys are one sequence   |

A row's mean or sum is not among them. Rows of weights sum to 1, so the mean over S keys is 1/S
whatever the model looks at: a layer that is given it learns from a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import RegardError, UnavailableError
from regard.kernel.reduce import reduce
from regard.kernel.reducers import Entropy, ReceivedAttention, TopK
from regard.reuse.checks import at_least_one, check_heads, check_same_positions
from regard.reuse.heads import Join, Joining
from regard.reuse.passes import at_once, plainly
from regard.reuse.source import SIDES, Side, Source

#: The summaries on offer, and whose positions each is about.
SUMMARIES: dict[str, Side] = {
    "received": "key",
    "entropy": "query",
    "strongest": "query",
    "self_weight": "self",
}
_NOT_OF = {"entropy": ("signed", "gate"), "received": ("signed",)}
_CONSTANT = ("mean", "sum", "average", "avg", "total", "given")


class PositionSummaries(nn.Module):
    """Summaries of the weights as channels of each position, (batch, position, channels).

    `received` is made of later rows too: where masks say that weights are causal it is refused.

    Args:
        n_heads: heads of the weights that will come.
        side: whose positions: "query", "key", or "self" where they are the same.
        summaries: names from the table above; all that the side has when None.
        heads: "concat" keeps a channel a head; "mean", "max", a number, a weighting or
            `LearnedHeadMix(n_heads)` join the maps first.
    """

    sides = SIDES
    place = "PositionSummaries"  # whose errors these are

    def __init__(
        self,
        n_heads: int,
        *,
        side: Side = "self",
        summaries: Sequence[str] | None = None,
        heads: Joining = "concat",
    ) -> None:
        super().__init__()
        at_least_one("PositionSummaries", n_heads=n_heads)
        self.n_heads, self.side = n_heads, checked_side("PositionSummaries", side)
        self.summaries = checked_summaries(summaries, side)
        self.join = Join("PositionSummaries", heads, n_heads)
        self.channels = len(self.summaries) * self.join.maps

    def forward(self, source: Source) -> Tensor:
        """(batch, position, summary · head), each summary's heads side by side."""
        check_heads(self.place, source, self.n_heads)
        if self.side == "self":
            check_same_positions(self.place, source)
        if "received" in self.summaries and source.causal:
            self._refuse_the_future(source)
        for name, kinds in _NOT_OF.items():
            if name in self.summaries and source.kind in kinds:
                raise UnavailableError(
                    f"{self.place}: {source.name} are {source.kind} weights, of which "
                    f"{name!r} says nothing"
                )
        found = self._streamed(source) or self._dense(source)
        channels = torch.cat([found[name] for name in self.summaries], dim=1)
        return channels.transpose(1, 2)  # (batch, position, channel)

    def _refuse_the_future(self, source: Source) -> None:
        others = [name for name in self.summaries if name != "received"]
        instead = f"summaries={others}" if others else "side='query'"
        raise UnavailableError(
            f"{self.place}: {source.name} are causal, and 'received' sums over later queries too: "
            f"a position would know what comes after it. Take {instead}; where texts are always "
            "whole, pass the weights as a tensor, which knows of no mask"
        )

    def _dense(self, source: Source) -> dict[str, Tensor]:
        rows = source.real_rows(self.side)
        if self.join.changes_nothing and not torch.compiler.is_compiling():
            allowed = source.allowed(self.side)
            return at_once(source.unmasked(), self.summaries, allowed, rows)
        weights = self.join(source.weights(self.side))
        summarise = plainly if torch.compiler.is_compiling() else at_once
        return summarise(weights, self.summaries, None, rows)

    def _streamed(self, source: Source) -> dict[str, Tensor] | None:
        """The same from the recipe, tile by tile, where no matrix and no gradient is needed."""
        apart = self.join.changes_nothing
        if "self_weight" in self.summaries or not apart or 0 in source.shape or not source.streams:
            return None
        recipe: Any = source.recipe
        real = source.real_rows(self.side)
        if real is not None:
            rows = real.expand(source.shape.batch, -1).long()
            nobody = masks.segments(rows, torch.ones_like(rows))  # padding looks at nothing
            if not hasattr(recipe, "mask"):
                return None
            recipe = replace(recipe, mask=masks.both(recipe.mask, nobody))
        asked = {"received": ReceivedAttention(), "entropy": Entropy(), "strongest": TopK(1)}
        answers = reduce(recipe, [asked[name] for name in self.summaries])
        found = dict(zip(self.summaries, answers))
        if "strongest" in found:
            found["strongest"] = found["strongest"].weights[..., 0]
        if "received" in found:
            found["received"] = found["received"].log1p()
        return found

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{', '.join(self.summaries)} of the {self.side} side, {self.channels} channels"


def checked_side(place: str, side: Any) -> Side:
    """The side, where it is one."""
    if side not in SIDES:
        raise RegardError(f"{place}: side={side!r}, expected 'query', 'key' or 'self'")
    found: Side = side
    return found


def checked_summaries(names: Sequence[str] | None, side: Side) -> tuple[str, ...]:
    """Names that are on offer for a side, or an error that says why one is not."""
    offered = [name for name, of in SUMMARIES.items() if side in ("self", of)]
    if names is None:
        return tuple(offered)
    if isinstance(names, str):
        raise RegardError(f"summaries={names!r}, expected a list of names, as [{names!r}]")
    for name in names:
        if name not in SUMMARIES and any(word in str(name).lower() for word in _CONSTANT):
            raise RegardError(
                f"summaries: {name!r} is constant by construction: every row of weights sums to 1, "
                "so its mean over S keys is 1/S whatever is attended to, and a layer learns "
                f"nothing from it. Offered: {', '.join(SUMMARIES)}"
            )
        if name not in SUMMARIES:
            raise RegardError(f"summaries: {name!r}, expected some of {', '.join(SUMMARIES)}")
        if name == "self_weight" and side != "self":
            raise RegardError(
                "summaries: 'self_weight' needs queries and keys that are the same positions; "
                f"with side={side!r}, as for cross-attention, a position has no weight on itself"
            )
        if name not in offered:
            raise RegardError(
                f"summaries: {name!r} is of the {SUMMARIES[name]} side, but side={side!r}; offered "
                f"there: {', '.join(offered)}"
            )
    if not names or len(set(names)) < len(names):
        raise RegardError(f"summaries={list(names)}, expected at least one name, each once")
    return tuple(names)
