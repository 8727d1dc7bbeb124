"""Monotonic attention: reads the keys once from left to right, and stops where it chooses."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.contract import Traits
from regard.errors import RegardError
from regard.mechanisms.stepwise import Stepwise
from regard.softmax import product


class Monotonic(Stepwise):
    """pᵢⱼ = σ(eᵢⱼ); each query goes on from the key the last one stopped at, and stops at key j
    with probability pᵢⱼ: αᵢⱼ = pᵢⱼ Σ_{k ≤ j} αᵢ₋₁,ₖ Π_{l=k}^{j−1} (1 − pᵢₗ).

    Raffel, Luong, Liu, Weiss & Eck 2017, "Online and linear-time attention by enforcing monotonic
    alignments": energies eᵢⱼ = g vᵀ/‖v‖ tanh(W sᵢ + V hⱼ + b) + r.

    | here                 | paper     | meaning                                                 |
    |----------------------|-----------|---------------------------------------------------------|
    | `query`, `key`       | sᵢ₋₁, hⱼ  | decoder's state, memory                                 |
    | `to_query`, `to_key` | W and b, V| query width, key width → width                          |
    | `vector`             | v         | (width,), a direction                                   |
    | `gain`, `offset`     | g, r      | numbers; g starts at 1/√width                           |
    | `noise`              | N(0, 1)   | deviation of what is added to the energies in training  |

    *In training* the weights are the expected alignment α, soft, made from energies with noise,
    which teaches p to be near 0 or 1. *In eval* they are a hard alignment: a query stops at the
    first key with pᵢⱼ > ½, with weight 1, and attends to nothing where there is none. Either are
    the weights that the output is made with; rows sum to at most 1 (`kind = "partial"`).

    The state holds how far the reading has come. Keys that a mask forbids are read over. A reading
    that ran off the keys a query may see waits there, and goes on with keys that come later
    (`causal=True`, a growing state); where every query sees all keys that is the paper's rule,
    and what ran off the end attends to nothing from then on.

    The paper's parallel form divides by Π (1 − p), which underflows; here the recurrence is solved
    in log₂(keys) steps of sums and products of numbers from 0 to 1, without division.

    Args:
        query_width: features of a query.
        key_width: features of a key.
        width: features in which they are compared.
        offset: where r starts; below 0 the reading goes far at first, so that the gradient reaches
            many keys.
        noise: standard deviation of the noise; 0 for none.

    >>> import torch
    >>> from regard.mechanisms import Monotonic
    >>> attn = Monotonic(8, 6, width=16, offset=0.5).eval()
    >>> weights = attn(torch.randn(1, 4, 8), torch.randn(1, 9, 6), weights=True).weights
    >>> sorted(set(weights.flatten().tolist()))
    [0.0, 1.0]
    """

    kind = "partial"
    traits = Traits(order_matters=True, sequential=True, hard=True)
    fresh = 1.0  # memory is the probability that the next reading starts at this key or before

    def __init__(
        self,
        query_width: int,
        key_width: int,
        *,
        width: int,
        offset: float = -1.0,
        noise: float = 1.0,
    ) -> None:
        super().__init__()
        if noise < 0:
            raise RegardError(f"Monotonic: noise={noise}, expected a deviation of at least 0")
        self.to_query = nn.Linear(query_width, width)
        self.to_key = nn.Linear(key_width, width, bias=False)
        self.vector = nn.Parameter(torch.randn(width))
        self.gain = nn.Parameter(torch.tensor(width**-0.5))
        self.offset = nn.Parameter(torch.tensor(float(offset)))
        self.noise = noise
        for linear in (self.to_query, self.to_key):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.to_query.bias)

    def score(
        self,
        query: Float[Tensor, "batch 1 width"],
        key: Float[Tensor, "batch key width"],
        memory: Float[Tensor, "batch key"],
    ) -> Float[Tensor, "batch key"]:
        direction = self.vector.to(memory.dtype)
        projected = product((key + query).tanh(), direction / direction.norm())
        return self.gain * projected + self.offset

    def weigh(
        self,
        scores: Float[Tensor, "batch key"],
        memory: Float[Tensor, "batch key"],
        allowed: Bool[Tensor, "batch key"],
    ) -> tuple[Float[Tensor, "batch key"], Float[Tensor, "batch key"]]:
        if self.training:
            energies = scores + self.noise * torch.randn_like(scores)
            stop = energies.sigmoid().masked_fill(~allowed, 0.0)
            go_on = (-energies).sigmoid().masked_fill(~allowed, 1.0)
            start = memory - pad(memory, (1, 0))[:, :-1]
            weights = stop * arrivals(start.clamp_min(0.0), go_on)
        else:
            choices = (scores > 0) & (memory > 0.5) & allowed
            weights = (choices & (choices.cumsum(-1) == 1)).to(scores.dtype)
        seen = allowed.flip(-1).cumsum(-1).flip(-1) > 0  # up to the last key the query may see
        return weights, torch.where(seen, weights.cumsum(-1), memory)


def arrivals(
    start: Float[Tensor, "batch key"], go_on: Float[Tensor, "batch key"]
) -> Float[Tensor, "batch key"]:
    """Probabilities to come to each key, r_j = go_on_{j−1} r_{j−1} + start_j, without a loop over
    keys: after the n-th step every sum is over the last 2ⁿ keys."""
    keys, reach = start.shape[-1], 1
    through = pad(go_on, (1, 0))[:, :keys]  # the chance to come here from the key before
    while reach < keys:
        start = start + through * pad(start, (reach, 0))[:, :keys]
        through = through * pad(through, (reach, 0))[:, :keys]
        reach *= 2
    return start
