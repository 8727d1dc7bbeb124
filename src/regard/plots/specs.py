"""What to draw: data and labels, no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.types import brief

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, eq=False, repr=False)
class Heatmap:
    """Weights of one map, (query, key), with a label for every row and column, or none.

    `colour` is linear, up to the 99th percentile on large maps, so that one strong weight does not
    darken all others; or logarithmic, for maps whose weights span many powers of ten.
    """

    values: Float[Tensor, "query key"]
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    title: str = ""
    row_title: str = "query"
    column_title: str = "key"
    colour: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        if self.values.dim() != 2:
            raise ShapeError(
                f"Heatmap: values have {self.values.dim()} axes {tuple(self.values.shape)}, "
                "expected 2: (query, key)"
            )
        for axis, labels, size in zip(
            ("query", "key"), (self.rows, self.columns), self.values.shape
        ):
            if labels is not None and len(labels) != size:
                raise ShapeError(f"Heatmap: {len(labels)} labels for {size} on axis {axis}")
        if self.colour not in ("linear", "log"):
            raise RegardError(f"Heatmap: colour={self.colour!r}, expected 'linear' or 'log'")

    def __repr__(self) -> str:
        return brief(self)

    def save(self, path: str | Path) -> Path:
        """Draw into a file; the ending says the format (png, svg, pdf)."""
        from regard.plots.draw import save

        return save(self, checked_path(path))


def checked_path(path: str | Path) -> Path:
    """A path that a picture can be written to, or an error before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise RegardError(f"{path}: ends in {path.suffix!r}, expected {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise RegardError(f"{path}: there is no folder {path.parent}")
    return path
