"""Pictures of what was captured: specs out of traces, records and tensors.

Those over an image are in `of_image`.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.aggregate import Words, mean_attention
from regard.aggregate.combine_heads import Fusion, fused_map
from regard.aggregate.sources import Layer, check_drawable, has_shares, layers_of, token_positions
from regard.aggregate.statistics.head_statistics import FIGURES
from regard.aggregate.statistics.report import Report
from regard.aggregate.statistics.token_positions import is_special
from regard.errors import RegardError
from regard.plots.choices import checked_example, tokens_of, way_of
from regard.plots.of_image import channels, overlay, windows
from regard.plots.specs import Colour, Grid, Heatmap, Profile, Spec, Text
from regard.record import Trace, forms

_THUMBNAIL = 96  # cells a side of a small map
_TITLES = {"entropy": "entropy, nats", "distance": "mean distance, tokens"}


def heatmap(
    attention: Any,
    *,
    heads: Fusion = "mean",
    example: int = 0,
    words: Words | None = None,
    title: str | None = None,
    colour: Colour = "linear",
) -> Heatmap:
    """One attention as a map, with its tokens or, where given, its words.

    Args:
        attention: a Record, or a tensor (batch, head, query, key).
        heads: how heads are joined, as for `regard.combine_heads`.
        example: which one of the batch.
        words: words to show instead of their pieces.
        title: the layer and the heads when None.
        colour: "linear" or "log".
    """
    layers = layers_of(attention)
    if len(layers) > 1:
        raise RegardError(
            f"heatmap: {len(layers)} layers, expected one, as trace[0]; grid() draws all of them"
        )
    check_drawable(layers[0])
    record = layers[0].record
    checked_example(example, layers[0].recipe.shape.batch)
    values = fused_map(layers[0].recipe, heads)[example]
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    if words is not None:
        values = words.merge(values[None, None])[0, 0]
        rows = columns = words.names
    elif record is not None:
        rows, columns = (
            tokens_of(record.query_tokens, example),
            tokens_of(record.key_tokens, example),
        )
    if title is None:
        title = f"{_layer_name(layers[0])}, {_heads_name(heads)}"
    return Heatmap(values, rows, columns, title, colour=colour)


def grid(
    trace: Any,
    *,
    example: int = 0,
    part: str | None = None,
    types: bool = True,
    real: Any = None,
    title: str | None = None,
    colour: Colour = "linear",
) -> Grid:
    """Every head of every layer as a small map on one scale, with a word for what it is.

    Args:
        trace: a Trace, or a list of tensors (batch, head, query, key).
        example: which one of the batch.
        part: of an encoder–decoder model, "encoder", "decoder" or "cross"; all when None.
        types: whether each head's type, of `trace.report()`, stands below it; the kind of its
            weights where they are no shares and heads have no type.
        real: for the types, which positions are not padding, (position,) or (batch, position).
        title: above all of them; how many heads and positions there are when None.
        colour: "linear" shows what is strong, "log" faint structure too; signed weights are linear.
    """
    every = isinstance(trace, Trace) and part is None
    layers = layers_of(forms.attending(trace) if every else trace, part=part)
    maps = []
    for layer in layers:
        check_drawable(layer)
        batch, heads, _, _ = layer.recipe.shape
        index = checked_example(example, batch) % batch
        with torch.no_grad():
            small = [_small(layer.recipe.at(index, head).weights()[0]) for head in range(heads)]
        maps.append(torch.cat(small))
    names = None
    if types and isinstance(trace, Trace):
        by_layer: dict[str, list[str]] = {}
        if any(map(has_shares, layers)):
            for row in trace.report(part=part, real=real):
                by_layer.setdefault(row.name, []).append(row.type)
        names = [
            by_layer.get(layer.name, [layer.recipe.kind] * layer.recipe.shape.heads)
            for layer in layers
        ]
    if title is None:
        sizes = dict.fromkeys(
            f"{r.shape.queries} × {r.shape.keys}" for r in (layer.recipe for layer in layers)
        )
        count = sum(len(heads) for heads in maps)
        title = f"{count} heads in {len(layers)} layers, {', '.join(sizes)} positions"
    return Grid(maps, names, title, colour)


def alignment(
    trace: Any,
    *,
    heads: Fusion = "mean",
    layer: int | None = None,
    example: int = 0,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    title: str = "",
) -> Heatmap:
    """Cross-attention as a translator's matrix: the source across, the target down.

    Args:
        trace: a Trace with cross-attention, or a list of tensors of it.
        heads: how heads are joined.
        layer: which cross-attention, from 0; the mean of all when None.
        example: which one of the batch.
        source: words of the source; the record's tokens when None.
        target: words of the target; the record's tokens when None.
        title: above it.
    """
    layers = layers_of(trace, part="cross" if isinstance(trace, Trace) else None)
    if layer is not None:
        if not -len(layers) <= layer < len(layers):
            raise RegardError(f"alignment: layer={layer}, expected from 0 to {len(layers) - 1}")
        layers = [layers[layer]]
        if isinstance(heads, Tensor) and heads.dim() == 2:
            heads = heads[layer]
    _check_layers(layers)
    values = mean_attention([each.recipe for each in layers], heads=heads)
    record = layers[0].record
    if record is not None:
        source = source or tokens_of(record.key_tokens, example)
        target = target or tokens_of(record.query_tokens, example)
    matrix = values[checked_example(example, values.shape[0])]
    return Heatmap(matrix, target, source, title, row_title="target", column_title="source")


def _check_layers(layers: Sequence[Layer]) -> None:
    """Refuse calls of one attention in the place of layers."""
    calls = Counter(layer.record.site.base for layer in layers if layer.record is not None)
    for name, count in calls.items():
        if count > 1:
            raise RegardError(
                f"alignment: {name} ran {count} times in one pass: regard.stitch(trace) joins the "
                "steps of a decoder loop, layer=0 draws the first call alone"
            )


def by_head(report: Report | Trace, figure: str = "entropy", *, title: str = "") -> Heatmap:
    """One figure of a report, or of a trace's, as a map of layers and heads."""
    values = _figures(report, figure)
    rows, columns = (tuple(str(number) for number in range(size)) for size in values.shape)
    return Heatmap(
        values,
        rows,
        columns,
        title,
        row_title="layer",
        column_title="head",
        value_title=_TITLES.get(figure, figure),
        clip=False,
    )


