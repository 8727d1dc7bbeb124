"""The gradient by the weights, from the gradient by the output: dA = dO · Vᵀ.

A fused operator never makes the weights, so autograd never makes their gradient. But the output
is A · V, and so dA comes back blockwise from dO, as large as the output, and the values.
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
    """Waits for backward; then gives the gradient by the weights, any block of rows.

    `arrange` brings the gradient that arrived into (batch, head, query, width), or, where the
    model made the matrix itself (`value` None), into the weights' own axes.
    """

    def __init__(self, value: Tensor | None, arrange: Callable[[Tensor], Tensor]) -> None:
        self._value, self._arrange = value, arrange
        self._arrived: list[Tensor] = []  # shared with the gradients of some heads
        self._heads: Sequence[int] | None = None
        self._device: torch.device | str | None = None  # where answers go, if not where they are

    def arrived(self, gradient: Tensor) -> None:
        """Called by backward; several backward passes add up, as they do in `.grad`."""
        gradient = gradient.detach()
        self._arrived[:] = [gradient + self._arrived[0] if self._arrived else gradient]

    def clear(self) -> None:
        """Forget what arrived, before the next backward pass."""
        self._arrived.clear()

    def of_heads(self, which: Sequence[int]) -> OutputGradient:
        """The gradient of some heads."""
        picked = copy(self)
        picked._heads = which if self._heads is None else [self._heads[head] for head in which]
        return picked

    def to(self, device: torch.device | str) -> OutputGradient:
        """The gradient on a device, also one that has yet to arrive."""
        moved = copy(self)
        moved._device = device
        moved._value = None if self._value is None else self._value.to(device)
        return moved

    def of_weights(self, name: str, rows: slice | None) -> Weights:
        """The gradient, (batch, head, query, key), of some rows where asked."""
        found, value = self.parts(name)
        some = found[:, :, rows or slice(None)]
        return some if value is None else some @ value.mT

    def parts(self, name: str) -> tuple[Tensor, Tensor | None]:
        """What arrived, (batch, head, query, width), and the values (batch, head, key, width) whose
        product is the gradient; or the gradient itself and None."""
        if not self._arrived:
            raise StateError(f"{name}: backward has not run, or the loss does not depend on it")
        found = self._arrange(self._arrived[0])
        heads = found.shape[1]
        value = None if self._value is None else per_head(self._value, heads)
        if self._heads is not None:
            which = list(self._heads)
            found = found[:, which]
            value = None if value is None else value[:, which]
        return found if self._device is None else found.to(self._device), value
