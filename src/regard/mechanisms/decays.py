"""Decays α of linear attention and the delta rule: how fast a memory fades, for each head.

A decay is a part, called as `decay(x)`: `x` is (batch, position, width), the keys as they come in,
and the result is log α, (batch, head, position), never above 0. Before a key is written, what the
memory holds is multiplied by its α. Logarithms, since products of many α underflow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError


class Decay(nn.Module, ABC):
    """How fast a memory fades; the module's docstring has the contract."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "batch position width"]) -> Float[Tensor, "batch head key"]:
        """log α for each head and position."""


class FixedDecay(Decay):
    """One α a head, the same at every position and not learned.

    Sun et al. 2023, "Retentive network", with 1 − 2⁻⁵, 1 − 2⁻⁶, … for their heads.

    Args:
        factors: α of each head, above 0 and at most 1.

    >>> import torch
    >>> from regard.mechanisms import FixedDecay
    >>> FixedDecay([0.5, 1.0])(torch.randn(1, 3, 8)).exp()
    tensor([[[0.5000, 0.5000, 0.5000],
             [1.0000, 1.0000, 1.0000]]])
    """

    def __init__(self, factors: Sequence[float]) -> None:
        super().__init__()
        wrong = [factor for factor in factors if not 0.0 < factor <= 1.0]
        if wrong:
            raise RegardError(f"FixedDecay: a factor is {wrong[0]}, expected above 0 and at most 1")
        self.register_buffer("log_factors", torch.tensor([math.log(factor) for factor in factors]))

    def forward(self, x: Tensor) -> Tensor:
        log_factors: Tensor = self.get_buffer("log_factors")
        return log_factors[None, :, None].expand(x.shape[0], -1, x.shape[1])


class GatedDecay(Decay):
    """α = exp(−a · softplus(W x + b)), of what stands at each position.

    Gu and Dao 2023, "Mamba", with one α a head as in Yang et al. 2024, "Gated delta networks".
    Starts as they do: a between 1 and 16, softplus(b) between 0.001 and 0.1.

    | here        | paper      | meaning                              |
    |-------------|------------|--------------------------------------|
    | `to_rate`   | W, dt bias | how much time a position takes       |
    | `log_speed` | A_log      | log a, how fast each head forgets    |

    Args:
        width: features of the keys that come in.
        n_heads: how many heads.

    >>> import torch
    >>> from regard.mechanisms import GatedDecay
    >>> log_decay = GatedDecay(8, n_heads=2)(torch.randn(1, 3, 8))
    >>> log_decay.shape, bool((log_decay < 0).all())
    (torch.Size([1, 2, 3]), True)
    """

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.to_rate = nn.Linear(width, n_heads)
        self.log_speed = nn.Parameter(torch.empty(n_heads).uniform_(1.0, 16.0).log())
        rate = torch.empty(n_heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        with torch.no_grad():
            self.to_rate.bias.copy_(rate + (-torch.expm1(-rate)).log())  # the inverse of softplus

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(self.log_speed.dtype, torch.float32)
        logits = self.to_rate(x).to(dtype)
        # log(1 + eˣ) is softplus; compiled graphs expect the gradient of F.softplus in a layout
        # (strides) other than the one it has
        rate = torch.logaddexp(logits, torch.zeros_like(logits))  # (batch, position, head)
        return (-self.log_speed.to(dtype).exp() * rate).mT
