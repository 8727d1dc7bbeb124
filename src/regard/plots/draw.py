"""Draws specs. This file and `letters` alone know matplotlib; its settings are put back at once."""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import MissingExtraError
from regard.plots.specs import (
    Colour,
    Grid,
    Heatmap,
    Overlay,
    Profile,
    Rows,
    Spec,
    Style,
    Text,
)

_MOST_CELLS = 1024  # a side; more than a screen has pixels
_MOST_IN_GRID = 96  # the same for a thumbnail
_MOST_WITH_VALUES = 12  # maps up to this size have their numbers written into the cells,
_MOST_UNCLIPPED = 64  # and up to this one colours that reach to the largest
_MOST_LABELS = 40  # of an axis
_MOST_LABELLED = 6  # lines with their names at their ends; with more, each has a picture
_MOST_PICTURES = 48
_WEIGHTS = "viridis"  # even steps look even, also to the colour-blind
_TEXT_WIDTH = 9.0  # of a line of text, in inches for letters of ten points
_LETTER = 0.0079  # inches of a letter of a title, for each point of its size
_SMALLEST = 6.0  # points of a title of ten-point labels
_STROKES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Pen:
    """How large a picture is, and how its letters are written."""

    style: Style
    ordered: bool = False  #: whether what reads the file puts right-to-left letters in order

    @property
    def scale(self) -> float:
        """Of inches that were chosen for letters of ten points."""
        return self.style.font_size / 10

    def inches(self, across: float, down: float) -> tuple[float, float]:
        """The size of a picture that is so large with letters of ten points."""
        if self.style.width is None:
            return across * self.scale, down * self.scale
        return self.style.width, down * self.style.width / across

    def label(self, text: str) -> str:
        from regard.plots.letters import readable

        return readable(text, ordered=self.ordered)

    def title(self, text: str) -> str:
        from regard.plots.letters import shown

        return shown(text, ordered=self.ordered)

    def points(self, size: float) -> float:
        """A size of letters that is chosen beside labels of ten points."""
        return size * self.scale

    def font(self, size: float = 10.0) -> dict[str, Any]:
        """Fonts that between them have the most letters, for one text."""
        from regard.plots.letters import families

        family = {"fontfamily": families()} if families() else {}
        return {"fontsize": self.points(size), **family}

    def heading(self, text: str, inches: float) -> tuple[str, dict[str, Any]]:
        """A title in letters, and as many lines, as fit a breadth; and its font."""
        smallest = self.points(_SMALLEST)
        most = max(8, int(inches / (_LETTER * smallest)))
        text = self.title(text)
        lines = [part for line in text.splitlines() for part in textwrap.wrap(line, most) or [""]]
        longest = max(map(len, lines), default=1)
        size = max(_SMALLEST, min(12.0, inches / (_LETTER * max(1, longest)) / self.scale))
        return "\n".join(lines), self.font(size)

    def fits(self, inches: float, count: int, lines: float) -> int:
        """Of so many labels side by side, every how many-th fits; each takes so many lines."""
        room = inches / (lines * self.style.font_size / 72)
        return max(1, math.ceil(count / max(1.0, min(_MOST_LABELS, room))))


def save(spec: Spec, path: Path, style: Style) -> Path:
    """Draw a spec into a file."""
    with _settings(style):
        pen = Pen(style, ordered=path.suffix.lower() == ".svg")
        _figure(spec, pen).savefig(path, dpi=style.dpi)
    return path


def png(spec: Spec) -> bytes:
    """A spec as the bytes of a picture."""
    room = io.BytesIO()
    style = Style(dpi=100)
    with _settings(style):
        _figure(spec, Pen(style)).savefig(room, format="png", dpi=style.dpi)
    return room.getvalue()


