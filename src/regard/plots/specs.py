"""What to draw: data and labels, no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.files import check_folder
from regard.types import brief

FORMATS = (".png", ".svg", ".pdf")
Colour = Literal["linear", "log", "diverging"]


@dataclass(frozen=True)
class Style:
    """How large a picture and its letters are.

    A width other than the picture's own scales its height too; labels that no longer fit beside
    each other are left out, every second first.
    """

    width: int | float | None = None  #: inches; the picture's own when None
    font_size: int | float = 10.0  #: points of labels; titles are a fifth larger
    dpi: int = 150  #: dots an inch, of PNG

    def __post_init__(self) -> None:
        for name, value, least in (
            ("width", self.width, 1.0),
            ("font_size", self.font_size, 4.0),
            ("dpi", self.dpi, 20),
        ):
            if value is not None and not least <= value < math.inf:
                raise RegardError(f"Style: {name}={value!r}, expected at least {least:g}")


_OWN = Style()
COLUMN = Style(width=3.25, font_size=7.0, dpi=300)  #: one column of a two-column paper
PAGE = Style(width=6.75, font_size=8.0, dpi=300)  #: both columns


class Spec:
    """Something that can be drawn. It shows itself in a notebook."""

    def save(self, path: str | Path, style: Style = _OWN) -> Path:
        """Draw into a file; the ending says the format (png, svg, pdf).

        Args:
            path: where to; PDF embeds TrueType fonts (Type 42), SVG keeps text as text.
            style: width, font size and dots an inch; `plots.COLUMN` suits a two-column paper.
        """
        from regard.plots.draw import save

        return save(self, checked_path(path), style)

    def _repr_png_(self) -> bytes:
        from regard.plots.draw import png

        return png(self)

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, eq=False, repr=False)
class Heatmap(Spec):
    """Weights of one map, (query, key), with a label for every row and column, or none.

    `colour` is linear, up to the 99th percentile on large maps, so that one strong weight does not
    darken all others; logarithmic, for maps whose weights span many powers of ten; or diverging,
    for differences: white at 0, one hue on either side. `clip=False` shows the largest as what it
    is, at any size. `most` is the weight of the strongest colour, so that colours of several maps
    mean the same; those are not logarithmic.
    """

    values: Float[Tensor, "query key"]
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    title: str = ""
    row_title: str = "query"
    column_title: str = "key"
    colour: Colour = "linear"
    value_title: str = "weight"
    clip: bool = True
    most: float | None = None

    def __post_init__(self) -> None:
        _check_axes("Heatmap: values", self.values, ("query", "key"))
        if self.most is not None and not (self.most > 0 and self.colour != "log"):
            raise RegardError(
                f"Heatmap: most={self.most} with colour={self.colour!r}, expected a number above 0 "
                "with colour='linear' or 'diverging'"
            )
        _check_labels("Heatmap", self.rows, self.values.shape[0], "query")
        _check_labels("Heatmap", self.columns, self.values.shape[1], "key")
        _check_colour("Heatmap", self.colour)


@dataclass(frozen=True, eq=False, repr=False)
class Grid(Spec):
    """A small map for every layer and head; all share one scale of colours, drawn beside them.

    `maps` is a list of layers, lowest first, (head, query, key) each. `names` may say in a word
    what each head is, layer by layer. Maps of more than 64 positions share the last colour from
    the 99th percentile of all on.
    """

    maps: Sequence[Float[Tensor, "_ _ _"]]  # (head, query, key) of each layer
    names: Sequence[Sequence[str]] | None = None
    title: str = ""
    colour: Colour = "linear"

    def __post_init__(self) -> None:
        if not self.maps:
            raise ShapeError("Grid: there are no maps")
        for layer, maps in enumerate(self.maps):
            _check_axes(f"Grid: layer {layer}", maps, ("head", "query", "key"))
        if self.names is not None:
            lengths = [len(names) for names in self.names]
            wanted = [len(maps) for maps in self.maps]
            if lengths != wanted:
                raise ShapeError(f"Grid: names for {lengths} heads, expected {wanted}")
        _check_colour("Grid", self.colour)


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Spec):
    """One line for every head over the layers, or for every layer over positions.

    `values` is (line, place); NaN leaves a gap. Up to six lines have their names at their ends; up
    to 48 have a small picture each, in front of all others in grey; more are coloured by number.
    """

    values: Float[Tensor, "line place"]
    lines: Sequence[str] | None = None
    title: str = ""
    place_title: str = "layer"
    value_title: str = ""
    mean: bool = True  #: whether the mean over the lines is drawn beside them

    def __post_init__(self) -> None:
        _check_axes("Profile: values", self.values, ("line", "place"))
        _check_labels("Profile", self.lines, self.values.shape[0], "line")


@dataclass(frozen=True, eq=False, repr=False)
class Text(Spec):
    """Words coloured by a number each: what a token attends to, rollout, relevance.

    Colour runs from none at 0 to full at the largest; numbers below 0 take another hue. Words whose
    number is NaN are set aside: grey letters, and no say in the scale. `marked` are words to be
    framed, such as the one that looks.
    """

    words: Sequence[str]
    values: Float[Tensor, " word"]
    title: str = ""
    marked: Sequence[int] = ()

    def __post_init__(self) -> None:
        _check_axes("Text: values", self.values, ("word",))
        _check_labels("Text", self.words, self.values.shape[0], "word")


@dataclass(frozen=True, eq=False, repr=False)
class Overlay(Spec):
    """Attention over an image: (row, column) numbers of its patches, laid over the pixels.

    `image` is (row, column, 3) from 0 to 1. Patches are stretched over the whole image.
    """

    image: Float[Tensor, "y x 3"]
    values: Float[Tensor, "row column"]
    title: str = ""
    marked: tuple[int, int] | None = None  #: the patch that looks
    edges: tuple[Sequence[int], Sequence[int]] = ((), ())  #: rows and columns that begin a window
    clip: bool = False  #: whether what is above the 99th percentile shares its colour

    def __post_init__(self) -> None:
        _check_axes("Overlay: values", self.values, ("row", "column"))
        if self.image.dim() != 3 or self.image.shape[2] != 3:
            raise ShapeError(
                f"Overlay: the image is {tuple(self.image.shape)}, expected (row, column, 3)"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Rows(Spec):
    """Several pictures below each other."""

    parts: Sequence[Spec]
    title: str = ""

    def __post_init__(self) -> None:
        if not self.parts:
            raise RegardError(f"{type(self).__name__}: there is nothing to draw")


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Rows):
    """Several pictures beside each other."""


def checked_path(path: str | Path) -> Path:
    """A path that a picture can be written to, or an error before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise RegardError(f"{path}: ends in {path.suffix!r}, expected {', '.join(FORMATS)}")
    check_folder(path)
    return path


def _check_axes(what: str, values: Tensor, axes: tuple[str, ...]) -> None:
    if values.dim() != len(axes):
        raise ShapeError(
            f"{what} have {values.dim()} axes {tuple(values.shape)}, expected {len(axes)}: "
            f"({', '.join(axes)})"
        )


def _check_labels(what: str, labels: Sequence[str] | None, size: int, axis: str) -> None:
    if labels is not None and len(labels) != size:
        raise ShapeError(f"{what}: {len(labels)} labels for {size} on axis {axis}")


def _check_colour(what: str, colour: str) -> None:
    if colour not in get_args(Colour):
        expected = ", ".join(map(repr, get_args(Colour)))
        raise RegardError(f"{what}: colour={colour!r}, expected one of {expected}")
