"""Coverage: additive attention that knows how much each key has been attended to."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.contract import Traits
from regard.mechanisms.stepwise import Stepwise
from regard.softmax import product, softmax
from regard.types import Weights


class Coverage(Stepwise):
    """eᵗᵢ = vᵀ tanh(W_h hᵢ + W_s sₜ + w_c cᵗᵢ + b), aᵗ = softmax(eᵗ), cᵗ = Σ_{t' < t} aᵗ'.

    See, Liu & Manning 2017, "Get to the point: summarization with pointer-generator networks",
    equations 10 to 13; the loss is `coverage_loss`.

    | here              | paper   | meaning                                                  |
    |-------------------|---------|----------------------------------------------------------|
    | `query`           | sₜ      | the decoder's state, (batch, query, query width)         |
    | `key`             | hᵢ      | the encoder's states, (batch, key, key width)            |
    | `to_query`        | W_s, b  | query width → width, with the bias                       |
    | `to_key`          | W_h     | key width → width                                        |
    | `to_coverage`     | w_c     | (width,), 0 at the start: additive attention at first    |
    | `vector`          | v       | (width,)                                                 |

    The state holds the coverage cᵗ: each call goes on where the last one stopped, and several
    queries of one call are answered in order. The gradient flows through the coverage too.
    Linear maps start Xavier-uniform, v uniform in ±1/√width; the paper does not say.

    >>> import torch
    >>> from regard.mechanisms import Coverage, coverage_loss
    >>> attn = Coverage(8, 6, width=16)
    >>> attended = attn(torch.randn(2, 4, 8), torch.randn(2, 5, 6), weights=True)
    >>> attended.output.shape, coverage_loss(attended.weights).shape
    (torch.Size([2, 4, 6]), torch.Size([2, 1, 4]))
    """

    traits = Traits(sequential=True)

    def __init__(
        self, query_width: int, key_width: int, *, width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.to_query = nn.Linear(query_width, width)
        self.to_key = nn.Linear(key_width, width, bias=False)
        self.to_coverage = nn.Parameter(torch.zeros(width))
        self.vector = nn.Parameter(torch.empty(width))
        self.dropout = dropout
        for linear in (self.to_query, self.to_key):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.to_query.bias)
        nn.init.uniform_(self.vector, -(width**-0.5), width**-0.5)

    def score(
        self,
        query: Float[Tensor, "batch 1 width"],
        key: Float[Tensor, "batch key width"],
        memory: Float[Tensor, "batch key"],
    ) -> Float[Tensor, "batch key"]:
        covered = memory[..., None] * self.to_coverage.to(memory.dtype)
        return product((key + query + covered).tanh(), self.vector.to(memory.dtype))

    def weigh(
        self,
        scores: Float[Tensor, "batch key"],
        memory: Float[Tensor, "batch key"],
        allowed: Bool[Tensor, "batch key"],
    ) -> tuple[Float[Tensor, "batch key"], Float[Tensor, "batch key"]]:
        weights = softmax(scores.masked_fill(~allowed, -torch.inf)[:, None, None])[:, 0, 0]
        return weights, memory + weights


def coverage_loss(weights: Weights) -> Float[Tensor, "batch head query"]:
    """Σᵢ min(aᵗᵢ, cᵗᵢ) of each query: what is attended to again (equation 12), from 0 to 1.

    `weights` (batch, head, query, key) are of a whole output, from its first query on; those of a
    decoder that goes step by step are put together with `torch.cat(rows, dim=2)`.
    """
    before = torch.cat([torch.zeros_like(weights[:, :, :1]), weights.cumsum(2)[:, :, :-1]], dim=2)
    return weights.minimum(before).sum(-1)
