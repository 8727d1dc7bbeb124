"""The gradient with respect to the weights, without materialising them: dA = dO · Vᵀ.

A fused operator never computes the weights, so autograd never computes their gradient. The output
is A · V, so dA follows block by block from dO and the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from regard.errors import StateError
from regard.recipe import per_head
from regard.types import Weights


class OutputGradient:
    """Collects the output's gradient in backward; gives that of the weights, for any rows.

    `arrange` brings the collected gradient into (batch, head, query, width), or, if the model
    computed the matrix itself (`value` None), into the axes of the weights.
    """

    def __init__(self, value: Tensor | None, arrange: Callable[[Tensor], Tensor]) -> None:
        self._value, self._arrange = value, arrange
        self._arrived: list[Tensor] = []  # shared with the gradients of some heads
        self._heads: Sequence[int] | None = None
        self._device: torch.device | str | None = None  # of the results, if another

    def arrived(self, gradient: Tensor) -> None:
        """Hook for backward; several passes add up, as in `.grad`."""
        gradient = gradient.detach()
        self._arrived[:] = [gradient + self._arrived[0] if self._arrived else gradient]

    def clear(self) -> None:
        """Reset before the next backward pass."""
        self._arrived.clear()

    def of_heads(self, which: Sequence[int]) -> OutputGradient:
        """The gradient of some heads."""
        picked = copy(self)
        picked._heads = which if self._heads is None else [self._heads[head] for head in which]
        return picked

    def to(self, device: torch.device | str) -> OutputGradient:
        """The gradient on a device, also one of a later backward pass."""
        moved = copy(self)
        moved._device = device
        moved._value = None if self._value is None else self._value.to(device)
        return moved

    def of_weights(self, name: str, rows: slice | None) -> Weights:
        """The gradient, (batch, head, query, key), or some rows of it."""
        gradient, value = self.parts(name)
        gradient = gradient[:, :, rows or slice(None)]
        return gradient if value is None else gradient @ value.mT

    def parts(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Two factors of the gradient: the output's gradient (batch, head, query, width), and the
        values (batch, head, key, width); or the gradient itself and None."""
        if not self._arrived:
            raise StateError(f"{name}: backward has not run, or the loss does not depend on it")
        gradient = self._arrange(self._arrived[0])
        value = None if self._value is None else per_head(self._value, gradient.shape[1])
        if self._heads is not None:
            heads = list(self._heads)
            gradient = gradient[:, heads]
            value = None if value is None else value[:, heads]
        return gradient if self._device is None else gradient.to(self._device), value
