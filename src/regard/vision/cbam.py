"""CBAM: channels are gated first, then positions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from regard.contract import BlockOutput
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.types import Kind
from regard.vision.channel_gate import ChannelGate
from regard.vision.from_timm import check_class, child_of
from regard.vision.gate import Gate
from regard.vision.spatial_gate import SpatialGate


class CBAM(nn.Module):
    """Convolutional block attention (Woo, Park, Lee, Kweon 2018, arXiv 1807.06521, equation 1).

        F′ = M_c(F) ∘ F,    F″ = M_s(F′) ∘ F′

    | here      | paper | meaning                                           |
    |-----------|-------|---------------------------------------------------|
    | `image`   | F     | (batch, channel, height, width)                   |
    | `channel` | M_c   | a factor for each channel, `ChannelGate`          |
    | `spatial` | M_s   | a factor for each position of F′, `SpatialGate`   |

    Returns a `BlockOutput` whose attentions, "channel" and "spatial", hold both gates. In a
    residual block the paper puts it on the branch, before the addition. Where the gates depart from
    the paper, their own docstrings say so.

    >>> import torch
    >>> from regard.vision import CBAM
    >>> blocked = CBAM(64)(torch.randn(2, 64, 7, 5), weights=True)
    >>> {name: tuple(gate.weights.shape) for name, gate in blocked.attentions.items()}
    {'channel': (2, 1, 1, 64), 'spatial': (2, 1, 1, 35)}
    """

    kind: Kind = "gate"

    def __init__(
        self,
        channels: int,
        *,
        channel: ChannelGate | None = None,
        spatial: SpatialGate | None = None,
    ) -> None:
        """Two gates.

        Args:
            channels: of the image.
            channel: the first gate, as `ChannelGate(channels, reduction=8)`;
                `ChannelGate(channels)` when None.
            spatial: the second gate, as `SpatialGate(kernel=3)`; `SpatialGate()` when None.
        """
        super().__init__()
        self.channel = ChannelGate(channels) if channel is None else channel
        self.spatial = SpatialGate() if spatial is None else spatial
        for argument, gate in (("channel", self.channel), ("spatial", self.spatial)):
            if not isinstance(gate, Gate):
                raise RegardError(f"{type(self).__name__}: {argument}={gate!r}, expected a Gate")
        if self.channel.channels != channels:
            raise RegardError(
                f"{type(self).__name__}: channel is a gate of {self.channel.channels} channels, "
                f"expected {channels}"
            )

    def forward(
        self,
        image: Tensor,
        *,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """Gate channels, then positions.

        Args:
            image: (batch, channel, height, width).
            weights: also return the weights of both gates.
            reduce: reducers, answered by each gate.
        """
        channel = self.channel(image, weights=weights, reduce=reduce)
        spatial = self.spatial(channel.output, weights=weights, reduce=reduce)
        return BlockOutput(spatial.output, {"channel": channel, "spatial": spatial})

    @classmethod
    def from_timm(cls, module: nn.Module) -> CBAM:
        """The same gates as timm's `CbamModule`, weights and statistics copied.

        Outputs are equal to rounding: see `SpatialGate.from_timm`.
        """
        name = cls.__name__
        check_class(name, module, "CbamModule")
        channel = ChannelGate.from_timm(child_of(name, module, "channel"))
        spatial = SpatialGate.from_timm(child_of(name, module, "spatial"))
        assert channel.channels is not None
        return cls(channel.channels, channel=channel, spatial=spatial).train(module.training)
