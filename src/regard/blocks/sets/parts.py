"""What modules on sets are made of, checked when they are put together."""

from __future__ import annotations

from torch import nn

from regard.blocks.cross_block import CrossBlock
from regard.blocks.sets.learned_queries import LearnedQueries
from regard.errors import RegardError, ShapeError


def check_parts(module: nn.Module, queries: LearnedQueries, **blocks: CrossBlock) -> None:
    """Refuse queries that are not learned, blocks that do not cross, and other widths."""
    owner = type(module).__name__
    if not isinstance(queries, LearnedQueries):
        raise RegardError(
            f"{owner}: {type(queries).__name__} as learned queries, expected "
            "LearnedQueries(n_queries, width)"
        )
    for name, block in blocks.items():
        if not isinstance(block, CrossBlock):
            raise RegardError(f"{owner}: {name} is {type(block).__name__}, expected a CrossBlock")
        if block.width != queries.width:
            raise ShapeError(
                f"{owner}: {name} has width {block.width}, expected {queries.width} as the "
                "learned queries"
            )
