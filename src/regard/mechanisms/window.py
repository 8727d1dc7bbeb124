"""How far a `MultiHead` sees, and what its growing state keeps."""

from __future__ import annotations

from dataclasses import dataclass

from regard import masks
from regard.masks.parts import Band


@dataclass(frozen=True)
class Window:
    """A sliding window, and the first keys of all.

    Query t sees key j where j ≥ t − `left` or j < `first`, and j ≤ t + `right`. A growing state
    keeps what later queries can see, `first` + `left` keys, whatever the length of the text. The
    first keys are the attention sinks of Xiao et al. 2023, "Efficient streaming language models
    with attention sinks" (StreamingLLM), which keeps four.

    Args:
        left: how many positions before its own a query sees; all when None.
        right: how many after its own; all when None.
        first: how many keys at the beginning every later query sees.
    """

    left: int | None
    right: int | None = 0
    first: int = 0

    def __post_init__(self) -> None:
        masks.window(self.left, self.right, first=self.first)  # refuses negative numbers

    @property
    def band(self) -> Band:
        """Who may attend to whom."""
        band = masks.window(self.left, self.right, first=self.first)
        assert isinstance(band, Band)
        return band
