"""Pictures: what to draw (a spec) apart from drawing it (matplotlib, in one file)."""

from regard.plots.of_effects import effects
from regard.plots.of_image import channels, overlay, windows
from regard.plots.of_trace import alignment, by_head, grid, heatmap, plot, profile, text
from regard.plots.specs import (
    COLUMN,
    PAGE,
    Columns,
    Grid,
    Heatmap,
    Overlay,
    Profile,
    Rows,
    Spec,
    Style,
    Text,
)

__all__ = [
    "COLUMN",
    "PAGE",
    "Columns",
    "Grid",
    "Heatmap",
    "Overlay",
    "Profile",
    "Rows",
    "Spec",
    "Style",
    "Text",
    "alignment",
    "by_head",
    "channels",
    "effects",
    "grid",
    "heatmap",
    "overlay",
    "plot",
    "profile",
    "text",
    "windows",
]