def profile(report: Report | Trace, figure: str = "entropy", *, title: str = "") -> Profile:
    """One figure of a report, or of a trace's, over the layers: a line for each head."""
    values = _figures(report, figure).T
    lines = tuple(f"head {head}" for head in range(values.shape[0]))
    return Profile(values, lines, title, value_title=_TITLES.get(figure, figure))


def text(
    trace: Trace,
    token: int,
    *,
    how: str = "rollout",
    example: int = 0,
    part: str | None = None,
    words: Words | None = None,
    tokens: Sequence[str] | None = None,
    special: bool = False,
    title: str | None = None,
) -> Text:
    """A sentence in colours: what reaches `token`, or matters for it.

    Special tokens are set aside: they stay in their places, in grey, and the strongest word has the
    full colour. The numbers of words are unchanged: shares of the whole.

    Args:
        trace: a Trace of self-attention.
        token: the position, or with `words` the word, that looks; -1 is the last one.
        how: "rollout", "relevance" (needs `grad=True` and backward), or "mean".
        example: which one of the batch.
        part: of an encoder–decoder model, "encoder" or "decoder".
        words: words to show instead of their pieces.
        tokens: the pieces; the record's own when None.
        special: whether special tokens are coloured like words.
        title: a default title when None.
    """
    ask = way_of(how)
    layer = layers_of(trace, part=part)[0]
    size = layer.recipe.shape.queries
    own = layer.record.query_tokens if layer.record is not None else None
    names = tokens or (words.tokens if words else tokens_of(own, example))
    names = names or [str(position) for position in range(size)]
    marked = token_positions(token, size if words is None else len(words.names)) or []
    positions = marked
    if words is not None:
        positions = [position for position, word in enumerate(words.pieces) if word in marked]
    checked_example(example, layer.recipe.shape.batch)
    values = ask(trace, positions, part=part)[example].mean(0)
    if words is not None:
        values, names = words.sum(values), words.names
    aside = [] if special else _special_words(names, words)
    if len(aside) == len(names):
        aside = []
    if title is None:
        title = f"{how} to “{names[marked[0]]}”"
        title += f"; {', '.join(dict.fromkeys(names[n] for n in aside))} set aside" * bool(aside)
    if aside:
        values = values.index_fill(0, torch.tensor(aside, device=values.device), math.nan)
    return Text(names, values, title, marked)


def _special_words(names: Sequence[str], words: Words | None) -> list[int]:
    """Which words are special, as marked or by their spelling."""
    marked = frozenset() if words is None else words.special
    return [index for index, name in enumerate(names) if index in marked or is_special(name)]


def plot(trace: Trace, what: str | None = None, **options: Any) -> Spec:
    """What `trace.plot()` draws: the map of one attention, else the grid of all heads."""
    functions = (heatmap, grid, alignment, by_head, profile, text, overlay, windows, channels)
    ways: dict[str, Callable[..., Spec]] = {draw.__name__: draw for draw in functions}
    if what is None:
        what = "heatmap" if len(trace) == 1 else "grid"
    if what not in ways:
        raise RegardError(f"plot: {what!r}, expected one of {', '.join(ways)}")
    if not len(trace):
        raise RegardError("plot: the trace is empty: trace.notes says why")
    signature = inspect.signature(ways[what])
    try:
        signature.bind(trace, **options)
    except TypeError as error:
        takes = ", ".join(list(signature.parameters)[1:])
        raise RegardError(f"plot({what!r}): {error}; it takes {takes}") from None
    return ways[what](trace, **options)


def _layer_name(layer: Layer) -> str:
    """Its number, as its path says, or its name."""
    record = layer.record
    return layer.name if record is None or record.layer is None else f"layer {record.layer}"


def _heads_name(heads: Fusion) -> str:
    if isinstance(heads, Tensor):
        return "heads weighted"
    return f"{heads} of heads" if isinstance(heads, str) else f"head {heads}"


def _figures(report: Report | Trace, figure: str) -> Tensor:
    """(layer, head); NaN where a layer has fewer heads."""
    if isinstance(report, Trace):
        report = report.report()
    if figure not in FIGURES:
        raise RegardError(f"figure={figure!r}, expected one of {', '.join(FIGURES)}")
    layers = sorted({row.layer for row in report})
    heads = max(row.head for row in report) + 1
    values = torch.full((len(layers), heads), math.nan)
    for row in report:
        values[layers.index(row.layer), row.head] = getattr(row, figure)
    return values


def _small(weights: Tensor) -> Tensor:
    """Thumbnails of (head, query, key)."""
    steps = [max(1, -(-size // _THUMBNAIL)) for size in weights.shape[1:]]
    if max(steps) == 1:
        return weights
    return torch.nn.functional.avg_pool2d(weights[None], steps, ceil_mode=True)[0]
