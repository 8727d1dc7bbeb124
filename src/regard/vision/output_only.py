"""The output of an attention alone, for the next layer of an `nn.Sequential`."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from regard.contract import Attended, BlockOutput
from regard.errors import RegardError


class OutputOnly(nn.Module):
    """`attended.output`, as a layer: it stands behind a mechanism in an `nn.Sequential`.

    Mechanisms return an `Attended` (CBAM a `BlockOutput`), and torch's layers take tensors. The
    weights do not get past this layer: `regard.capture` reads them as the network runs.

    >>> import torch
    >>> from torch import nn
    >>> from regard.vision import OutputOnly, SqueezeExcitation
    >>> network = nn.Sequential(nn.Conv2d(3, 16, 1), SqueezeExcitation(16), OutputOnly(), nn.ReLU())
    >>> network(torch.randn(2, 3, 7, 5)).shape
    torch.Size([2, 16, 7, 5])
    """

    def forward(self, attended: Attended | BlockOutput) -> Float[Tensor, "*_"]:
        if not isinstance(attended, Attended | BlockOutput):
            raise RegardError(
                f"OutputOnly: got {type(attended).__name__}, expected an Attended or a "
                "BlockOutput: it belongs right behind a mechanism"
            )
        return attended.output
