"""Capture: the attention of any PyTorch model, with no edit to it."""

from regard.tracing.capture import CaptureWarning, capture, trace
from regard.tracing.registry import register_recipe
from regard.tracing.stitch import stitch

__all__ = ["CaptureWarning", "capture", "register_recipe", "stitch", "trace"]
