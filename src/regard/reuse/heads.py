"""Several heads in a reuse layer: each mixing features of its own, or joined to one map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.aggregate.combine_heads import Fusion, one_head, weighting
from regard.checks import check_sizes
from regard.errors import RegardError, ShapeError
from regard.softmax import product
from regard.types import Features, Weights

_RULES = ("mean", "max", "min", "concat")


class LearnedHeadMix(nn.Module):
    """One map of several heads, Σₕ softmax(m)ₕ Aₕ, with m learned; the mean at the start.

    >>> import torch
    >>> from regard.reuse import LearnedHeadMix
    >>> mix = LearnedHeadMix(2)
    >>> mix(torch.eye(3).expand(1, 2, 3, 3)).shape
    torch.Size([1, 1, 3, 3])
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        check_sizes("LearnedHeadMix", n_heads=n_heads)
        self.n_heads = n_heads
        self.scores = nn.Parameter(torch.zeros(n_heads))

    def shares(self) -> Tensor:
        """The weight of each head, (head,); they sum to 1."""
        return self.scores.softmax(0)

    def forward(self, weights: Weights) -> Tensor:
        """(batch, head, query, key) to (batch, 1, query, key)."""
        if weights.shape[1] != self.n_heads:
            raise ShapeError(
                f"LearnedHeadMix: axis head has size {weights.shape[1]}, expected {self.n_heads}"
            )
        return _weighted_sum(weights, self.shares())

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"{self.n_heads} heads"


class OwnSlices(nn.Module):
    """Each head mixes its own slice of the features, width / heads of them, in order."""

    def forward(self, features: Features, n_heads: int) -> Tensor:
        """(batch, key, width) to (batch, head, key, width / heads)."""
        width = features.shape[2]
        if width % n_heads:
            raise ShapeError(
                f"OwnSlices: axis width has size {width}, expected a multiple of {n_heads}, the "
                "heads"
            )
        slices: Tensor = features.unflatten(-1, (n_heads, width // n_heads)).transpose(1, 2)
        return slices

    def mixed_width(self, width: int, n_heads: int) -> int:
        """Features of all heads together, after mixing."""
        if width % n_heads:
            raise ShapeError(
                f"WeightedAggregation: width {width}, expected a multiple of {n_heads}, the heads, "
                "each of which mixes its own slice (OwnSlices); heads='mean' mixes all of them"
            )
        return width


class OwnProjections(nn.Module):
    """Each head mixes its own projection of the features, like the values of an attention.

    Args:
        width: features that come in.
        n_heads: how many heads.
        head_width: features a head mixes; width / heads when None.
    """

    def __init__(self, width: int, n_heads: int, *, head_width: int | None = None) -> None:
        super().__init__()
        check_sizes("OwnProjections", width=width, n_heads=n_heads)
        if head_width is None and width % n_heads:
            raise ShapeError(
                f"OwnProjections: width {width}, expected a multiple of {n_heads}, the heads, "
                "unless head_width is given"
            )
        self.width, self.n_heads = width, n_heads
        self.head_width = width // n_heads if head_width is None else head_width
        check_sizes("OwnProjections", head_width=self.head_width)
        self.project = nn.Linear(width, n_heads * self.head_width, bias=False)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, features: Features, n_heads: int) -> Tensor:
        """(batch, key, width) to (batch, head, key, head width)."""
        projected: Tensor = self.project(features)
        slices: Tensor = projected.unflatten(-1, (self.n_heads, self.head_width))
        return slices.transpose(1, 2)

    def mixed_width(self, width: int, n_heads: int) -> int:
        """Features of all heads together, after mixing."""
        if (width, n_heads) != (self.width, self.n_heads):
            raise ShapeError(
                f"OwnProjections: made for width {self.width} and {self.n_heads} heads, expected "
                f"width {width} and {n_heads} heads as its layer"
            )
        return self.n_heads * self.head_width


#: How heads are joined: a rule of `regard.combine_heads`, a head's number, a weighting (head,), or
#: a learned mix.
Joining = Fusion | LearnedHeadMix


class HeadJoin(nn.Module):
    """`regard.combine_heads` in the autograd graph, or a learned mix of heads.

    Args:
        owner: whose heads, for errors.
        heads: "mean", "max", "min", "concat" (all are kept), the number of a head, a weighting
            (head,), or `LearnedHeadMix(n_heads)`.
        n_heads: number of heads.
    """

    shares: Tensor | None

    def __init__(self, owner: str, heads: Joining, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.mix = heads if isinstance(heads, LearnedHeadMix) else None
        self.rule = heads if isinstance(heads, str) else None
        self.head = heads if isinstance(heads, int) and not isinstance(heads, bool) else None
        if self.mix is not None and self.mix.n_heads != n_heads:
            raise ShapeError(
                f"{owner}: heads: a LearnedHeadMix of {self.mix.n_heads} heads, expected {n_heads}"
            )
        if self.head is not None:
            self.head = one_head(self.head, n_heads)
        shares = weighting(heads, n_heads, 0) if isinstance(heads, Tensor) else None
        self.register_buffer("shares", shares)
        if all(way is None for way in (self.mix, shares, self.head)) and self.rule not in _RULES:
            raise RegardError(
                f"{owner}: heads={heads!r}, expected {', '.join(map(repr, _RULES))}, the number of "
                f"a head, a weighting ({n_heads},), or LearnedHeadMix({n_heads})"
            )
        self.maps = n_heads if self.rule == "concat" else 1  #: maps after joining
        single = n_heads == 1 and (self.rule is not None or self.head is not None)
        self.is_identity = self.rule == "concat" or single

    def forward(self, weights: Weights) -> Tensor:
        """(batch, head, query, key) to (batch, 1, query, key); "concat" keeps all heads."""
        if self.mix is not None:
            mixed: Tensor = self.mix(weights)
            return mixed
        if self.shares is not None:
            return _weighted_sum(weights, self.shares)
        if self.head is not None:
            return weights[:, self.head : self.head + 1]
        if self.rule == "concat":
            return weights
        if self.rule == "mean":
            return weights.mean(1, keepdim=True)
        return (
            weights.amax(1, keepdim=True) if self.rule == "max" else weights.amin(1, keepdim=True)
        )

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        if self.mix is not None:
            return ""
        return self.rule or ("a weighting" if self.head is None else f"head {self.head}")


def _weighted_sum(weights: Tensor, shares: Tensor) -> Tensor:
    """Σₕ sharesₕ Aₕ, as one product over the heads."""
    shares = shares.to(weights.device, weights.dtype)
    flat = product(shares[None, None], weights.flatten(2))  # (batch, 1, query · key)
    return flat.reshape(weights.shape[0], 1, *weights.shape[2:])
