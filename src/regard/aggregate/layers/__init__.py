"""Layers to one map: one way a file."""
