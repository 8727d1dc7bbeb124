"""How scores become weights: softmax, sigmoid, sparsemax, α-entmax."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.softmax import softmax
from regard.types import Kind, Scores, Weights, register_pytree


class Normaliser(ABC):
    """How a row of scores becomes a row of weights. It holds numbers, no tensors."""

    kind: ClassVar[Kind] = "distribution"  #: what its rows are
    whole_rows: ClassVar[bool] = True  #: whether a weight depends on the other scores of its row

    @abstractmethod
    def weights(self, scores: Scores, sink: Tensor | None = None) -> Weights:
        """Weights of whole rows: 0 where a score is -inf, and in a row without any other.

        Args:
            scores: float32 or float64.
            sink: one more score, (1, head, 1, 1), that takes its share and has no column.
        """


@dataclass(frozen=True)
class Softmax(Normaliser):
    """exp(sᵢ) / Σ exp(s): the default, and the only one that fused kernels know."""

    def weights(self, scores: Scores, sink: Tensor | None = None) -> Weights:
        return softmax(scores, sink)


SOFTMAX = Softmax()


@dataclass(frozen=True)
class Sigmoid(Normaliser):
    """σ(sᵢ + bias): every weight by itself, so that rows sum to anything.

    Ramapuram et al. 2024, "Theory, analysis, and best practices for sigmoid self-attention": their
    b is `bias`, −log n for sequences of n tokens, with which rows begin near a sum of 1. It is a
    constant here, so that a step with a cache gives what the full pass gives.
    """

    kind: ClassVar[Kind] = "gate"
    whole_rows: ClassVar[bool] = False

    bias: float = 0.0

    def weights(self, scores: Scores, sink: Tensor | None = None) -> Weights:
        if sink is not None:
            raise RegardError("Sigmoid: a sink takes nothing from weights that do not share a sum")
        return (scores + self.bias).sigmoid()


@dataclass(frozen=True)
class Entmax(Normaliser):
    """pᵢ = [(α − 1) sᵢ − τ]₊^(1 / (α − 1)), τ such that Σ p = 1: many weights are exactly 0.

    Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models". α → 1 is softmax, 2 is
    sparsemax. τ is exact for α = 1.5 and 2 (by sorting), else bisected to the last digit. The
    Jacobian is diag(g) − g gᵀ / Σ g, g = p^(2 − α) where p > 0.
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not 1.0 < self.alpha < float("inf"):
            raise RegardError(
                f"{type(self).__name__}: alpha={self.alpha}, expected a number above 1; "
                "Softmax() is its limit at 1"
            )

    def weights(self, scores: Scores, sink: Tensor | None = None) -> Weights:
        keys = scores.shape[-1]
        if keys == 0:
            return scores
        if sink is not None:
            scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
        dead = scores.detach().amax(-1, keepdim=True) == -torch.inf
        scores = scores.masked_fill(dead, 0.0)
        return _entmax(scores, self.alpha).masked_fill(dead, 0.0)[..., :keys]


@dataclass(frozen=True)
class Sparsemax(Entmax):
    """The point of the simplex nearest to the scores: p = [s − τ]₊, Σ p = 1.

    Martins and Astudillo 2016, "From softmax to sparsemax".

    >>> import torch
    >>> from regard.recipe import Sparsemax
    >>> Sparsemax().weights(torch.tensor([[[[1.0, 0.5, -1.0]]]]))
    tensor([[[[0.7500, 0.2500, 0.0000]]]])
    """

    alpha: float = 2.0

    def __post_init__(self) -> None:
        if self.alpha != 2.0:
            raise RegardError(f"Sparsemax: alpha={self.alpha}, expected 2; Entmax takes others")


def _entmax(scores: Tensor, alpha: float) -> Tensor:
    """Weights of rows that have a finite score, with the exact Jacobian."""
    if not torch.compiler.is_compiling():
        weights: Tensor = _Entmax.apply(scores, alpha)  # type: ignore[no-untyped-call]
        return weights
    # A compiler takes no function with a forward-mode Jacobian: add that Jacobian times 0.
    weights = _Entmax.forward(scores.detach(), alpha)
    if not scores.requires_grad:
        return weights
    moved = torch.where(scores.isfinite(), scores - scores.detach(), 0.0)
    return weights + _times_jacobian(weights, moved, alpha)


class _Entmax(torch.autograd.Function):
    """The Jacobian is symmetric, so it serves forward and backward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        # No τ is below −1 once the largest is 0, so whatever lies below has weight 0; -inf too.
        shifted = (scores - scores.amax(-1, keepdim=True)).mul(alpha - 1).clamp_min(-2.0)
        if alpha in (1.5, 2.0):
            weights = _power(shifted - _sorted_threshold(shifted, alpha), alpha)
        else:
            weights = _power(shifted - _bisected_threshold(shifted, alpha), alpha)
        return weights / weights.sum(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _times_jacobian(ctx.saved_tensors[0], gradient, ctx.alpha), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _times_jacobian(ctx.saved_tensors[0], tangent, ctx.alpha)


def _times_jacobian(weights: Tensor, vector: Tensor, alpha: float) -> Tensor:
    support = weights > 0
    # Away from 0 first: a power's own derivative there may be infinite.
    slopes = torch.where(support, weights, 1.0).pow(2 - alpha) * support
    scaled = slopes * vector
    return scaled - slopes * scaled.sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)


def _power(above: Tensor, alpha: float) -> Tensor:
    """[above]₊^(1 / (α − 1))."""
    above = above.clamp_min(0.0)
    return above if alpha == 2.0 else above.pow(1 / (alpha - 1))


def _sorted_threshold(shifted: Tensor, alpha: float) -> Tensor:
    """τ where the k largest are the support, for the largest k that contradicts nothing."""
    ranked = shifted.sort(-1, descending=True).values
    count = torch.arange(1, ranked.shape[-1] + 1, dtype=ranked.dtype, device=ranked.device)
    mean = ranked.cumsum(-1) / count
    if alpha == 2.0:
        thresholds = mean - 1 / count
    else:  # Σ (sᵢ − τ)² = 1 is a quadratic in τ
        variance = (ranked.square().cumsum(-1) / count - mean.square()).clamp_min(0.0)
        thresholds = mean - (1 / count - variance).clamp_min(0.0).sqrt()
    size = (thresholds < ranked).sum(-1, keepdim=True)
    return thresholds.gather(-1, size - 1)


def _bisected_threshold(shifted: Tensor, alpha: float) -> Tensor:
    """τ between −1 (one key has all) and 0, by halves to the last digit."""
    low, width = torch.full_like(shifted[..., :1], -1.0), 1.0
    digits = 54 if shifted.dtype == torch.float64 else 25
    for _ in range(digits if alpha <= 2 else 2 * digits):  # beyond 2, τ comes near 0: n^(1 − α)
        width /= 2
        sums = _power(shifted - (low + width), alpha).sum(-1, keepdim=True)
        low = torch.where(sums >= 1, low + width, low)
    return low


register_pytree(Softmax)  # no leaves: a normaliser belongs to the structure of its recipe
register_pytree(Sigmoid, static=("bias",))
register_pytree(Entmax, static=("alpha",))
register_pytree(Sparsemax, static=("alpha",))
