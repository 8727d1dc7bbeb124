"""Generalised spatial attention: four terms, each of which can be left out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.kernel.attend import run
from regard.kernel.position_encodings import sinusoids
from regard.recipe import Dot, Recipe
from regard.softmax import product
from regard.vision.contract import ImageMechanism


class GeneralisedSpatial(ImageMechanism):
    """A = softmax(qᵀk + qᵀR + uᵀk + vᵀR), output = x + γ W_O A V.

    Zhu et al. 2019, "An empirical study of spatial attention mechanisms in deep networks",
    equations 2 to 4, with the settings of the authors' code.

    | here         | paper          | meaning                                                     |
    |--------------|----------------|-------------------------------------------------------------|
    | `terms`      | β₁ … β₄        | "1111": which of the four terms there are, E₁ to E₄         |
    |              | E₁ = qᵀk       | content of query and key: "1000" is an unscaled dot product |
    |              | E₂ = qᵀR       | content of the query, and offset                            |
    | `key_bias`   | E₃ = uᵀk       | content of the key alone: "0010" is one map for all queries |
    | `offset_bias`| E₄ = vᵀR       | the offset alone: "0001" is one kernel for all positions    |
    | `to_row`     | W_R            | of the sinusoids of dy: R = (R_dy + R_dx) / √2; `to_column` |
    | `gain`       | γ              | 0 at the start, where the output is the image               |

    As in the authors' code scores are not divided by √d, the longest wavelength is 2π · 1000, and
    keys are every `stride`-th row and column. u and v start uniform in ±1/√(2d), linear maps
    Kaiming-uniform. Offsets are key minus query, theirs query minus key: as good, with R learned.

    The offset's scores are sums of one for the row and one for the column of a key. They are
    handed on as features of the query, beside a one-hot code of rows and columns as those of the
    key: what is left is a dot product, for fused kernels and for `Dot` recipes.

    Args:
        channels: of the image, in and out; a multiple of the heads, and of 4.
        n_heads: 8 in the paper.
        terms: four digits, 0 or 1.
        stride: of the keys; 2 in the authors' code.
        wavelength: of the sinusoids, divided by 2π.

    >>> import torch
    >>> from regard.vision import GeneralisedSpatial
    >>> attn = GeneralisedSpatial(16, 4, terms="0010", stride=2)
    >>> attended = attn(torch.randn(1, 16, 6, 7), weights=True)
    >>> attended.weights.shape, attended.recipe.grid
    (torch.Size([1, 4, 42, 12]), (3, 4))
    """

    def __init__(
        self,
        channels: int,
        n_heads: int = 8,
        *,
        terms: str = "1111",
        stride: int = 1,
        wavelength: float = 1000.0,
    ) -> None:
        super().__init__()
        if n_heads < 1 or channels < 4 or channels % n_heads or channels % 4:
            raise ShapeError(
                f"GeneralisedSpatial: {channels} channels over n_heads={n_heads}, expected a "
                "multiple of the heads and of 4, for sine and cosine of two axes"
            )
        if len(terms) != 4 or set(terms) - set("01") or "1" not in terms:
            raise RegardError(
                f"GeneralisedSpatial: terms={terms!r}, expected four digits with at least one 1, "
                'as "1111" or "0010"'
            )
        if stride < 1:
            raise RegardError(f"GeneralisedSpatial: stride={stride}, expected at least 1")
        self.channels, self.n_heads = channels, n_heads
        self.terms, self.stride, self.wavelength = terms, stride, wavelength
        width = channels // n_heads
        both, by_offset, by_key, offset = self._terms = tuple(term == "1" for term in terms)
        self.to_query, self.to_key = (
            nn.Conv2d(channels, channels, 1, bias=False) if needed else None
            for needed in (both or by_offset, both or by_key)
        )
        self.to_value = nn.Conv2d(channels, channels, 1, bias=False)
        self.to_output = nn.Conv2d(channels, channels, 1)
        self.to_row, self.to_column = (
            nn.Linear(channels // 2, channels, bias=False) if by_offset or offset else None
            for _ in range(2)
        )
        bound = (2 * width) ** -0.5
        self.key_bias, self.offset_bias = (
            nn.Parameter(torch.empty(n_heads, width).uniform_(-bound, bound)) if needed else None
            for needed in (by_key, offset)
        )
        self.gain = nn.Parameter(torch.zeros(()))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_uniform_(module.weight, a=1)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        height, width = image.shape[2:]
        seen = image[:, :, :: self.stride, :: self.stride]
        grid = (seen.shape[2], seen.shape[3])
        value = self._heads(self.to_value(seen))
        query = None if self.to_query is None else self._heads(self.to_query(image))
        recipe = Dot(*self._features(query, image, seen), value, grid=grid)
        mixed = run(recipe).output  # (batch, head, position, width)
        mixed = mixed.mT.flatten(1, 2).unflatten(2, (height, width))
        return image + self.gain * self.to_output(mixed), lambda: recipe

    def _heads(self, maps: Tensor) -> Tensor:
        """(batch, channel, row, column) to (batch, head, position, width)."""
        heads: Tensor = maps.flatten(2).unflatten(1, (self.n_heads, -1))
        return heads.mT

    def _features(self, query: Tensor | None, image: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """What is multiplied: features of queries and of keys, (batch, head, position, width)."""
        both, by_offset, _, _ = self._terms
        batch, _, height, width = image.shape
        queries, keys = [], []
        if self.to_key is not None:
            key = self._heads(self.to_key(seen))
            content = _sum(query if both else None, self.key_bias)
            queries.append(content.expand(batch, -1, height * width, -1))
            keys.append(key)
        if self.to_row is not None and self.to_column is not None:
            content = _sum(query if by_offset else None, self.offset_bias)
            content = content.expand(batch, -1, height * width, -1)
            content = content.unflatten(2, (height, width))  # (batch, head, row, column, width)
            down = self._offsets(self.to_row, height, seen.shape[2], image)  # (head, row, key, w)
            across = self._offsets(self.to_column, width, seen.shape[3], image)
            rows = product(
                content, down.mT.to(content.dtype)
            )  # (batch, head, row, column, key row)
            columns = product(content.transpose(2, 3), across.mT.to(content.dtype)).transpose(2, 3)
            queries += [rows.flatten(2, 3), columns.flatten(2, 3)]
            for axis, size in enumerate(seen.shape[2:]):
                code = torch.eye(size, dtype=content.dtype, device=image.device)
                code = code[:, None] if axis == 0 else code[None]
                code = code.expand(seen.shape[2], seen.shape[3], size).flatten(0, 1)
                keys.append(code.expand(batch, self.n_heads, -1, -1))
        return torch.cat(queries, -1), torch.cat(keys, -1)

    def _offsets(self, linear: nn.Linear, length: int, keys: int, image: Tensor) -> Tensor:
        """R of each position and key along an axis, (head, position, key, width)."""
        there = torch.arange(keys, device=image.device) * self.stride
        offsets = there - torch.arange(length, device=image.device)[:, None]
        waves = sinusoids(offsets, linear.in_features, base=self.wavelength)
        relative: Tensor = linear(waves.to(linear.weight.dtype)) / math.sqrt(2)
        heads: Tensor = relative.unflatten(2, (self.n_heads, -1))
        return heads.movedim(2, 0)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f'{self.n_heads} heads, terms "{self.terms}", stride {self.stride}'


def _sum(query: Tensor | None, vector: Tensor | None) -> Tensor:
    """Content of the query and what stands for it in every query, (batch or 1, head, …, width)."""
    everywhere = None if vector is None else vector[None, :, None]
    if query is None or everywhere is None:
        alone = query if everywhere is None else everywhere
        assert alone is not None
        return alone
    return query + everywhere
