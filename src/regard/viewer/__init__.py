"""Attention on a page: from recipes to compact bytes, one HTML file, a small server."""

from regard.viewer.document import Page, page
from regard.viewer.scene import PageOptions, Scene

__all__ = ["Page", "PageOptions", "Scene", "page"]