@contextmanager
def _settings(style: Style) -> Iterator[None]:
    """Letters of this size, TrueType fonts in PDF (many venues refuse Type 3), text in SVG."""
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    options: dict[str, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none"}
    options |= {"font.size": style.font_size}
    strokes = ("axes.linewidth", "xtick.major.width", "ytick.major.width")
    options |= dict.fromkeys(strokes, 0.08 * style.font_size)
    with rc_context(options):  # type: ignore[arg-type]
        yield


def _figure(spec: Spec, pen: Pen) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_size(spec, pen), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(spec, figure, pen)
    return figure


@functools.singledispatch
def _size(spec: Spec, pen: Pen) -> tuple[float, float]:
    """Inches across and down."""
    raise TypeError(f"{type(spec).__name__} cannot be drawn")


@functools.singledispatch
def _draw(spec: Spec, figure: Any, pen: Pen) -> None:
    raise TypeError(f"{type(spec).__name__} cannot be drawn")


# -- one map


@_size.register
def _(spec: Heatmap, pen: Pen) -> tuple[float, float]:
    rows, columns = spec.values.shape
    return pen.inches(min(12.0, 2.5 + 0.5 * columns), min(10.0, 1.8 + 0.45 * rows))


@_draw.register
def _(spec: Heatmap, figure: Any, pen: Pen) -> None:
    axes = figure.add_subplot()
    values = spec.values.detach().float().cpu()
    rows, columns = values.shape
    clip = spec.clip and max(values.shape) > _MOST_UNCLIPPED
    image = axes.imshow(
        _pooled(values, _MOST_CELLS).numpy(),
        cmap=_WEIGHTS,
        norm=_norm(spec.colour, values, clip=clip, most=spec.most),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    _scale(figure, axes, image, values, label=spec.value_title)
    across, down = _size(spec, pen)
    title, font = pen.heading(spec.title, across - pen.scale)
    axes.set_title(title, **font)
    axes.set_xlabel(pen.title(spec.column_title), **pen.font())
    axes.set_ylabel(pen.title(spec.row_title), **pen.font())
    every = max(pen.fits(0.7 * across, columns, 1.5), pen.fits(0.8 * down, rows, 1.2))
    if spec.columns is not None:
        _ticks(axes.set_xticks, spec.columns, every, 45, pen)
    if spec.rows is not None:
        _ticks(axes.set_yticks, spec.rows, every, 0, pen)
    room = 0.7 * across / max(1, columns)
    if max(values.shape) <= _MOST_WITH_VALUES and room >= 4.6 * 8 * _LETTER * pen.scale:
        _write_values(axes, values, spec.most, pen)


def _write_values(axes: Any, values: Tensor, most: float | None, pen: Pen) -> None:
    finite = values[values.isfinite()]
    middle = (float(finite.max()) if most is None else most) / 2 if finite.numel() else 0.0
    font = {"ha": "center", "va": "center", "fontsize": pen.points(8)}
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:.2f}", color="black" if value > middle else "white", **font)


def _scale(figure: Any, axes: Any, image: Any, values: Tensor, **options: Any) -> None:
    """The colours and their numbers; a tip where larger numbers share the last colour."""
    finite = values[values.isfinite()]
    cut = bool(finite.numel()) and float(finite.max()) > image.norm.vmax * (1 + 1e-6)
    figure.colorbar(image, ax=axes, extend="max" if cut else "neither", **options)


def _norm(colour: Colour, values: Tensor, clip: bool, most: float | None = None) -> Any:
    """How weights become colours; clipped ones share the colour of the 99th percentile, of
    positive and of negative weights. Negative ones have no logarithm: then colours are linear."""
    from matplotlib.colors import LogNorm, Normalize

    if most is not None:
        return Normalize(0.0, most, clip=True)
    positive = values[values.isfinite() & (values > 0)]
    if not positive.numel():
        return Normalize(0.0, 1.0)
    largest = float(positive.max())
    if colour == "log" and not (values < 0).any():
        return LogNorm(max(float(positive.min()), largest * 1e-6), largest, clip=True)
    if not clip:
        return Normalize(min(0.0, float(values[values.isfinite()].min())), largest)
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


def _ticks(put: Any, labels: Sequence[str], every: int, rotation: int, pen: Pen) -> None:
    """Every so many-th label, so that they stay readable."""
    ticks = range(0, len(labels), every)
    options = {"ha": "right", "rotation_mode": "anchor"} if rotation else {}
    shown = [pen.label(labels[tick]) for tick in ticks]
    put(list(ticks), shown, rotation=rotation, **pen.font(), **options)


# -- all heads of all layers


@_size.register
def _(spec: Grid, pen: Pen) -> tuple[float, float]:
    across = max(len(maps) for maps in spec.maps)
    return pen.inches(min(24.0, 1.7 + 1.0 * across), min(40.0, 0.9 + 1.05 * len(spec.maps)))


@_draw.register
def _(spec: Grid, figure: Any, pen: Pen) -> None:
    across = max(len(maps) for maps in spec.maps)
    width = _size(spec, pen)[0]
    title, font = pen.heading(spec.title, width - pen.scale)
    figure.suptitle(title, **font)
    figure.get_layout_engine().set(wspace=0.03, hspace=0.03, w_pad=0.02, h_pad=0.02)
    cells = figure.subplots(len(spec.maps), across, squeeze=False)
    small = [[_pooled(m.detach().float().cpu(), _MOST_IN_GRID) for m in maps] for maps in spec.maps]
    every = torch.cat([values.flatten() for maps in small for values in maps])
    longest = max(max(values.shape) for maps in small for values in maps)
    norm = _norm(spec.colour, every, clip=longest > _MOST_UNCLIPPED)
    names = spec.names if _names_fit(spec, (width - 1.5 * pen.scale) / across, pen) else None
    image = None
    for layer, maps in enumerate(small):
        for head in range(across):
            axes = cells[layer][head]
            axes.set(xticks=[], yticks=[])
            if head >= len(maps):
                axes.axis("off")
                continue
            image = axes.imshow(maps[head].numpy(), cmap=_WEIGHTS, norm=norm, aspect="auto")
            if layer == 0:
                axes.set_title(f"{head}", fontsize=pen.points(9))
            if head == 0:
                axes.set_ylabel(
                    f"{layer}", fontsize=pen.points(9), rotation=0, ha="right", va="center"
                )
            if names is not None:
                axes.set_xlabel(pen.label(names[layer][head]), labelpad=1, **pen.font(7.5))
    _scale(figure, cells, image, every, label="weight", aspect=40, fraction=0.05, pad=0.01)
    figure.supxlabel("head", fontsize=pen.points(10))
    figure.supylabel("layer", fontsize=pen.points(10))


def _names_fit(spec: Grid, inches: float, pen: Pen) -> bool:
    """Whether every name fits below its map."""
    longest = max((len(name) for names in spec.names or () for name in names), default=0)
    return longest * _LETTER * pen.points(7.5) <= inches


# -- lines


@_size.register
def _(spec: Profile, pen: Pen) -> tuple[float, float]:
    if _MOST_LABELLED < len(spec.values) <= _MOST_PICTURES:
        rows, _ = _pictures(len(spec.values))
        return pen.inches(7.5, 1.2 + 1.2 * rows)
    return pen.inches(7.5, 4.0)


def _pictures(lines: int) -> tuple[int, int]:
    """Rows and columns of small pictures."""
    columns = min(6, math.ceil(math.sqrt(1.5 * lines)))
    return math.ceil(lines / columns), columns


@_draw.register
def _(spec: Profile, figure: Any, pen: Pen) -> None:
    values = spec.values.detach().float().cpu()
    mean = values.nanmean(0) if spec.mean and len(values) > 1 else None
    apart = _MOST_LABELLED < len(values) <= _MOST_PICTURES
    text = f"{spec.title} (dotted: the mean)" if apart and mean is not None else spec.title
    title, font = pen.heading(text.strip(), _size(spec, pen)[0] - 0.5 * pen.scale)
    figure.suptitle(title, **font)
    figure.supxlabel(pen.title(spec.place_title), **pen.font())
    figure.supylabel(pen.title(spec.value_title), **pen.font())
    names = spec.lines or [f"{number}" for number in range(len(values))]
    if len(values) <= _MOST_LABELLED:
        _draw_labelled(figure, values, [] if len(values) == 1 else names, mean, pen)
    elif apart:
        _draw_apart(figure, values, names, mean, pen)
    else:
        _draw_numbered(figure, values, names, mean, pen)


def _draw_labelled(
    figure: Any, values: Tensor, names: Sequence[str], mean: Tensor | None, pen: Pen
) -> None:
    """Few lines, each with its name at its end."""
    axes = _line_axes(figure.add_subplot(), values)
    colours = _colours(len(values))
    lines = [
        (pen.label(name) if names else "", values[index], colours[index], pen.points(1.6))
        for index, name in enumerate(names or [""])
    ]
    if mean is not None:
        lines.append(("mean", mean, "black", pen.points(2.5)))
    for index, (_, line, colour, width) in enumerate(lines):
        stroke = "-" if line is mean else _STROKES[index % len(_STROKES)]
        axes.plot(range(len(line)), line.numpy(), color=colour, linewidth=width, linestyle=stroke)
    low, high = axes.get_ylim()
    gap = (high - low) * 1.2 * pen.style.font_size / 72 / (0.75 * figure.bbox.height / figure.dpi)
    ends = [(name, _end(line), colour) for name, line, colour, _ in lines if name]
    for (name, (place, _), colour), height in zip(ends, _apart([e[1][1] for e in ends], gap)):
        axes.annotate(
            name,
            (max(place, values.shape[1] - 1), height),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            annotation_clip=False,
            **pen.font(9),
        )


def _end(line: Tensor) -> tuple[int, float]:
    """The last number of a line, and its place."""
    places = line.isfinite().nonzero().flatten().tolist()
    return (places[-1], float(line[places[-1]])) if places else (0, 0.0)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved as little as it takes to be so far apart."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    moved = [heights[index] for index in order]
    for _ in range(100):
        for low in range(len(moved) - 1):
            lack = gap - (moved[low + 1] - moved[low])
            if lack > 0:
                moved[low] -= lack / 2
                moved[low + 1] += lack / 2
    places = dict(zip(order, moved))
    return [places[index] for index in range(len(heights))]


def _draw_apart(
    figure: Any, values: Tensor, names: Sequence[str], mean: Tensor | None, pen: Pen
) -> None:
    """A small picture for each line, in front of all others."""
    rows, columns = _pictures(len(values))
    cells = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat
    (colour,) = _colours(1)
    for index, axes in enumerate(cells):
        if index >= len(values):
            axes.axis("off")
            continue
        _line_axes(axes, values)
        axes.add_collection(_many(values, color="0.85", linewidth=pen.points(0.5)))
        if mean is not None:
            axes.plot(
                range(len(mean)), mean.numpy(), color="0.45", linewidth=pen.points(1), linestyle=":"
            )
        axes.plot(
            range(values.shape[1]), values[index].numpy(), color=colour, linewidth=pen.points(1.6)
        )
        axes.set_title(pen.label(names[index]), pad=2, **pen.font(9))
        axes.tick_params(labelsize=pen.points(8))


def _draw_numbered(
    figure: Any, values: Tensor, names: Sequence[str], mean: Tensor | None, pen: Pen
) -> None:
    """Lines that are too many to be named, coloured by their numbers."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    axes = _line_axes(figure.add_subplot(), values)
    axes.add_collection(_many(values, colors=_colours(len(values)), linewidth=pen.points(0.8)))
    if mean is not None:
        axes.plot(
            range(len(mean)), mean.numpy(), color="black", linewidth=pen.points(2.5), label="mean"
        )
        axes.legend(frameon=False, fontsize=pen.points(9))
    numbers = ScalarMappable(Normalize(0, len(values) - 1), _WEIGHTS)
    bar = figure.colorbar(numbers, ax=axes, ticks=[0, len(values) - 1])
    bar.ax.set_yticklabels([pen.label(names[0]), pen.label(names[-1])], **pen.font(9))


def _line_axes(axes: Any, values: Tensor) -> Any:
    """Axes over the places and all numbers of some lines."""
    from matplotlib.ticker import MaxNLocator

    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.5
    last = max(1, values.shape[1] - 1)
    axes.set(xlim=(-0.02 * last, 1.02 * last), ylim=(low - room, high + room))
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _many(values: Tensor, **options: Any) -> Any:
    """All lines as one object."""
    from matplotlib.collections import LineCollection

    places = torch.arange(values.shape[1]).to(values).expand_as(values)
    return LineCollection(list(torch.stack([places, values], -1).numpy()), **options)


def _colours(count: int) -> Any:
    """Colours of lines, from dark to light, all of them darker than paper."""
    from matplotlib import colormaps

    return colormaps[_WEIGHTS](torch.linspace(0.15, 0.85, count).numpy())


# -- words in colour


def _lines(
    words: Sequence[str], width: float, pen: Pen
) -> list[list[tuple[int, str, float, float]]]:
    """Lines of (number, label, place, breadth), as the words follow each other."""
    lines: list[list[tuple[int, str, float, float]]] = [[]]
    left = 0.0
    for number, word in enumerate(words):
        label = pen.label(word)
        breadth = 0.14 + 0.098 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in label)
        if lines[-1] and left + breadth > width:
            lines.append([])
            left = 0.0
        lines[-1].append((number, label, left, breadth))
        left += breadth + 0.04
    return lines


def _text_width(pen: Pen) -> float:
    """Of a line, in inches for letters of ten points."""
    width = pen.style.width
    return _TEXT_WIDTH if width is None else max(1.0, width / pen.scale - 0.4)


@_size.register
def _(spec: Text, pen: Pen) -> tuple[float, float]:
    width = _text_width(pen)
    title, _ = pen.heading(spec.title, width * pen.scale)
    lines = len(_lines(spec.words, width, pen))
    down = 0.5 + 0.34 * lines + 0.25 * len(title.splitlines())
    return (width + 0.4) * pen.scale, down * pen.scale


@_draw.register
def _(spec: Text, figure: Any, pen: Pen) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    width = _text_width(pen)
    lines = _lines(spec.words, width, pen)
    axes = figure.add_subplot()
    title, font = pen.heading(spec.title, width * pen.scale)
    axes.set_title(title, loc="left", **font)
    axes.set(xlim=(0, width), ylim=(len(lines) * 0.34, 0))
    axes.axis("off")
    values = spec.values.detach().float().cpu()
    most = float(values.nan_to_num(0.0).abs().max()) if values.numel() else 0.0
    for row, line in enumerate(lines):
        for number, label, left, breadth in line:
            value = float(values[number])
            aside = math.isnan(value)
            share = 0.0 if aside or not most else abs(value) / most
            box = Rectangle(
                (left, row * 0.34 + 0.03),
                breadth,
                0.27,
                facecolor=colormaps["Blues" if value < 0 else "Oranges"](0.75 * share),
                edgecolor="black" if number in spec.marked else "none",
            )
            if aside:
                box.set_facecolor("none")
            axes.add_patch(box)
            middle = (left + breadth / 2, row * 0.34 + 0.17)
            colour = "0.55" if aside else "black"
            axes.text(*middle, label, ha="center", va="center", color=colour, **pen.font())


# -- an image


@_size.register
def _(spec: Overlay, pen: Pen) -> tuple[float, float]:
    height, width, _ = spec.image.shape
    return pen.inches(5.5, 5.0 * height / max(1, width) + 0.4)


@_draw.register
def _(spec: Overlay, figure: Any, pen: Pen) -> None:
    from matplotlib.patches import Rectangle

    height, width, _ = spec.image.shape
    axes = figure.add_subplot()
    title, font = pen.heading(spec.title, 0.76 * _size(spec, pen)[0])
    axes.set_title(title, **font)
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
def _(spec: Rows, pen: Pen) -> tuple[float, float]:
    sizes = [_size(part, pen) for part in spec.parts]
    return max(across for across, _ in sizes), min(60.0, sum(down for _, down in sizes))


@_draw.register
def _(spec: Rows, figure: Any, pen: Pen) -> None:
    if spec.title:
        title, font = pen.heading(spec.title, _size(spec, pen)[0] - pen.scale)
        figure.suptitle(title, **font)
    heights = [_size(part, pen)[1] for part in spec.parts]
    parts = figure.subfigures(len(spec.parts), 1, squeeze=False, height_ratios=heights)
    for part, room in zip(spec.parts, parts[:, 0]):
        _draw(part, room, pen)
