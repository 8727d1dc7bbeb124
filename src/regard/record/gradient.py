"""The gradient by the weights, from the gradient by the output: dA = dO · Vᵀ.

A fused operator never makes the weights, so autograd never makes their gradient. But the output
is A · V, and so dA comes back blockwise from dO, as large as the output, and the values.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from regard.errors import StateError
from regard.recipe import per_head
from regard.types import Shape, Weights


class OutputGradient:
    """Waits for backward; then gives the gradient by the weights, any block of rows.

    `arrange` brings the gradient that arrived into (batch, head, query, width), or, where the
    model made the matrix itself (`value` None), into the weights' own axes.
    """

    def __init__(self, value: Tensor | None, arrange: Callable[[Tensor], Tensor]) -> None:
        self._value, self._arrange = value, arrange
        self._arrived: Tensor | None = None

    def arrived(self, gradient: Tensor) -> None:
        """Called by backward; several backward passes add up, as they do in `.grad`."""
        gradient = gradient.detach()
        self._arrived = gradient if self._arrived is None else self._arrived + gradient

    def of_weights(self, name: str, shape: Shape, rows: slice | None) -> Weights:
        if self._arrived is None:
            raise StateError(f"{name}: backward has not run, or the loss does not depend on it")
        found = self._arrange(self._arrived)
        some = found[:, :, rows or slice(None)]
        if self._value is None:
            return some
        return some @ per_head(self._value, shape.heads).mT
