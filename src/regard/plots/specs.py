"""What to draw: data and labels, no matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError


@dataclass(frozen=True, eq=False, repr=False)
class Heatmap:
    """Weights of one map, (query, key), with a label for every row and column."""

    values: Float[Tensor, "query key"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    title: str = ""
    row_title: str = "query"
    column_title: str = "key"

    def __post_init__(self) -> None:
        for axis, labels, size in zip(
            ("query", "key"), (self.rows, self.columns), self.values.shape
        ):
            if len(labels) != size:
                raise ShapeError(f"Heatmap: {len(labels)} labels for {size} on axis {axis}")

    def save(self, path: str | Path) -> Path:
        """Draw into a file; the ending says the format (png, svg, pdf)."""
        from regard.plots.draw import save

        return save(self, Path(path))
