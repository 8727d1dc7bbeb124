"""The channel half of CBAM: a factor for each channel, from its mean and its maximum."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError
from regard.vision.from_timm import check_class, child_of, convolution, load
from regard.vision.gate import Bottleneck, Gate, check_parts, hidden_channels
from regard.vision.pooling import MaxPooling, MeanPooling


class ChannelGate(Gate):
    """Channel attention of CBAM (Woo, Park, Lee, Kweon 2018, arXiv 1807.06521, equation 2).

        M_c = σ(W₁ δ(W₀ mean) + W₁ δ(W₀ max)),    output_c = M_c · F_c

    One network serves both poolings; its answers are added.

    | here                 | paper                                            |
    |----------------------|--------------------------------------------------|
    | `image`              | F, (channel, height, width)                      |
    | `poolings`           | AvgPool, MaxPool                                 |
    | `excitation.narrow`  | W₀, (hidden, channel)                            |
    | `activation`         | δ, ReLU                                          |
    | `excitation.widen`   | W₁, (channel, hidden)                            |
    | `weights`            | M_c, (batch, 1, 1, channel)                      |
    | `reduction`          | r, 16                                            |

    The authors' code gives both layers biases and timm gives them none; here they have them by
    default.

    >>> import torch
    >>> from regard.vision import ChannelGate
    >>> ChannelGate(64)(torch.randn(2, 64, 7, 5), weights=True).weights.shape
    torch.Size([2, 1, 1, 64])
    """

    of_channels = True

    def __init__(
        self,
        channels: int,
        *,
        reduction: int | float = 16,
        hidden: int | None = None,
        bias: bool = True,
        poolings: Sequence[nn.Module] | None = None,
        activation: nn.Module | None = None,
        gate: nn.Module | None = None,
    ) -> None:
        """A gate of channels.

        Args:
            channels: of the image.
            reduction: channels over hidden channels.
            hidden: hidden channels, where no quotient gives them.
            bias: whether both layers have one.
            poolings: each (batch, channel, height, width) to (batch, channel, 1, 1);
                `MeanPooling()` and `MaxPooling()` when None.
            activation: between the layers; a ReLU when None.
            gate: scores to numbers between 0 and 1; a sigmoid when None.
        """
        super().__init__()
        name = type(self).__name__
        hidden = hidden_channels(name, channels, reduction, hidden)
        check_parts(name, activation=activation, gate=gate)
        poolings = (MeanPooling(), MaxPooling()) if poolings is None else poolings
        if not isinstance(poolings, Iterable):
            raise RegardError(f"{name}: poolings={poolings!r}, expected a list of them")
        if not poolings:
            raise RegardError(f"{name}: poolings={poolings!r}, expected at least one")
        check_parts(name, **{f"poolings[{i}]": pooling for i, pooling in enumerate(poolings)})
        self.channels = channels
        self.poolings = nn.ModuleList(poolings)
        activation = nn.ReLU() if activation is None else activation
        self.excitation = Bottleneck(channels, hidden, bias=bias, activation=activation)
        self.gate = nn.Sigmoid() if gate is None else gate

    def factors(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel 1 1"]:
        scores = [self.excitation(pooling(image)) for pooling in self.poolings]
        factors: Tensor = self.gate(functools.reduce(Tensor.add, scores))
        return factors

    @classmethod
    def from_timm(cls, module: nn.Module) -> ChannelGate:
        """The same gate as timm's `ChannelAttn`, its weights copied."""
        name = cls.__name__
        check_class(name, module, "ChannelAttn")
        narrow, widen = (convolution(name, module, layer) for layer in ("fc1", "fc2"))
        gate = cls(
            narrow.in_channels,
            hidden=narrow.out_channels,
            bias=narrow.bias is not None,
            activation=copy.deepcopy(child_of(name, module, "act")),
            gate=copy.deepcopy(child_of(name, module, "gate")),
        )
        load(gate.excitation, narrow, widen)
        return gate.train(module.training)
