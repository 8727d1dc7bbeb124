"""A heatmap in characters: coloured cells in a terminal, shades without colour, ASCII in a pipe."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, Group
from rich.style import Style
from rich.text import Text
from torch import Tensor

Ink = Literal["colour", "shade", "ascii"]
Map = Float[Tensor, "row column"]

_EDGES: dict[Ink, str] = {"colour": "", "shade": "│", "ascii": "|"}
_RAMP: dict[Ink, str] = {"shade": " ░▒▓█", "ascii": " .:-=+*#%@"}
#: Signed weights: those of negative and of positive cells, from zero outwards.
_SIGNED_RAMPS: dict[Ink, tuple[str, str]] = {
    "shade": (" ·∘○●", " ░▒▓█"),
    "ascii": (" ,;oO0", " .:+*#"),
}
#: Blue to red through white at even steps, as in the pictures.
_DIVERGING = ((5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31))
#: Viridis at even steps, as in the pictures.
_VIRIDIS = (
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
)
_DARK, _LIGHT = Color.from_rgb(0, 0, 0), Color.from_rgb(255, 255, 255)
_WITH_NUMBERS = 4  # characters of a cell that has room for "100"
_WITH_SIGNS = 6  # characters of a cell that has room for "-0.25"
_WIDEST_CELL = 6
_WIDEST_LABEL = 18
_MOST_LINES = 44  # rows with a line each; with more, two share one
_MOST_STAIRS = 8  # lines of labels above the map


def ink_of(console: Console) -> Ink:
    """What a console can show: only ASCII goes into a pipe or to a dumb terminal."""
    if not console.is_terminal or console.is_dumb_terminal or console.options.ascii_only:
        return "ascii"
    fine = console.color_system in ("256", "truecolor")
    return "colour" if fine and not console.no_color else "shade"


def label(name: str) -> str:
    """A word on one line: characters that move the cursor or reverse text are shown as codes."""
    shown = "".join(repr(letter)[1:-1] if _steers(letter) else letter for letter in name)
    return shown if shown.strip() else f"'{shown}'"


def _steers(letter: str) -> bool:
    joiners = "\u200c\u200d"  # inside emoji and words
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in joiners


def heatmap(
    values: Map,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int,
    ink: Ink,
    peak: float | None = None,
    signed: bool = False,
) -> Group:
    """A heatmap with words on both axes, at most `width` characters wide.

    If there are too many words, each cell is the largest weight of a block. Lines below the map say
    so, and how many columns have no label.

    Args:
        values: weights (row, column).
        rows: query words.
        columns: key words.
        width: characters per line.
        ink: what the output can show.
        peak: the weight that is darkest; when None that of the map, but for a few larger ones.
        signed: whether weights may be negative: they are no percentages then, and have two hues.
    """
    values = values.detach().float().cpu().nan_to_num(0.0)
    rows, columns = [label(name) for name in rows], [label(name) for name in columns]
    layout = _Layout.of(rows, columns, width, ink)
    small, step = _strongest(values, layout.step, signed), layout.step
    sizes = small.abs() if signed else small
    peak = _peak(sizes) if peak is None else peak
    drawn = Text(no_wrap=True, overflow="crop")
    edge = _EDGES[ink]
    headers, every = _stairs(columns[::step], layout.cell, layout.room, ink)
    for stairs in headers:
        drawn.append(" " * (layout.side + 1 + len(edge)) + stairs.rstrip() + "\n", "dim")
    height = 2 if layout.paired else 1
    for top in range(0, small.shape[0], height):
        drawn.append(_fitted(rows[top * step], layout.side, ink) + " ", "bold")
        line = _line(small[top : top + height], peak, layout, ink, signed)
        drawn.append(edge).append_text(line).append(edge + "\n")
    clipped = bool((sizes > peak * 1.005).any())  # by more than the key can show
    drawn.append_text(
        _signed_key(peak, clipped, layout.side, width, ink)
        if signed
        else _key(peak, clipped, layout.side, width, ink)
    )
    return Group(drawn, *_left_out(rows, columns, step, every, ink))


def _left_out(
    rows: Sequence[str], columns: Sequence[str], step: int, every: int, ink: Ink
) -> Iterator[Text]:
    """Remarks on merged cells and unlabelled columns."""
    times = "x" if ink == "ascii" else "×"
    words, cells = f"{len(rows)} {times} {len(columns)}", f"{step} {times} {step}"
    if step > 1:
        yield Text(f"of {words} words; a cell is the strongest of {cells}", "dim")
    if every > 1:
        named = math.ceil(len(columns) / (step * every))
        yield Text(
            f"{named} of {len(columns)} columns have their word above them; a wider terminal or "
            "--html shows the others",
            "dim",
        )


class _Layout(NamedTuple):
    """Sizes of a heatmap, in characters."""

    side: int  #: width of the row labels
    room: int  #: width of what is right of them
    step: int  #: words per cell, on both axes
    cell: int  #: width of a cell
    paired: bool  #: whether two rows share a line

    @classmethod
    def of(cls, rows: Sequence[str], columns: Sequence[str], width: int, ink: Ink) -> _Layout:
        side = min(max(map(cell_len, rows), default=0), _WIDEST_LABEL, max(4, width // 4))
        room = max(1, width - side - 1 - 2 * len(_EDGES[ink]))
        last = max(map(cell_len, columns[-3:]), default=0)  # labels that reach beyond the cells
        inner = max(1, room - min(7, last))
        lines = 2 * _MOST_LINES if ink == "colour" else _MOST_LINES
        step = max(1, math.ceil(len(columns) / inner), math.ceil(len(rows) / lines))
        across, down = (math.ceil(len(names) / step) for names in (columns, rows))
        cell = max(1, min(_WIDEST_CELL, inner // max(1, across)))
        paired = ink == "colour" and (cell == 1 or down > _MOST_LINES)
        return cls(side, room, step, 1 if paired else cell, paired)


def _strongest(values: Map, step: int, signed: bool) -> Float[Tensor, "block_row block_column"]:
    """The largest weight of each block; with signs the one of the largest size."""
    if step == 1 or not values.numel():
        return values
    most = torch.nn.functional.max_pool2d(values[None], step, ceil_mode=True)[0]
    if not signed:
        return most
    least = -torch.nn.functional.max_pool2d(-values[None], step, ceil_mode=True)[0]
    return torch.where(most >= -least, most, least)


def _peak(values: Map) -> float:
    """The weight with full colour: on large maps the 99th percentile, as in the pictures."""
    positive = values[values > 0].flatten().sort().values
    if not len(positive):
        return 1.0
    small = max(values.shape) <= 12
    return float(positive[-1 if small else int(0.99 * (len(positive) - 1))])


def _line(rows: Map, peak: float, layout: _Layout, ink: Ink, signed: bool) -> Text:
    """One line of cells, of one row or of a pair."""
    line, cell = Text(), layout.cell
    # Faint weights show beside strong ones: colours go by the root.
    shares = ((rows.abs() / peak).clamp(0, 1).sqrt() * rows.sign()).tolist()
    colour = _diverging if signed else _viridis
    for column, (value, share) in enumerate(zip(rows[0].tolist(), shares[0])):
        if layout.paired:
            below = colour(shares[1][column]) if len(shares) > 1 else None
            line.append("▀", Style(color=colour(share), bgcolor=below))
        elif ink == "colour":
            written = _cell_number(value, cell, signed)
            front = _DARK if (abs(share) < 0.6 if signed else share > 0.55) else _LIGHT
            line.append(written.center(cell), Style(color=front, bgcolor=colour(share)))
        else:
            ramp = _SIGNED_RAMPS[ink][share > 0] if signed else _RAMP[ink]
            share = abs(share) if signed else max(0.0, share)
            line.append(ramp[math.ceil(share * (len(ramp) - 1) - 0.5)] * cell)
    return line


def _cell_number(value: float, cell: int, signed: bool) -> str:
    """The number of a cell, if there is room: percent, or a signed weight."""
    if signed:
        return f"{value:.2f}".rjust(5) if cell >= _WITH_SIGNS else ""
    return f"{100 * value:.0f}".rjust(3) if cell >= _WITH_NUMBERS else ""


def _diverging(share: float) -> Color:
    return _between(_DIVERGING, (share + 1) / 2)


def _viridis(share: float) -> Color:
    return _between(_VIRIDIS, max(0.0, share))


def _between(colours: Sequence[tuple[int, int, int]], share: float) -> Color:
    """The colour at a share of the way through colours at even steps."""
    index = share * (len(colours) - 1)
    low = min(int(index), len(colours) - 2)
    mixed = (round(a + (index - low) * (b - a)) for a, b in zip(colours[low], colours[low + 1]))
    return Color.from_rgb(*mixed)


def _signed_key(peak: float, clipped: bool, side: int, width: int, ink: Ink) -> Text:
    """The colours or signs of negative weights, of zero and of positive ones."""
    if ink == "colour":
        marks = [Text(" ", Style(bgcolor=_diverging(step / 8 - 1))) for step in range(17)]
        negative, positive = marks[:8], marks[9:]
    else:
        left, right = _SIGNED_RAMPS[ink]
        negative, positive = (
            [Text(mark) for mark in left[:0:-1]],
            [Text(mark) for mark in right[1:]],
        )
    key = Text(f"-{_brief(peak)} ").append_text(Text().join(negative)).append(" 0 ")
    key.append_text(Text().join(positive)).append(f" {_brief(peak)}")
    key.append(" or more" * clipped)
    indented = Text(" " * (side + 1)).append_text(key)
    return indented if indented.cell_len <= width else key


def _key(peak: float, clipped: bool, side: int, width: int, ink: Ink) -> Text:
    """The colour key; half of full colour is a quarter of the weight. Shorter where it must be."""
    marks = _marks(ink, 2)
    middle = len(marks) // 2
    key = Text("0 ").append_text(Text().join(marks[:middle])).append(f" {_brief(25 * peak)} ")
    key.append_text(Text().join(marks[middle:])).append(f" {_brief(100 * peak)} percent")
    key.append(" or more" * clipped)
    short = Text("0 ").append_text(Text().join(_marks(ink, 1)))
    short.append(f" {_brief(100 * peak)}%{'+' * clipped}")
    indented = Text(" " * (side + 1)).append_text(key)
    return next((each for each in (indented, key) if each.cell_len <= width), short)


def _brief(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"


def _marks(ink: Ink, repeat: int) -> list[Text]:
    """From zero to full colour."""
    if ink == "colour":
        last = 10 * repeat - 1
        return [Text(" ", Style(bgcolor=_viridis(step / last))) for step in range(last + 1)]
    return [Text(mark * repeat) for mark in _RAMP[ink]]


# -- labels above the columns: staggered, so that each starts above its own column


def _stairs(labels: Sequence[str], cell: int, room: int, ink: Ink) -> tuple[list[str], int]:
    """Lines above the map: every label starts above its column, on a line of its own if it would
    touch the next one, with a stem down to the map. If not all fit, only every second, third, …
    column has a label; that number is returned too."""
    for every in range(1, len(labels) + 1):
        chosen = {
            column * cell: cut(labels[column], min(_WIDEST_LABEL, room - column * cell), ink)
            for column in range(0, len(labels), every)
        }
        levels = _levels(chosen)
        if levels is not None:
            return _written(chosen, levels, ink), every
    return [], 1


def _levels(labels: dict[int, str]) -> dict[int, int] | None:
    """The line of each label, counted upwards from the map; None if there are too many.

    Labels to the right that a label covers are on lower lines, so that no stem crosses it.
    """
    levels: dict[int, int] = {}
    for start in sorted(labels, reverse=True):
        end = start + cell_len(labels[start])
        level = max((levels[other] + 1 for other in levels if other <= end), default=0)
        if level >= _MOST_STAIRS:
            return None
        levels[start] = level
    return levels


def _written(labels: dict[int, str], levels: dict[int, int], ink: Ink) -> list[str]:
    stem = "|" if ink == "ascii" else "│"
    lines = []
    for line in range(max(levels.values(), default=-1), -1, -1):
        written = ""
        for start in sorted(levels):
            if levels[start] >= line:
                mark = labels[start] if levels[start] == line else stem
                written = set_cell_size(written, start) + mark
        lines.append(_leftward_ended(written))
    return lines


def _fitted(name: str, width: int, ink: Ink) -> str:
    """A label, right-aligned in `width` cells."""
    name = cut(name, width, ink)
    return " " * (width - cell_len(name)) + _leftward_ended(name)


def cut(name: str, width: int, ink: Ink) -> str:
    """A label cut to `width` cells, with a mark if it is longer."""
    if cell_len(name) <= width:
        return name
    return set_cell_size(name, max(0, width - 1)) + ("~" if ink == "ascii" else "…")


def _leftward_ended(text: str) -> str:
    """Mark the end of right-to-left letters, lest a terminal reverse what follows."""
    leftward = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in text)
    return f"{text}\u200e" if leftward else text
