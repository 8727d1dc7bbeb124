"""Multi-head convolutional attention: a factor for every channel at every position."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError
from regard.vision.gate import Gate, check_parts, hidden_channels


class MultiHeadConvolutional(Gate):
    """Multi-head convolutional attention (Georgescu et al. 2022, arXiv 2204.04218, section 3).

        A = σ(Σ_k up_k(δ(down_k(x)))),    output = A ∘ x

    A head has a kernel size k of its own: down_k is a k × k convolution without padding, from C to
    C / r channels, and up_k a transposed one of the same size, which gives back the image's size.

    | here        | paper                                                  |
    |-------------|--------------------------------------------------------|
    | `image`     | T*, (channel, height, width)                           |
    | `kernels`   | k, (1, 3, 5): a head for each                          |
    | `reduction` | r; 4 here, 0.5 (more hidden channels) in the released models |
    | `weights`   | A, (batch, channel, 1, height · width)                 |

    Images must be at least as large as the largest kernel.

    >>> import torch
    >>> from regard.vision import MultiHeadConvolutional
    >>> MultiHeadConvolutional(16)(torch.randn(2, 16, 7, 5), weights=True).weights.shape
    torch.Size([2, 16, 1, 35])
    """

    def __init__(
        self,
        channels: int,
        *,
        kernels: Sequence[int] = (1, 3, 5),
        reduction: int | float = 4,
        hidden: int | None = None,
        activation: nn.Module | None = None,
        gate: nn.Module | None = None,
    ) -> None:
        """A gate of every channel at every position.

        Args:
            channels: of the image.
            kernels: a head for each size.
            reduction: channels over hidden channels of a head; below 1 for more of them.
            hidden: hidden channels, where no quotient gives them.
            activation: between a head's layers; a ReLU when None.
            gate: scores to numbers between 0 and 1; a sigmoid when None.
        """
        super().__init__()
        name = type(self).__name__
        hidden = hidden_channels(name, channels, reduction, hidden)
        check_parts(name, activation=activation, gate=gate)
        if not kernels or min(kernels) < 1:
            raise RegardError(f"{name}: kernels={tuple(kernels)}, expected sizes from 1 on")
        self.channels = channels
        self.smallest = (max(kernels), max(kernels))
        self.down = nn.ModuleList(nn.Conv2d(channels, hidden, kernel) for kernel in kernels)
        self.up = nn.ModuleList(nn.ConvTranspose2d(hidden, channels, kernel) for kernel in kernels)
        self.activation = nn.ReLU() if activation is None else activation
        self.gate = nn.Sigmoid() if gate is None else gate

    def factors(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel height width"]:
        heads = [up(self.activation(down(image))) for down, up in zip(self.down, self.up)]
        factors: Tensor = self.gate(functools.reduce(Tensor.add, heads))
        return factors
