"""Pictures: what to draw (a spec) apart from drawing it (matplotlib, in one file)."""

from regard.plots.specs import Heatmap

__all__ = ["Heatmap"]
