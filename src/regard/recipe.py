"""Recipes: what weights are made from, kept instead of the weights.

A recipe knows its shapes, gives back any block of exact weights, and says how many bytes it
holds. The family is closed: `Dot`, `Additive`, `Given`.

Half-precision inputs are computed in float32, so weights are never rounded to half precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.bias import Bias, bias_at, bias_block
from regard.errors import ShapeError, UnavailableError
from regard.masks import Mask, clean
from regard.normalise import exp, log_softmax, log_sum_exp, product, softmax
from regard.types import (
    NEVER,
    Block,
    Keys,
    Kind,
    LogSumExp,
    Mixed,
    Queries,
    Scores,
    Shape,
    Values,
    Weights,
    brief,
    pieces,
    register_pytree,
)

_STRIP = 1 << 22  # scores evaluated at once when the full matrix is not asked for

_This = TypeVar("_This", bound="Recipe")
_Soft = TypeVar("_Soft", bound="_Softmaxed")


class Recipe(ABC):
    """What weights are made from. `weights()` and `mixed()` answer whenever asked."""

    value: Values | None

    def __repr__(self) -> str:
        return brief(self)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Batch, heads, queries, keys."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What the rows sum to."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype weights come in: float32, or float64 for float64 inputs."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        """Exact weights, before dropout; of some rows or columns where asked."""

    @abstractmethod
    def log_weights(self, block: Block) -> Weights:
        """Logarithms of a block of weights, `NEVER` where a pair may not attend."""

    @abstractmethod
    def at(self, batch: int, head: int) -> Recipe:
        """The recipe of one matrix: batch and head of size one."""

    def mixed(self) -> Mixed:
        """Weights times values, before dropout and output projection."""
        if torch.is_grad_enabled():
            return self.mix(self.weights())
        strips = [self.mix(self.weights(rows)) for rows in self._strips()]
        return torch.cat(strips, dim=2) if strips else self.mix(self.weights())

    def mix(self, weights: Weights) -> Mixed:
        """Some weights (after dropout, of some rows) times the values."""
        value = self._values()
        values = per_head(value, self.shape.heads).to(weights.dtype)
        return product(weights, values).to(value.dtype)

    def _values(self) -> Values:
        if self.value is None:
            raise UnavailableError("recipe.mixed(): this recipe was made without values")
        return self.value

    @property
    def nbytes(self) -> int:
        """Bytes of memory this recipe keeps alive (a storage shared by two tensors counts once)."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in _tensors(self)
        }
        return sum(storages.values())

    def detach(self: _This) -> _This:
        """The same recipe outside the autograd graph."""
        detached: _This = _detached(self)
        return detached

    def _strips(self) -> list[slice]:
        row = self.shape.batch * self.shape.heads * max(1, self.shape.keys)
        return list(pieces(self.shape.queries, max(1, _STRIP // max(1, row))))


class _Softmaxed(Recipe):
    """What `Dot` and `Additive` share: scores, a mask, a bias, a softmax over the keys."""

    query: Queries
    key: Keys
    mask: Mask | None
    bias: Tensor | Bias | None
    lse: LogSumExp | None
    sink: Float[Tensor, " head"] | None = None

    @abstractmethod
    def _raw_scores(self, block: Block) -> Scores:
        """Scores of a block before bias and mask."""

    @property
    def shape(self) -> Shape:
        batch, heads, queries, _ = self.query.shape
        return Shape(batch, heads, queries, self.key.shape[2])

    @property
    def kind(self) -> Kind:
        return "distribution" if self.sink is None else "partial"

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        return self.query.device

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
        block = Block.of(_range(rows, queries), slice(0, keys), queries, keys)
        if columns is None or self.lse is None or torch.is_grad_enabled() or self.absorbs:
            made = softmax(self.scores(block), self._sink())
            return made if columns is None else made[..., columns]
        block = block.over(_range(columns, keys))
        logs = self.log_weights(block)
        return exp(logs).masked_fill(logs <= NEVER, 0.0)

    def log_weights(self, block: Block) -> Weights:
        if self.lse is None or torch.is_grad_enabled() or self.absorbs:
            rows = block.over(slice(0, block.keys))
            return log_softmax(self.scores(rows), self._sink())[..., block.columns]
        lse = self.lse[..., block.rows, None].to(self.dtype)
        return (self.scores(block) - lse).clamp_min(NEVER)

    @property
    def absorbs(self) -> bool:
        """Whether scores are so large (or a bias, as `finfo.min` for a mask) that the log-sum-exp
        swallows digits of its row; weights must then come from whole rows."""
        return self.lse is not None and 0 not in self.shape and bool(self.lse.abs().max() > 300)

    def log_sum_exp(self, rows: slice | None = None) -> LogSumExp:
        """Logarithm of each row's denominator; 0 for a row that may attend to nothing."""
        _, _, queries, keys = self.shape
        block = Block.of(_range(rows, queries), slice(0, keys), queries, keys)
        return log_sum_exp(self.scores(block), self._sink())

    def with_lse(self: _Soft) -> _Soft:
        """This recipe with its log-sum-exp filled in, computed in strips of rows."""
        if self.lse is not None:
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

    def _at(self, batch: int, head: int) -> dict[str, Any]:
        """The fields of one matrix."""
        one, group = slice(batch, batch + 1), head // (self.query.shape[1] // self.key.shape[1])
        return {
            "query": self.query[one, head : head + 1],
            "key": self.key[one, group : group + 1],
            "value": None if self.value is None else self.value[one, group : group + 1],
            "mask": None if self.mask is None else self.mask.at(batch, head),
            "bias": bias_at(self.bias, batch, head),
            "lse": None if self.lse is None else self.lse[one, head : head + 1],
        }


@dataclass(frozen=True, eq=False, repr=False)
class Dot(_Softmaxed):
    """Softmax of scaled dot products.

    scores = cap(scale · query · key) + bias, cap(x) = softcap · tanh(x / softcap);
    weights = exp(scores) / (Σ exp(scores) + exp(sink)), the sum over permitted keys.
    `lse` is the logarithm of that denominator.
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

    def _raw_scores(self, block: Block) -> Scores:
        query = self.query[:, :, block.rows].to(self.dtype) * self.scale
        key = self._seen(self.key)[:, :, block.columns].to(self.dtype)
        scores = product(query, per_head(key, self.query.shape[1]).mT)
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def at(self, batch: int, head: int) -> Dot:
        sink = None if self.sink is None else self.sink[head : head + 1]
        return Dot(**self._at(batch, head), scale=self.scale, softcap=self.softcap, sink=sink)


@dataclass(frozen=True, eq=False, repr=False)
class Additive(_Softmaxed):
    """Softmax of vectorᵀ tanh(query + key): the projections are already made, one head."""

    query: Queries
    key: Keys
    vector: Float[Tensor, " width"]
    value: Values | None = None
    mask: Mask | None = None
    bias: Tensor | Bias | None = None
    lse: LogSumExp | None = None

    def _raw_scores(self, block: Block) -> Scores:
        query = self.query[:, :, block.rows, None].to(self.dtype)
        key = self._seen(self.key)[:, :, None, block.columns].to(self.dtype)
        return product((query + key).tanh(), self.vector.to(self.dtype))

    def at(self, batch: int, head: int) -> Additive:
        return Additive(**self._at(batch, head), vector=self.vector)


@dataclass(frozen=True, eq=False, repr=False)
class Given(Recipe):
    """A matrix somebody else made, held as it is, with the kind its rows are."""

    matrix: Weights
    value: Values | None = None
    of: Kind = "distribution"

    @property
    def shape(self) -> Shape:
        return Shape(*self.matrix.shape)

    @property
    def kind(self) -> Kind:
        return self.of

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.matrix.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        return self.matrix[:, :, rows or slice(None), columns or slice(None)].to(self.dtype)

    def log_weights(self, block: Block) -> Weights:
        if self.of in ("signed", "gate"):
            raise UnavailableError(f"{self.of} weights have no logarithm; this reducer needs one")
        weights = self.weights(block.rows, block.columns)
        some = weights > 0
        return torch.where(some, weights, 1.0).log().masked_fill(~some, NEVER)

    def at(self, batch: int, head: int) -> Given:
        one = slice(batch, batch + 1)
        group = 0
        if self.value is not None:
            group = head // (self.matrix.shape[1] // self.value.shape[1])
        value = None if self.value is None else self.value[one, group : group + 1]
        return Given(self.matrix[one, head : head + 1], value, self.of)


register_pytree(Dot, static=("scale", "softcap"))
register_pytree(Additive)
register_pytree(Given, static=("of",))


def _range(where: slice | None, length: int) -> slice:
    """A slice with plain ends, whatever way it was written."""
    if where is None:
        return slice(0, length)
    if not isinstance(where, slice):
        raise ShapeError(f"a block of weights is a slice, got {where!r}; slice({where}, ...)")
    start, stop, step = where.indices(length)
    if step != 1:
        raise ShapeError(f"a block of weights is a plain range, got step {step} in {where}")
    return slice(start, max(start, stop))


def per_head(tensor: Tensor, heads: int) -> Tensor:
    """(batch, group, key, width) to (batch, head, key, width): each group serves its heads."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, dim=1)


def _detached(part: Any) -> Any:
    """A recipe or bias with every tensor outside the graph."""
    if isinstance(part, Tensor):
        return part.detach()
    if not isinstance(part, Recipe | Bias):
        return part
    held = {field.name: getattr(part, field.name) for field in fields(part)}  # type: ignore[arg-type]
    return replace(part, **{name: _detached(value) for name, value in held.items()})  # type: ignore[type-var]


def _tensors(part: Any) -> Iterator[Tensor]:
    """Every tensor inside a recipe, its mask and its bias."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, Recipe | Mask | Bias):
        for field in fields(part):  # type: ignore[arg-type]
            yield from _tensors(getattr(part, field.name))
