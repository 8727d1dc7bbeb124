"""How a `MultiHead` scores a query against a key."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from regard.errors import RegardError
from regard.recipe.flex import ScoreMod


@dataclass(frozen=True)
class Scoring:
    """score = softcap · tanh(scale · norm(q) · norm(k) / softcap), and a sink beside the keys.

    Softcap: Gemma 2 (2024). Query-key norm: Henry et al. 2020. Sinks: one learned score a head
    that takes weight away from every key.

    Args:
        scale: what dot products are multiplied by; 1/√(head width) when None.
        softcap: bounds scores smoothly to ±softcap; no fused kernel does this, so the full matrix
            is made.
        norms: modules for queries and keys of one head, such as two `nn.RMSNorm(head_width)`.
        sinks: learn one more score a head, in the denominator alone.
        function: your own score, f(score, batch, head, query, key), of one scaled dot product and
            four whole numbers as tensors, as of flex attention; query and key are positions in
            the text, also with a state. Biases and masks come after it. Materialises the matrix.

    >>> import torch
    >>> from regard.mechanisms import MultiHead, Scoring
    >>> def nearer(score, batch, head, query, key):
    ...     return score - 0.1 * (query - key).abs()
    >>> attn = MultiHead(16, 4, scoring=Scoring(function=nearer))
    >>> attn(torch.randn(2, 5, 16), causal=True, weights=True).weights.shape
    torch.Size([2, 4, 5, 5])
    """

    scale: float | None = None
    softcap: float | None = None
    norms: tuple[nn.Module, nn.Module] | None = None
    sinks: bool = False
    function: ScoreMod | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None and not self.softcap > 0:
            raise RegardError(f"Scoring: softcap={self.softcap}, expected a positive number")
        if self.function is not None and self.softcap is not None:
            raise RegardError(
                f"Scoring: softcap={self.softcap} with a function, expected one of them: cap the "
                "score inside the function, as softcap * torch.tanh(score / softcap)"
            )
        if self.function is not None and not callable(self.function):
            raise RegardError(
                f"Scoring: function={self.function!r}, expected f(score, batch, head, query, key)"
            )
        if self.norms is not None and (not isinstance(self.norms, tuple) or len(self.norms) != 2):
            raise RegardError(
                f"Scoring: norms={self.norms!r}, expected a tuple of two modules: for queries, "
                "for keys"
            )
