"""The only file that knows matplotlib. It never touches pyplot or other global state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import MissingExtraError
from regard.plots.specs import Heatmap

_MOST_WITH_VALUES = 12  # maps up to this size have their numbers written into the cells


def save(spec: Heatmap, path: Path) -> Path:
    """Draw a spec into a file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    rows, columns = spec.values.shape
    size = (min(14.0, 2.5 + 0.5 * columns), min(14.0, 1.8 + 0.45 * rows))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    _heatmap(figure, spec)
    figure.savefig(path, dpi=150)
    return path


def _heatmap(figure: Any, spec: Heatmap) -> None:
    axes = figure.add_subplot()
    values = spec.values.detach().float().cpu()
    image = axes.imshow(values.tolist(), cmap="viridis", vmin=0.0, aspect="auto")
    figure.colorbar(image, ax=axes, label="weight")
    axes.set_title(spec.title)
    axes.set_xlabel(spec.column_title)
    axes.set_ylabel(spec.row_title)
    _ticks(axes.set_xticks, spec.columns, rotation=45)
    _ticks(axes.set_yticks, spec.rows, rotation=0)
    if max(values.shape) > _MOST_WITH_VALUES:
        return
    middle = float(values.max()) / 2 if values.numel() else 0.0
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            colour = "black" if value > middle else "white"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)


def _ticks(put: Any, labels: tuple[str, ...], rotation: int) -> None:
    """At most forty labels, evenly spread, so that they stay readable."""
    step = max(1, -(-len(labels) // 40))
    places = range(0, len(labels), step)
    put(list(places), [labels[place] for place in places], rotation=rotation)
