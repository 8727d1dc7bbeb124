"""How far a `MultiHead` sees, and what its growing state keeps."""

from __future__ import annotations

from dataclasses import dataclass

from regard import masks
from regard.errors import MaskError
from regard.masks.parts import Band


@dataclass(frozen=True)
class Window:
    """A sliding window, and the first keys of all.

    Query t sees key j where j ≥ t − `left` or j < `first`, and j ≤ t + `right`. A growing state
    keeps what later queries can see, `first` + `left` keys, whatever the length of the text. The
    first keys are the attention sinks of Xiao et al. 2023, "Efficient streaming language models
    with attention sinks" (StreamingLLM), which keeps four.

    With `in_cache`, positions are not those of the text but those of the keys in the cache, as in
    that paper: the query stands behind the keys that it sees, so no distance is larger than
    `first` + `left`, and a model meets none that it was not trained for. A key of the window is as
    far from a query as in the text; the first keys seem to stand right before the window.

    Args:
        left: how many positions before its own a query sees; all when None.
        right: how many after its own; all when None.
        first: how many keys at the beginning every later query sees.
        in_cache: whether positions are counted inside the cache. Keys are then kept without their
            position, and get it anew at each call.
    """

    left: int | None
    right: int | None = 0
    first: int = 0
    in_cache: bool = False

    def __post_init__(self) -> None:
        masks.window(self.left, self.right, first=self.first)  # refuses negative numbers
        if self.in_cache and self.left is None:
            raise MaskError("Window: in_cache=True, expected a number for left: all keys are kept")

    @property
    def edge(self) -> int:
        """The last position in a full cache, where queries then stand."""
        return self.first + (self.left or 0)

    @property
    def band(self) -> Band:
        """Who may attend to whom."""
        band = masks.window(self.left, self.right, first=self.first)
        assert isinstance(band, Band)
        return band
