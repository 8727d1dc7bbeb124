"""Effects of changes to attention, place by place."""

from __future__ import annotations

from regard.editing import Effects
from regard.errors import RegardError
from regard.plots.specs import Heatmap


def effects(table: Effects, *, title: str | None = None) -> Heatmap:
    """The table of `regard.patch` or `regard.knockout` as a picture.

    Args:
        table: what they return.
        title: above the picture; the metric when None.
    """
    if not isinstance(table, Effects):
        raise RegardError(
            f"plots.effects: {type(table).__name__}, expected what regard.patch or regard.knockout "
            "returns"
        )
    target = "" if table.target is None else f", clean {table.target:.3g}"
    return Heatmap(
        table.values.float(),
        list(table.rows),
        [str(column) for column in table.columns],
        title=f"metric {table.reference:.3g}{target}" if title is None else title,
        row_title=table.row_title,
        column_title=table.column_title,
        colour="diverging",
        value_title="effect",
        clip=False,
    )
