"""Gated flow: summaries of an attention at a position gate its features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from regard.checks import check_module_dtype, check_sizes
from regard.errors import RegardError
from regard.reuse.heads import Joining
from regard.reuse.layer import ReuseLayer
from regard.reuse.source import Side, Source
from regard.reuse.summaries import PositionSummaries, checked_side
from regard.types import Features

_GATES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}


class GatedFlow(ReuseLayer):
    """Y = X ∘ (1 + a ∘ g), g = gate(X Wₓ + S Wₛ + b), S the summaries of the weights.

    The gain `a`, one number a feature, starts at 0, so that Y starts as X, bit for bit. (The other
    parameters therefore have no gradient in the first step.)

    | side    | features gated                                       | summaries by default        |
    |---------|------------------------------------------------------|-----------------------------|
    | "query" | (batch, query, width), positions that attend        | entropy, strongest          |
    | "key"   | (batch, key, width), positions attended to          | received                    |
    | "self"  | (batch, position, width), where both are the same  | all, self_weight too        |

    `received` depends on later queries, so causal weights refuse it: pass `summaries`.

    Args:
        width: features a position.
        n_heads: number of heads of the weights.
        side: whose features are gated.
        summaries: names in `regard.reuse.SUMMARIES`; all that the side has when None.
        heads: "concat" gives the gate the summaries of every head; "mean", "max", a number, a
            weighting or `LearnedHeadMix(n_heads)` join the maps first.
        gate: "sigmoid", from 0 to 1, or "tanh", from −1 to 1.

    >>> import torch
    >>> from regard.mechanisms import MultiHead
    >>> from regard.reuse import GatedFlow
    >>> attn, flow = MultiHead(16, 4), GatedFlow(16, 4)
    >>> x = torch.randn(2, 5, 16)
    >>> bool(flow(x, attn(x, weights=True)).equal(x))
    True
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        *,
        side: Side = "self",
        summaries: Sequence[str] | None = None,
        heads: Joining = "concat",
        gate: Literal["sigmoid", "tanh"] = "sigmoid",
    ) -> None:
        super().__init__()
        if gate not in _GATES:
            raise RegardError(f"GatedFlow: gate={gate!r}, expected 'sigmoid' or 'tanh'")
        check_sizes("GatedFlow", width=width, n_heads=n_heads)
        self.width, self.side, self.gate = width, checked_side("GatedFlow", side), gate
        self.summarise = PositionSummaries(n_heads, side=side, summaries=summaries, heads=heads)
        self.summarise.owner = "GatedFlow"
        self.from_features = nn.Linear(width, width)
        self.from_summaries = nn.Linear(self.summarise.channels, width, bias=False)
        self.gain = nn.Parameter(torch.zeros(width))

    def reuse(self, features: Features, source: Source) -> Tensor:
        """The features, gated: (batch, position, width); 0 where padding held NaN."""
        source.check_features("GatedFlow", features, self.width, self.side)
        check_module_dtype("GatedFlow: features", features, self)
        features = source.clean(features, self.side)
        summaries = self.summarise(source).to(self.from_summaries.weight.dtype)
        finite = features.nan_to_num(0.0, 0.0, 0.0)  # so that a gain of 0 times the gate is 0
        gate = _GATES[self.gate](self.from_features(finite) + self.from_summaries(summaries))
        wide = torch.promote_types(features.dtype, torch.float32)
        passes = torch.addcmul(gate.new_ones((), dtype=wide), self.gain.to(wide), gate.to(wide))
        return (features * passes).to(features.dtype)

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"gates the {self.side} side, {self.gate}"
