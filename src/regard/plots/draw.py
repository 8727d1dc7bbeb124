"""Draws specs. This file and `letters` alone know matplotlib; no global state is touched."""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import MissingExtraError
from regard.plots.specs import Colour, Grid, Heatmap, Overlay, Profile, Rows, Spec, Text

_MOST_CELLS = 1024  # a side; more than a screen has pixels
_MOST_IN_GRID = 96  # the same for a thumbnail
_MOST_WITH_VALUES = 12  # maps up to this size have their numbers written into the cells,
_MOST_UNCLIPPED = 64  # and up to this one colours that reach to the largest
_WEIGHTS = "viridis"  # even steps look even, also to the colour-blind
_LINE = 9.0  # inches of a line of text
_LETTER = 0.095  # inches of a letter of a title, at twelve points
_SMALLEST = 6.0  # points of a title


def save(spec: Spec, path: Path) -> Path:
    """Draw a spec into a file."""
    _figure(spec).savefig(path, dpi=150)
    return path


def png(spec: Spec) -> bytes:
    """A spec as the bytes of a picture."""
    room = io.BytesIO()
    _figure(spec).savefig(room, format="png", dpi=100)
    return room.getvalue()


def _figure(spec: Spec) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    figure = Figure(figsize=_size(spec), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(spec, figure)
    return figure


def _label(text: str) -> str:
    from regard.plots.letters import readable

    return readable(text)


def _title(text: str) -> str:
    from regard.plots.letters import shown

    return shown(text)


def _fitting(text: str, inches: float) -> float:
    """A size at which a title is about so broad, if it is long."""
    longest = max(map(len, text.splitlines()), default=1)
    return max(_SMALLEST, min(12.0, 12.0 * inches / (_LETTER * max(1, longest))))


def _wrapped(text: str, inches: float) -> str:
    """A title in as many lines as it takes to be no broader in its smallest size."""
    most = max(1, int(12.0 * inches / (_LETTER * _SMALLEST)))
    return text if len(text) <= most else "\n".join(textwrap.wrap(text, most))


def _font(**options: Any) -> dict[str, Any]:
    """Fonts that between them have the most letters, for one text."""
    from regard.plots.letters import families

    return {"fontfamily": families(), **options} if families() else options


@functools.singledispatch
def _size(spec: Spec) -> tuple[float, float]:
    """Inches across and down."""
    raise TypeError(f"{type(spec).__name__} cannot be drawn")


@functools.singledispatch
def _draw(spec: Spec, figure: Any) -> None:
    raise TypeError(f"{type(spec).__name__} cannot be drawn")


# -- one map


@_size.register
def _(spec: Heatmap) -> tuple[float, float]:
    rows, columns = spec.values.shape
    return min(12.0, 2.5 + 0.5 * columns), min(10.0, 1.8 + 0.45 * rows)


@_draw.register
def _(spec: Heatmap, figure: Any) -> None:
    axes = figure.add_subplot()
    values = spec.values.detach().float().cpu()
    small = max(values.shape) <= _MOST_WITH_VALUES
    rows, columns = values.shape
    clip = spec.clip and max(values.shape) > _MOST_UNCLIPPED
    image = axes.imshow(
        _pooled(values, _MOST_CELLS).numpy(),
        cmap=_WEIGHTS,
        norm=_norm(spec.colour, values, clip=clip),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    _scale(figure, axes, image, values, label=spec.value_title)
    inches = _size(spec)[0] - 1
    title = _wrapped(_title(spec.title), inches)
    axes.set_title(title, **_font(fontsize=_fitting(title, inches)))
    axes.set_xlabel(_title(spec.column_title), **_font())
    axes.set_ylabel(_title(spec.row_title), **_font())
    if spec.columns is not None:
        _ticks(axes.set_xticks, spec.columns, rotation=45)
    if spec.rows is not None:
        _ticks(axes.set_yticks, spec.rows, rotation=0)
    if small:
        _write_values(axes, values)


def _write_values(axes: Any, values: Tensor) -> None:
    finite = values[values.isfinite()]
    middle = float(finite.max()) / 2 if finite.numel() else 0.0
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            colour = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)


def _scale(figure: Any, axes: Any, image: Any, values: Tensor, **options: Any) -> None:
    """The colours and their numbers; a tip where larger numbers share the last colour."""
    finite = values[values.isfinite()]
    cut = bool(finite.numel()) and float(finite.max()) > image.norm.vmax * (1 + 1e-6)
    figure.colorbar(image, ax=axes, extend="max" if cut else "neither", **options)


def _norm(colour: Colour, values: Tensor, clip: bool) -> Any:
    """How weights become colours; clipped ones share the colour of the 99th percentile, of
    positive and of negative weights. Negative ones have no logarithm: then colours are linear."""
    from matplotlib.colors import LogNorm, Normalize

    positive = values[values.isfinite() & (values > 0)]
    if not positive.numel():
        return Normalize(0.0, 1.0)
    most = float(positive.max())
    if colour == "log" and not (values < 0).any():
        return LogNorm(max(float(positive.min()), most * 1e-6), most, clip=True)
    if not clip:
        return Normalize(min(0.0, float(values[values.isfinite()].min())), most)
    negative = -values[values.isfinite() & (values < 0)]
    least = -_percentile(negative) if negative.numel() else 0.0
    return Normalize(least, _percentile(positive), clip=True)


def _percentile(values: Tensor) -> float:
    """The 99th percentile."""
    ranked = values.flatten().sort().values
    return float(ranked[int(0.99 * (len(ranked) - 1))])


def _pooled(values: Tensor, most: int) -> Tensor:
    """At most about so many cells a side, each the mean of those it stands for."""
    steps = [max(1, -(-size // most)) for size in values.shape]
    if max(steps) == 1:
        return values
    return torch.nn.functional.avg_pool2d(values[None, None], steps, ceil_mode=True)[0, 0]


def _ticks(put: Any, labels: Sequence[str], rotation: int) -> None:
    """At most forty labels, evenly spread, so that they stay readable."""
    step = max(1, -(-len(labels) // 40))
    ticks = range(0, len(labels), step)
    options = {"ha": "right", "rotation_mode": "anchor"} if rotation else {}
    shown = [_label(labels[tick]) for tick in ticks]
    put(list(ticks), shown, rotation=rotation, **_font(**options))


# -- all heads of all layers


@_size.register
def _(spec: Grid) -> tuple[float, float]:
    across = max(len(maps) for maps in spec.maps)
    return min(24.0, 0.6 + 1.0 * across), min(40.0, 0.7 + 1.05 * len(spec.maps))


@_draw.register
def _(spec: Grid, figure: Any) -> None:
    across = max(len(maps) for maps in spec.maps)
    figure.suptitle(_title(spec.title), **_font())
    figure.get_layout_engine().set(wspace=0.03, hspace=0.03, w_pad=0.02, h_pad=0.02)
    cells = figure.subplots(len(spec.maps), across, squeeze=False)
    for layer, maps in enumerate(spec.maps):
        for head in range(across):
            axes = cells[layer][head]
            axes.set(xticks=[], yticks=[])
            if head >= len(maps):
                axes.axis("off")
                continue
            values = _pooled(maps[head].detach().float().cpu(), _MOST_IN_GRID)
            norm = _norm(spec.colour, values, clip=True)
            axes.imshow(values.numpy(), cmap=_WEIGHTS, norm=norm, aspect="auto")
            if layer == 0:
                axes.set_title(f"{head}", fontsize=8)
            if head == 0:
                axes.set_ylabel(f"{layer}", fontsize=8, rotation=0, ha="right", va="center")
            if spec.names is not None:
                axes.set_xlabel(_label(spec.names[layer][head]), labelpad=1, **_font(fontsize=6))
    figure.supxlabel("head", fontsize=9)
    figure.supylabel("layer", fontsize=9)


# -- lines


@_size.register
def _(spec: Profile) -> tuple[float, float]:
    return 7.5, 4.0


@_draw.register
def _(spec: Profile, figure: Any) -> None:
    from matplotlib import colormaps

    axes = figure.add_subplot()
    values = spec.values.detach().float().cpu()
    positions = range(values.shape[1])
    few = spec.lines is not None and len(spec.lines) <= 12
    colours = colormaps["viridis"](torch.linspace(0.0, 0.9, max(1, len(values))).numpy())
    for index, line in enumerate(values):
        name = _label(spec.lines[index]) if few and spec.lines is not None else None
        axes.plot(
            positions, line.numpy(), color=colours[index], alpha=0.75, linewidth=1, label=name
        )
    if spec.mean and len(values) > 1:
        mean = values.nanmean(0).numpy()
        axes.plot(positions, mean, color="black", linewidth=2.5, label="mean")
    axes.set_title(_title(spec.title), **_font())
    axes.set(xlabel=_title(spec.place_title), ylabel=_title(spec.value_title))
    axes.margins(x=0.02)
    if few or (spec.mean and len(values) > 1):
        axes.legend(prop=_font_of_legend(), ncols=2, frameon=False)


def _font_of_legend() -> dict[str, Any]:
    font = _font()
    return {"size": 7, **({"family": font["fontfamily"]} if font else {})}


# -- words in colour


def _lines(words: Sequence[str]) -> list[list[tuple[int, str, float, float]]]:
    """Lines of (number, label, place, breadth) in inches, as the words follow each other."""
    lines: list[list[tuple[int, str, float, float]]] = [[]]
    left = 0.0
    for number, word in enumerate(words):
        label = _label(word)
        breadth = 0.14 + 0.098 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in label)
        if lines[-1] and left + breadth > _LINE:
            lines.append([])
            left = 0.0
        lines[-1].append((number, label, left, breadth))
        left += breadth + 0.04
    return lines


@_size.register
def _(spec: Text) -> tuple[float, float]:
    return _LINE + 0.4, 0.5 + 0.34 * len(_lines(spec.words)) + (0.3 if spec.title else 0.0)


@_draw.register
def _(spec: Text, figure: Any) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    lines = _lines(spec.words)
    axes = figure.add_subplot()
    axes.set_title(_title(spec.title), loc="left", **_font(fontsize=10))
    axes.set(xlim=(0, _LINE), ylim=(len(lines) * 0.34, 0))
    axes.axis("off")
    values = spec.values.detach().float().cpu()
    most = float(values.abs().max()) if values.numel() else 0.0
    for row, line in enumerate(lines):
        for number, label, left, breadth in line:
            value = float(values[number])
            share = abs(value) / most if most else 0.0
            scale = colormaps["Oranges" if value >= 0 else "Blues"]
            edge = "black" if number in spec.marked else "none"
            box = Rectangle(
                (left, row * 0.34 + 0.03),
                breadth,
                0.27,
                facecolor=scale(0.75 * share),
                edgecolor=edge,
            )
            axes.add_patch(box)
            middle = (left + breadth / 2, row * 0.34 + 0.17)
            axes.text(*middle, label, ha="center", va="center", **_font(fontsize=10))


# -- an image


@_size.register
def _(spec: Overlay) -> tuple[float, float]:
    height, width, _ = spec.image.shape
    return 5.5, 5.0 * height / max(1, width) + 0.4


@_draw.register
def _(spec: Overlay, figure: Any) -> None:
    from matplotlib.patches import Rectangle

    height, width, _ = spec.image.shape
    axes = figure.add_subplot()
    axes.set_title(_title(spec.title), **_font(fontsize=_fitting(spec.title, 4.2)))
    axes.axis("off")
    picture = spec.image.detach().float().cpu().clamp(0, 1)
    grey = picture.mean(2, keepdim=True).expand(-1, -1, 3)
    axes.imshow((0.35 * picture + 0.65 * grey).numpy(), extent=(0, width, height, 0))
    values = spec.values.detach().float().cpu()
    norm = _norm("linear", values, clip=spec.clip)
    share = (values / norm.vmax).clamp(0, 1)
    image = axes.imshow(
        values.numpy(),
        cmap="inferno",
        norm=norm,
        alpha=(0.15 + 0.6 * share).numpy(),
        extent=(0, width, height, 0),
        interpolation="nearest",
    )
    _scale(figure, axes, image, values, label="weight", shrink=0.8)
    down, across = (side / max(1, n) for side, n in zip((height, width), values.shape))
    for row in spec.edges[0]:
        axes.axhline(row * down, color="white", linewidth=0.6, alpha=0.6)
    for column in spec.edges[1]:
        axes.axvline(column * across, color="white", linewidth=0.6, alpha=0.6)
    if spec.marked is not None:
        corner = (spec.marked[1] * across, spec.marked[0] * down)
        axes.add_patch(Rectangle(corner, across, down, fill=False, edgecolor="cyan", linewidth=2))


# -- several


@_size.register
def _(spec: Rows) -> tuple[float, float]:
    sizes = [_size(part) for part in spec.parts]
    return max(across for across, _ in sizes), min(60.0, sum(down for _, down in sizes))


@_draw.register
def _(spec: Rows, figure: Any) -> None:
    if spec.title:
        figure.suptitle(_title(spec.title), **_font())
    heights = [_size(part)[1] for part in spec.parts]
    parts = figure.subfigures(len(spec.parts), 1, squeeze=False, height_ratios=heights)
    for part, room in zip(spec.parts, parts[:, 0]):
        _draw(part, room)
