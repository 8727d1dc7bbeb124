"""Squeeze-and-excitation: a factor for each channel, from the means of all channels."""

from __future__ import annotations

import copy

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError
from regard.vision.from_timm import check_class, child_of, convolution, load
from regard.vision.gate import Bottleneck, Gate, check_parts, hidden_channels
from regard.vision.pooling import MeanPooling


class SqueezeExcitation(Gate):
    """Squeeze-and-excitation (Hu, Shen, Sun 2018, arXiv 1709.01507, equations 2 to 4).

        z_c = mean over positions of u_c                the squeeze
        s   = σ(W₂ δ(W₁ z))                             the excitation
        output_c = s_c · u_c

    | here                 | paper                                            |
    |----------------------|--------------------------------------------------|
    | `image`              | U, (channel, height, width)                      |
    | `pooling`            | F_sq                                             |
    | `excitation.narrow`  | W₁, (hidden, channel)                            |
    | `activation`         | δ, ReLU                                          |
    | `excitation.widen`   | W₂, (channel, hidden)                            |
    | `gate`               | σ                                                |
    | `weights`            | s, (batch, 1, 1, channel)                        |
    | `reduction`          | r, 16                                            |

    W₁ and W₂ carry biases, which the equations leave out and the authors' networks have. In a
    residual block the paper puts the gate on the branch, after its last batch norm and before the
    addition. Gates start near 1/2, so the branch is about halved at first.

    >>> import torch
    >>> from regard.vision import SqueezeExcitation
    >>> attended = SqueezeExcitation(64)(torch.randn(2, 64, 7, 5), weights=True)
    >>> attended.output.shape, attended.weights.shape
    (torch.Size([2, 64, 7, 5]), torch.Size([2, 1, 1, 64]))
    """

    of_channels = True

    def __init__(
        self,
        channels: int,
        *,
        reduction: int | float = 16,
        hidden: int | None = None,
        bias: bool = True,
        pooling: nn.Module | None = None,
        activation: nn.Module | None = None,
        gate: nn.Module | None = None,
    ) -> None:
        """A gate of channels.

        Args:
            channels: of the image.
            reduction: channels over hidden channels.
            hidden: hidden channels, where no quotient gives them.
            bias: whether both layers have one.
            pooling: (batch, channel, height, width) to (batch, channel, 1, 1); `MeanPooling()`
                when None.
            activation: between the layers; a ReLU when None.
            gate: scores to numbers between 0 and 1, as `nn.Hardsigmoid()`; a sigmoid when None.
        """
        super().__init__()
        name = type(self).__name__
        hidden = hidden_channels(name, channels, reduction, hidden)
        check_parts(name, pooling=pooling, activation=activation, gate=gate)
        self.channels = channels
        self.pooling = MeanPooling() if pooling is None else pooling
        activation = nn.ReLU() if activation is None else activation
        self.excitation = Bottleneck(channels, hidden, bias=bias, activation=activation)
        self.gate = nn.Sigmoid() if gate is None else gate

    def factors(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel 1 1"]:
        factors: Tensor = self.gate(self.excitation(self.pooling(image)))
        return factors

    @classmethod
    def from_timm(cls, module: nn.Module) -> SqueezeExcitation:
        """The same gate as a squeeze-and-excitation module of timm, its weights copied.

        Knows `timm.layers.SEModule` (= `SqueezeExcite`), that of timm's EfficientNet blocks and
        that of its SENet. Outputs are equal bit for bit. timm itself is not needed.
        """
        name = cls.__name__
        check_class(name, module, "SEModule", "SqueezeExcite")
        if getattr(module, "add_maxpool", False):
            raise RegardError(
                f"{name}.from_timm: add_maxpool=True, expected False: the maximum is no part of "
                "squeeze-and-excitation; pass a pooling of your own and load the two layers"
            )
        norm = getattr(module, "bn", None)
        if norm is not None and not isinstance(norm, nn.Identity):
            raise RegardError(
                f"{name}.from_timm: bn is {type(norm).__name__}, expected none: a norm is no part "
                "of squeeze-and-excitation; nn.Sequential(norm, nn.ReLU()) can be its activation"
            )
        narrow = convolution(name, module, "fc1", "conv_reduce")
        widen = convolution(name, module, "fc2", "conv_expand")
        gate = cls(
            narrow.in_channels,
            hidden=narrow.out_channels,
            bias=narrow.bias is not None,
            activation=copy.deepcopy(child_of(name, module, "act", "act1", "relu")),
            gate=copy.deepcopy(child_of(name, module, "gate", "sigmoid")),
        )
        load(gate.excitation, narrow, widen)
        return gate.train(module.training)
