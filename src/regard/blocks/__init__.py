"""Blocks and models built from mechanisms."""

from regard.blocks.blocked import Blocked
from regard.blocks.decomposable_classifier import DecomposableClassifier

__all__ = ["Blocked", "DecomposableClassifier"]
