"""Feature maps φ of linear attention: queries and keys to the features whose products are weights.

A feature map is a part, called as `feature_map(x, side)`:

| argument | meaning                                                  |
|----------|----------------------------------------------------------|
| `x`      | (batch, head, position, head width), queries or keys     |
| `side`   | `"query"` or `"key"`, for maps that treat them apart     |
| result   | (batch, head, position, features)                        |

A position's features depend on that position alone: a map that looked at others, as one that
subtracts a maximum over keys, would let the future into a causal attention. Any `nn.Module` that is
called in this way serves; `nonnegative` on it says that its features are never below 0, so that
normalised weights are a distribution, and `normalised` that their length is at most 1, so that the
delta rule is stable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import RegardError
from regard.softmax import exp

Side = Literal["query", "key"]


class FeatureMap(nn.Module, ABC):
    """Features of queries and keys; the module's docstring has the contract."""

    nonnegative: bool = False  #: features are never below 0
    normalised: bool = False  #: features of a position have a length of at most 1

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "batch head position width"], side: Side
    ) -> Float[Tensor, "batch head position features"]:
        """Features of `x`, as queries or as keys."""

    def advance(self) -> None:
        """Called by a mechanism before a pass that starts without a state; features that are
        drawn at random are drawn again then. Nothing happens here."""

    def draw_number(self) -> Int[Tensor, ""] | None:
        """How often features that are drawn at random have been drawn again; None for others."""
        return None


class IdentityFeatures(FeatureMap):
    """φ(x) = x: queries and keys as they are, the fast weights of 1992."""

    def forward(self, x: Tensor, side: Side) -> Tensor:
        return x


class EluPlusOne(FeatureMap):
    """φ(x) = elu(x) + 1, above 0 everywhere (Katharopoulos et al. 2020, eq. 7).

    >>> import torch
    >>> from regard.mechanisms import EluPlusOne
    >>> EluPlusOne()(torch.tensor([[[[-1.0, 0.0, 2.0]]]]), "key")
    tensor([[[[0.3679, 1.0000, 3.0000]]]])
    """

    nonnegative = True

    def forward(self, x: Tensor, side: Side) -> Tensor:
        # Not F.elu: exp(x) - 1 + 1 rounds to 0, and compiled graphs expect its gradient in a layout
        # (strides) other than the one it has.
        return x.relu() + exp(x.clamp(max=0.0))


class DPFP(FeatureMap):
    """Deterministic parameter-free projection (Schlag et al. 2021, section 5.3).

    With r = (relu(x), relu(-x)), of 2d numbers, φ(x) has r_j · r_{j-i} for each shift i = 1 … ν: a
    pair of numbers that are both positive. They are 2dν features, mostly 0, so that many keys can
    be told apart; they may all be 0.

    Args:
        n_shifts: ν.

    >>> import torch
    >>> from regard.mechanisms import DPFP
    >>> DPFP()(torch.tensor([[[[2.0, 3.0]]]]), "key")
    tensor([[[[0., 6., 0., 0.]]]])
    """

    nonnegative = True

    def __init__(self, n_shifts: int = 1) -> None:
        super().__init__()
        if n_shifts < 1:
            raise RegardError(f"DPFP: n_shifts={n_shifts}, expected at least 1")
        self.n_shifts = n_shifts

    def forward(self, x: Tensor, side: Side) -> Tensor:
        parts = torch.cat([x.relu(), (-x).relu()], -1)  # (batch, head, position, 2 width)
        shifts = range(1, self.n_shifts + 1)
        return torch.cat([parts * parts.roll(shift, -1) for shift in shifts], -1)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"n_shifts={self.n_shifts}"


class SumNormalised(FeatureMap):
    """φ(x) / Σ φ(x), of queries and of keys (Schlag et al. 2021, section 4.2).

    For a non-negative φ the features of a position sum to 1, which is what keeps the delta rule
    stable. Features that are all 0, as those of DPFP can be, stay 0.

    Args:
        feature_map: the φ that is divided by its sum.

    >>> import torch
    >>> from regard.mechanisms import EluPlusOne, SumNormalised
    >>> SumNormalised(EluPlusOne())(torch.randn(1, 2, 3, 4), "key").sum(-1).allclose(torch.ones(3))
    True
    """

    def __init__(self, feature_map: nn.Module) -> None:
        super().__init__()
        if not is_nonnegative(feature_map):
            raise RegardError(
                f"SumNormalised: {type(feature_map).__name__} may give negative features, whose "
                "sum may be 0; expected a map such as EluPlusOne, or use UnitNormalised"
            )
        self.feature_map = feature_map
        self.nonnegative = self.normalised = True

    def forward(self, x: Tensor, side: Side) -> Tensor:
        features: Tensor = self.feature_map(x, side)
        total = features.sum(-1, keepdim=True)
        return features / torch.where(total > 0.0, total, 1.0)


class UnitNormalised(FeatureMap):
    """φ(x) / √(‖φ(x)‖² + ε): features of Euclidean length 1, as in the gated delta rule.

    Args:
        feature_map: the φ that is divided by its length; `IdentityFeatures()` when None.
        epsilon: added to the squared length, so that zeros stay zeros.

    >>> import torch
    >>> from regard.mechanisms import UnitNormalised
    >>> UnitNormalised()(torch.tensor([[[[3.0, 4.0]]]]), "query")
    tensor([[[[0.6000, 0.8000]]]])
    """

    normalised = True

    def __init__(self, feature_map: nn.Module | None = None, *, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.feature_map = IdentityFeatures() if feature_map is None else feature_map
        self.nonnegative = is_nonnegative(self.feature_map)
        self.epsilon = epsilon

    def forward(self, x: Tensor, side: Side) -> Tensor:
        features: Tensor = self.feature_map(x, side)
        return features * (features.square().sum(-1, keepdim=True) + self.epsilon).rsqrt()

    def extra_repr(self) -> str:
        """What `print(module)` shows besides the inner map."""
        return f"epsilon={self.epsilon:g}"


def advance(feature_map: nn.Module) -> None:
    """Tell a map, and those inside it, that a pass starts."""
    for module in feature_map.modules():
        if isinstance(module, FeatureMap):
            module.advance()


def draw_number(feature_map: nn.Module) -> Int[Tensor, ""] | None:
    """How often what is random in a map, and in those inside it, has been drawn again."""
    maps = [module for module in feature_map.modules() if isinstance(module, FeatureMap)]
    numbers = [number for each in maps if (number := each.draw_number()) is not None]
    return torch.stack(numbers).sum() if numbers else None


def is_nonnegative(feature_map: nn.Module) -> bool:
    """Whether a map, ours or a stranger's, says that its features are never below 0."""
    return bool(getattr(feature_map, "nonnegative", False))
