"""The recipe of torch's native multi-head operators, which project and attend in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.masks import Mask
from regard.recipe.base import Recipe
from regard.recipe.softmaxed import Dot
from regard.types import Block, Kind, Shape, Values, Weights, register_pytree

Input = Float[Tensor, "batch position width"]


@dataclass(frozen=True, eq=False, repr=False)
class Projected(Recipe):
    """Softmax of scaled dot products of linear projections, made when they are asked for.

    Rows of `weight` and `bias` are those of query, key and value, as in `nn.MultiheadAttention`.
    `norm_weight`, `norm_bias` and `epsilon` are the layer norm of a pre-norm encoder layer.
    """

    input: Input
    weight: Float[Tensor, "three_width width"]
    bias: Float[Tensor, " three_width"] | None
    n_heads: int
    key_input: Float[Tensor, "batch key_position width"] | None = None
    mask: Mask | None = None
    norm_weight: Float[Tensor, " width"] | None = None
    norm_bias: Float[Tensor, " width"] | None = None
    epsilon: float = 1e-5
    value: Values | None = None

    @property
    def shape(self) -> Shape:
        keys = self.input if self.key_input is None else self.key_input
        return Shape(self.input.shape[0], self.n_heads, self.input.shape[1], keys.shape[1])

    @property
    def kind(self) -> Kind:
        return "distribution"

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.input.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        return self.input.device

    def plain(self) -> Dot:
        """The projections, made now, with the scale of the head width."""
        query, key = self._project(0), self._project(1)
        return Dot(query, key, self.value, mask=self.mask, scale=query.shape[3] ** -0.5)

    def with_value(self) -> Projected:
        """This recipe with the projected values, which `mixed()` needs."""
        return replace(self, value=self._project(2))

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        return self.plain().weights(rows, columns)

    def log_weights(self, block: Block) -> Weights:
        return self.plain().log_weights(block)

    def at(self, batch: int, head: int) -> Dot:
        return self.plain().at(batch, head)

    def of_heads(self, which: Sequence[int]) -> Dot:
        return self.plain().of_heads(which)

    def _project(self, part: int) -> Tensor:
        """Query (0), key (1) or value (2): (batch, head, position, width)."""
        inputs = self.input if part == 0 or self.key_input is None else self.key_input
        width = self.weight.shape[0] // 3
        rows = slice(part * width, (part + 1) * width)
        if self.norm_weight is not None:
            size = (inputs.shape[2],)
            inputs = F.layer_norm(inputs, size, self.norm_weight, self.norm_bias, self.epsilon)
        bias = None if self.bias is None else self.bias[rows]
        projected = F.linear(inputs, self.weight[rows], bias)  # (batch, position, width)
        heads: Tensor = projected.unflatten(2, (self.n_heads, -1)).transpose(1, 2)
        return heads


register_pytree(Projected, static=("n_heads", "epsilon"))
