"""The only file that knows matplotlib. It never touches pyplot or other global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import MissingExtraError
from regard.plots.specs import Heatmap

_MOST_CELLS = 1024  # a side; more than a screen has pixels
_MOST_WITH_VALUES = 12  # maps up to this size have their numbers written into the cells


def save(spec: Heatmap, path: Path) -> Path:
    """Draw a spec into a file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    rows, columns = spec.values.shape
    size = (min(12.0, 2.5 + 0.5 * columns), min(10.0, 1.8 + 0.45 * rows))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    _heatmap(figure, spec)
    figure.savefig(path, dpi=150)
    return path


def _heatmap(figure: Any, spec: Heatmap) -> None:
    axes = figure.add_subplot()
    values = spec.values.detach().float().cpu()
    small = max(values.shape) <= _MOST_WITH_VALUES
    shown = _pooled(values).numpy()
    rows, columns = values.shape
    image = axes.imshow(
        shown,
        cmap="viridis",
        norm=_norm(spec, values, small),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    figure.colorbar(image, ax=axes, label="weight")
    axes.set_title(spec.title)
    axes.set_xlabel(spec.column_title)
    axes.set_ylabel(spec.row_title)
    if spec.columns is not None:
        _ticks(axes.set_xticks, spec.columns, rotation=45)
    if spec.rows is not None:
        _ticks(axes.set_yticks, spec.rows, rotation=0)
    if not small:
        return
    middle = float(values.max()) / 2 if values.numel() else 0.0
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            colour = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)


def _norm(spec: Heatmap, values: Tensor, small: bool) -> Any:
    """How weights become colours."""
    from matplotlib.colors import LogNorm, Normalize

    positive = values[values > 0]
    if not positive.numel():
        return Normalize(0.0, 1.0)
    if spec.colour == "log":
        most = float(positive.max())
        return LogNorm(max(float(positive.min()), most * 1e-6), most, clip=True)
    if small:
        return Normalize(0.0, float(values.max()))
    ranked = positive.flatten().sort().values
    return Normalize(0.0, float(ranked[int(0.99 * (len(ranked) - 1))]), clip=True)


def _pooled(values: Tensor) -> Tensor:
    """At most about a thousand cells a side, each the mean of those it stands for."""
    steps = [max(1, size // _MOST_CELLS) for size in values.shape]
    if max(steps) == 1:
        return values
    return torch.nn.functional.avg_pool2d(values[None, None], steps, ceil_mode=True)[0, 0]


def _ticks(put: Any, labels: Sequence[str], rotation: int) -> None:
    """At most forty labels, evenly spread, so that they stay readable."""
    step = max(1, -(-len(labels) // 40))
    places = range(0, len(labels), step)
    put(list(places), [labels[place] for place in places], rotation=rotation)
