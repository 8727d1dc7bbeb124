"""How many heads an attention has, and how wide they are."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import ShapeError


@dataclass(frozen=True)
class Heads:
    """Heads of a mechanism that are not all alike: groups, widths of their own.

    Args:
        n_heads: how many heads of queries.
        n_groups: key/value heads, a divisor of `n_heads`; 1 is multi-query, None one per head.
        head_width: features of a query or key in one head; width / n_heads when None.
        value_width: features of a value in one head; `head_width` when None.

    >>> from regard.mechanisms import Heads, MultiHead
    >>> MultiHead(16, Heads(4, n_groups=2, value_width=3)).to_value
    Linear(in_features=16, out_features=6, bias=True)
    """

    n_heads: int
    n_groups: int | None = None
    head_width: int | None = None
    value_width: int | None = None

    def __post_init__(self) -> None:
        if self.n_heads < 1:
            raise ShapeError(f"Heads: n_heads={self.n_heads}, expected at least 1")
        if self.n_groups is not None and (self.n_groups < 1 or self.n_heads % self.n_groups):
            raise ShapeError(
                f"Heads: n_groups {self.n_groups} is not a divisor of {self.n_heads} heads"
            )

    def fitted(self, width: int, owner: str = "MultiHead") -> tuple[int, int, int, int]:
        """Heads, groups, head width and value width in a model of this width."""
        head_width = self.head_width
        if head_width is None:
            if width % self.n_heads:
                raise ShapeError(
                    f"{owner}: width {width} is not a multiple of n_heads {self.n_heads}; "
                    f"Heads({self.n_heads}, head_width=...) chooses the width of a head"
                )
            head_width = width // self.n_heads
        groups = self.n_heads if self.n_groups is None else self.n_groups
        value_width = head_width if self.value_width is None else self.value_width
        return self.n_heads, groups, head_width, value_width
