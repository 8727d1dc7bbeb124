"""Concatenation: an attention's weights, encoded, as further channels of each position."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checks import check_sizes
from regard.errors import RegardError
from regard.reuse.layer import ReuseLayer
from regard.reuse.low_rank import LowRankCode
from regard.reuse.offsets import OffsetBins
from regard.reuse.rows import ProjectedRows
from regard.reuse.source import Source
from regard.reuse.summaries import PositionSummaries
from regard.types import Features

Code = PositionSummaries | ProjectedRows | LowRankCode | OffsetBins


class Concatenation(ReuseLayer):
    """[X; code(A)]: the features, then the channels of a code of the weights.

    A row of weights is as long as the sequence; a code has the same channels at every length:

    | code                                     | channels                                        |
    |------------------------------------------|-------------------------------------------------|
    | `PositionSummaries(heads)`               | summaries of each head                          |
    | `ProjectedRows(heads, channels)`         | learned, of rows pooled or interpolated         |
    | `LowRankCode(heads, rank)`               | rank a head: principal components of the rows   |
    | `OffsetBins(heads, channels)`            | learned, of the mass by distance and direction  |

    Args:
        width: features a position.
        code: one of them; the features are those of `code.side`.

    >>> import torch
    >>> from regard.mechanisms import MultiHead
    >>> from regard.reuse import Concatenation, OffsetBins
    >>> attn, beside = MultiHead(16, 4), Concatenation(16, OffsetBins(4, 8))
    >>> for length in (5, 30):
    ...     x = torch.randn(2, length, 16)
    ...     print(beside(x, attn(x, weights=True)).shape)
    torch.Size([2, 5, 24])
    torch.Size([2, 30, 24])
    """

    def __init__(self, width: int, code: Code) -> None:
        super().__init__()
        if not isinstance(code, Code):
            raise RegardError(
                f"Concatenation: code={code!r}, expected a PositionSummaries, ProjectedRows, "
                "LowRankCode or OffsetBins"
            )
        check_sizes("Concatenation", width=width)
        self.width, self.code = width, code
        self.output_width = width + code.channels

    def reuse(self, features: Features, source: Source) -> Tensor:
        """(batch, position, output_width): features, then the code; 0 where padding held NaN."""
        code = self.code
        source.check_features("Concatenation", features, self.width, code.side, sides=code.sides)
        features = source.clean(features, code.side)
        return torch.cat([features, code(source).to(features.dtype)], dim=-1)
