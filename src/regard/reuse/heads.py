"""How a reuse layer takes several heads: each for itself, or joined to one map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.aggregate.combine_heads import Fusion, one_head, weighting
from regard.errors import RegardError, ShapeError
from regard.normalise import product
from regard.reuse.checks import at_least_one
from regard.reuse.passes import extreme
from regard.types import Features, Weights

_WORDS = ("mean", "max", "min", "concat")


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
        at_least_one("LearnedHeadMix", n_heads=n_heads)
        self.n_heads = n_heads
        self.scores = nn.Parameter(torch.zeros(n_heads))

    def shares(self) -> Tensor:
        """How much of each head, (head,); they sum to 1."""
        return self.scores.softmax(0)

    def forward(self, weights: Weights) -> Tensor:
        """(batch, head, query, key) to (batch, 1, query, key)."""
        if weights.shape[1] != self.n_heads:
            raise ShapeError(
                f"LearnedHeadMix: axis head has size {weights.shape[1]}, expected {self.n_heads}"
            )
        return _weighed(weights, self.shares())

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
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
        apart: Tensor = features.unflatten(-1, (n_heads, width // n_heads)).transpose(1, 2)
        return apart

    def mixed_width(self, width: int, n_heads: int) -> int:
        """Features of all heads together after mixing."""
        if width % n_heads:
            raise ShapeError(
                f"WeightedAggregation: width {width}, expected a multiple of {n_heads}, the heads, "
                "each of which mixes its own slice (OwnSlices); heads='mean' mixes all of them"
            )
        return width


class OwnProjections(nn.Module):
    """Each head mixes its own projection of the features, as values of an attention are.

    Args:
        width: features that come in.
        n_heads: how many heads.
        head_width: features a head mixes; width / heads when None.
    """

    def __init__(self, width: int, n_heads: int, *, head_width: int | None = None) -> None:
        super().__init__()
        at_least_one("OwnProjections", width=width, n_heads=n_heads)
        if head_width is None and width % n_heads:
            raise ShapeError(
                f"OwnProjections: width {width}, expected a multiple of {n_heads}, the heads, "
                "unless head_width is given"
            )
        self.width, self.n_heads = width, n_heads
        self.head_width = width // n_heads if head_width is None else head_width
        at_least_one("OwnProjections", head_width=self.head_width)
        self.project = nn.Linear(width, n_heads * self.head_width, bias=False)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, features: Features, n_heads: int) -> Tensor:
        """(batch, key, width) to (batch, head, key, head width)."""
        projected = self.project(features).unflatten(-1, (self.n_heads, self.head_width))
        apart: Tensor = projected.transpose(1, 2)
        return apart

    def mixed_width(self, width: int, n_heads: int) -> int:
        """Features of all heads together after mixing."""
        if (width, n_heads) != (self.width, self.n_heads):
            raise ShapeError(
                f"OwnProjections: made for width {self.width} and {self.n_heads} heads, expected "
                f"width {width} and {n_heads} heads as its layer"
            )
        return self.n_heads * self.head_width


#: How heads are joined: a word of `regard.combine_heads`, a number, a weighting (head,), or a
#: learned mix.
Joining = Fusion | LearnedHeadMix


class Join(nn.Module):
    """Heads joined as by `regard.combine_heads`, but in the autograd graph, or by a learned mix.

    Args:
        place: whose heads, for errors.
        heads: "mean", "max", "min", "concat" (all are kept), the number of one head, a weighting
            (head,), or `LearnedHeadMix(n_heads)`.
        n_heads: how many there are.
    """

    shares: Tensor | None

    def __init__(self, place: str, heads: Joining, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.mix = heads if isinstance(heads, LearnedHeadMix) else None
        self.word = heads if isinstance(heads, str) else None
        self.head = heads if isinstance(heads, int) and not isinstance(heads, bool) else None
        if self.mix is not None and self.mix.n_heads != n_heads:
            raise ShapeError(
                f"{place}: heads: a LearnedHeadMix of {self.mix.n_heads} heads, expected {n_heads}"
            )
        if self.head is not None:
            self.head = one_head(self.head, n_heads)
        fixed = weighting(heads, n_heads, 0) if isinstance(heads, Tensor) else None
        self.register_buffer("shares", fixed)
        known = self.word in _WORDS if self.word is not None else self.head is not None
        if not known and self.mix is None and fixed is None:
            raise RegardError(
                f"{place}: heads={heads!r}, expected {', '.join(map(repr, _WORDS))}, the number of "
                f"a head, a weighting ({n_heads},), or LearnedHeadMix({n_heads})"
            )
        self.maps = n_heads if self.word == "concat" else 1  #: how many are left
        named = self.word is not None or self.head is not None
        self.changes_nothing = self.word == "concat" or (n_heads == 1 and named)

    def forward(self, weights: Weights) -> Tensor:
        """(batch, head, query, key) to (batch, 1, query, key); "concat" keeps all heads."""
        if self.mix is not None:
            mixed: Tensor = self.mix(weights)
            return mixed
        if self.shares is not None:
            return _weighed(weights, self.shares)
        if self.head is not None:
            return weights[:, self.head : self.head + 1]
        if self.word == "concat":
            return weights
        if self.word == "mean":
            return weights.mean(1, keepdim=True)
        return extreme(weights, "max" if self.word == "max" else "min")

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        if self.mix is not None:
            return ""
        return self.word or ("a weighting" if self.head is None else f"head {self.head}")


def _weighed(weights: Tensor, shares: Tensor) -> Tensor:
    """Σₕ sharesₕ Aₕ, as one product over the heads."""
    shares = shares.to(weights.device, weights.dtype)
    flat = product(shares[None, None], weights.flatten(2))  # (batch, 1, query · key)
    return flat.reshape(weights.shape[0], 1, *weights.shape[2:])
