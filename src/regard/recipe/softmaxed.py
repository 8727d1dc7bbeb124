"""Recipes whose weights are made from scores, by a softmax unless they say otherwise: `Dot` and
`Additive`."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.bias import Bias, bias_at, bias_block, bias_of_heads
from regard.errors import UnavailableError
from regard.masks import Mask, clean
from regard.recipe.base import QueryKeyRecipe, entries_at, heads_of, per_head, span
from regard.recipe.normalisers import SOFTMAX, Normaliser, Softmax
from regard.softmax import exp, log_softmax, log_sum_exp, product
from regard.types import (
    NEVER,
    Block,
    Keys,
    Kind,
    LogSumExp,
    Mixed,
    Queries,
    Scores,
    Values,
    Weights,
    pieces,
    register_pytree,
)

_Soft = TypeVar("_Soft", bound="Softmaxed")
_PIECE = 1 << 18  # scores that stay in a core's cache together with their weights


class Softmaxed(QueryKeyRecipe):
    """What `Dot` and `Additive` share: scores, a mask, a bias, a normaliser over the keys."""

    query: Queries
    key: Keys
    mask: Mask | None
    bias: Tensor | Bias | None
    lse: LogSumExp | None
    sink: Float[Tensor, " head"] | None = None
    normaliser: Normaliser | None = None  # softmax where None, which a compiler takes as a default

    @abstractmethod
    def at(self: _Soft, batch: int, head: int) -> _Soft: ...

    @abstractmethod
    def _raw_scores(self, block: Block) -> Scores:
        """Scores of a block before bias and mask."""

    @property
    def normalises(self) -> Normaliser:
        """What makes weights of scores."""
        return SOFTMAX if self.normaliser is None else self.normaliser

    @property
    def kind(self) -> Kind:
        return self.normalises.kind if self.sink is None else "partial"

    @property
    def is_softmax(self) -> bool:
        """Whether a log-weight is the score minus the row's log-sum-exp, which shortcuts use."""
        return isinstance(self.normalises, Softmax)

    def scores(self, block: Block) -> Scores:
        """Scores of a block, -inf where a pair may not attend."""
        scores = self._raw_scores(block)
        added = bias_block(self.bias, block)
        if added is not None:
            scores = scores + added.to(self.dtype)
        allowed = True if self.mask is None else self.mask.block(block, self.device)
        if isinstance(allowed, bool):
            return scores if allowed else torch.full_like(scores, -torch.inf)
        return scores.masked_fill(~allowed, -torch.inf)

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        _, _, queries, keys = self.shape
        block = Block.of(span(rows, queries), slice(0, keys), queries, keys)
        if columns is None and self._pays_in_pieces(block):
            return self._piecewise(block)
        part = block if columns is None else block.over(span(columns, keys))
        if not self.normalises.whole_rows:
            return self.normalises.weights(self.scores(part), self._sink())
        if columns is None or self.lse is None or torch.is_grad_enabled() or self.absorbs:
            whole_rows = self.normalises.weights(self.scores(block), self._sink())
            return whole_rows if columns is None else whole_rows[..., columns]
        logs = self.log_weights(part)
        return exp(logs).masked_fill(logs <= NEVER, 0.0)

    def _pays_in_pieces(self, block: Block) -> bool:
        """Whether a matrix is so large that pieces are faster: on a processor with caches, outside
        graphs and `vmap`, which want it whole."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self.device.type != "cpu":
            return False
        if torch._C._functorch.is_batchedtensor(self.query):
            return False
        return block.height * block.breadth > _PIECE

    def _piecewise(self, block: Block) -> Weights:
        """Whole rows, made in pieces that stay in a core's cache: each number is written once."""
        batch, heads, _, keys = self.shape
        size = (batch, heads, block.height, keys)
        weights = torch.empty(size, dtype=self.dtype, device=self.device)
        for example, head in itertools.product(range(batch), range(heads)):
            matrix = self.at(example, head)
            for rows in pieces(block.bottom, max(1, _PIECE // keys), block.top):
                part = block._replace(top=rows.start, bottom=rows.stop)
                scores = matrix.scores(part)
                normalised = matrix.normalises.weights(scores, matrix._sink())
                span = slice(rows.start - block.top, rows.stop - block.top)
                weights[example, head, span] = normalised[0, 0]
        return weights

    def log_weights(self, block: Block) -> Weights:
        if not self.is_softmax:
            return super().log_weights(block)
        if self.lse is None or torch.is_grad_enabled() or self.absorbs:
            rows = block.over(slice(0, block.keys))
            return log_softmax(self.scores(rows), self._sink())[..., block.columns]
        lse = self.lse[..., block.rows, None].to(self.dtype)
        return (self.scores(block) - lse).clamp_min(NEVER)

    def _rows_at(self, rows: slice, keys: Int[Tensor, "batch head column"]) -> Weights:
        if not self.is_softmax or self.lse is None or torch.is_grad_enabled() or self.absorbs:
            return super()._rows_at(rows, keys)
        batch, heads, queries, n_keys = self.shape
        example = torch.arange(batch, device=keys.device)[:, None, None]
        group = torch.arange(heads, device=keys.device)[:, None] // (heads // self.key.shape[1])
        chosen: Any = replace(  # type: ignore[type-var]
            self, key=self.key[example, group, keys], value=None, mask=None, bias=None
        )
        scores = chosen.scores(Block.of(rows, slice(0, keys.shape[2]), queries, keys.shape[2]))
        block = Block.of(rows, slice(0, n_keys), queries, n_keys)
        added = bias_block(self.bias, block)
        if added is not None:
            added = added.expand(-1, -1, block.height, n_keys)
            scores = scores + entries_at(added, keys).to(self.dtype)
        logs = scores - self.lse[..., rows, None].to(self.dtype)
        allowed = True if self.mask is None else self.mask.block(block, self.device)
        if isinstance(allowed, bool):
            return exp(logs) if allowed else torch.zeros_like(logs)
        allowed = allowed.expand(-1, -1, block.height, n_keys)
        return exp(logs).masked_fill(~entries_at(allowed, keys), 0.0)

    @property
    def absorbs(self) -> bool:
        """Whether scores are so large (or a bias, as `finfo.min` for a mask) that the log-sum-exp
        swallows digits of its row; weights must then come from whole rows."""
        return self.lse is not None and 0 not in self.shape and bool(self.lse.abs().max() > 300)

    def log_sum_exp(self, rows: slice | None = None) -> LogSumExp:
        """Logarithm of each row's denominator; 0 for a row that may attend to nothing."""
        if not self.is_softmax:
            raise UnavailableError(f"log_sum_exp: {self.normalises} has none, Softmax() alone does")
        _, _, queries, keys = self.shape
        block = Block.of(span(rows, queries), slice(0, keys), queries, keys)
        return log_sum_exp(self.scores(block), self._sink())

    def with_lse(self: _Soft) -> _Soft:
        """This recipe with its log-sum-exp filled in, computed in strips of rows; as it is where
        it has none."""
        if self.lse is not None or not self.is_softmax:
            return self
        strips = [self.log_sum_exp(rows) for rows in self._strips()]
        empty = torch.zeros(self.shape[:3], dtype=self.dtype, device=self.device)
        return replace(self, lse=torch.cat(strips, dim=2) if strips else empty)  # type: ignore[type-var]

    def _seen(self, keys: Tensor) -> Tensor:
        """Keys with those nobody sees zeroed, so that NaN in padding reaches no gradient."""
        if self.mask is None or not torch.is_grad_enabled():
            return keys  # without a gradient the mask alone removes them
        return clean(keys, self.mask.alive(*self.shape[2:], self.device))

    def _values(self) -> Values:
        alive = None if self.mask is None else self.mask.alive(*self.shape[2:], self.device)
        return clean(super()._values(), alive)

    def _sink(self) -> Tensor | None:
        return None if self.sink is None else self.sink.to(self.dtype)[None, :, None, None]

    def _of_heads(self, which: Sequence[int]) -> dict[str, Any]:
        """The fields of some heads."""
        heads = self.shape.heads
        return {
            "query": heads_of(self.query, which, heads),
            "key": heads_of(self.key, which, heads),
            "value": heads_of(self.value, which, heads),
            "mask": None if self.mask is None else self.mask.of_heads(which),
            "bias": bias_of_heads(self.bias, which),
            "lse": heads_of(self.lse, which, heads),
        }

    def _at(self, batch: int, head: int) -> dict[str, Any]:
        """The fields of one matrix."""
        example, group = slice(batch, batch + 1), head // (self.query.shape[1] // self.key.shape[1])
        return {
            "query": self.query[example, head : head + 1],
            "key": self.key[example, group : group + 1],
            "value": None if self.value is None else self.value[example, group : group + 1],
            "mask": None if self.mask is None else self.mask.at(batch, head),
            "bias": bias_at(self.bias, batch, head),
            "lse": None if self.lse is None else self.lse[example, head : head + 1],
            "normaliser": self.normaliser,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Dot(Softmaxed):
    """Softmax, or another normaliser, of scaled dot products.

    scores = cap(scale · query · key) + bias, cap(x) = softcap · tanh(x / softcap);
    weights = exp(scores) / (Σ exp(scores) + exp(sink)), the sum over permitted keys.
    `lse` is the logarithm of that denominator. Other normalisers have their own equation.
    `grid`: rows and columns of the image whose positions, row by row, are the keys.
    """

    query: Queries
    key: Keys
    value: Values | None = None
    mask: Mask | None = None
    bias: Tensor | Bias | None = None
    scale: float = 1.0
    softcap: float | None = None
    sink: Float[Tensor, " head"] | None = None
    lse: LogSumExp | None = None
    normaliser: Normaliser | None = None  # softmax where None, which a compiler takes as a default
    grid: tuple[int, int] | None = None

    @property
    def is_fusible(self) -> bool:
        """Whether fused kernels can make its output: a softmax, without a softcap."""
        return self.softcap is None and self.is_softmax

    @property
    def is_plain_product(self) -> bool:
        """Whether the score of each permitted pair is scale · query · key and nothing else."""
        return self.bias is None and self.softcap is None

    def _raw_scores(self, block: Block) -> Scores:
        query = self.query[:, :, block.rows].to(self.dtype) * self.scale
        key = self._seen(self.key)[:, :, block.columns].to(self.dtype)
        scores = product(query, per_head(key, self.query.shape[1]).mT)
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def of_heads(self, which: Sequence[int]) -> Dot:
        sink = None if self.sink is None else self.sink[list(which)]
        return replace(self, **self._of_heads(which), sink=sink)

    def at(self, batch: int, head: int) -> Dot:
        sink = None if self.sink is None else self.sink[head : head + 1]
        parts = self._at(batch, head)
        return Dot(**parts, scale=self.scale, softcap=self.softcap, sink=sink, grid=self.grid)


@dataclass(frozen=True, eq=False, repr=False)
class Additive(Softmaxed):
    """Softmax, or another normaliser, of vectorᵀ tanh(query + key): the projections are already
    made, one head."""

    query: Queries
    key: Keys
    vector: Float[Tensor, " width"]
    value: Values | None = None
    mask: Mask | None = None
    bias: Tensor | Bias | None = None
    lse: LogSumExp | None = None
    normaliser: Normaliser | None = None  # softmax where None, which a compiler takes as a default

    def _raw_scores(self, block: Block) -> Scores:
        query = self.query[:, :, block.rows, None].to(self.dtype)
        key = self._seen(self.key)[:, :, None, block.columns].to(self.dtype)
        return product((query + key).tanh(), self.vector.to(self.dtype))

    def of_heads(self, which: Sequence[int]) -> Additive:
        return replace(self, **self._of_heads(which))

    def at(self, batch: int, head: int) -> Additive:
        return Additive(**self._at(batch, head), vector=self.vector)


@dataclass(frozen=True, eq=False, repr=False)
class Pointing(Additive):
    """Additive weights that are the output themselves: there are no values."""

    def mix(self, weights: Weights) -> Mixed:
        return weights.to(self.query.dtype)


register_pytree(Dot, static=("scale", "softcap", "grid"))
register_pytree(Additive)
register_pytree(Pointing)
