"""What people hand over as weights, read once: an attention, its recipe, a record or a tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard import masks
from regard.aggregate.sources import arranged
from regard.blocks import BlockOutput
from regard.contract import Attended
from regard.errors import DtypeError, RegardError, ShapeError, UnavailableError
from regard.masks import Mask
from regard.masks.parts import Band, Pairs, parts
from regard.mechanisms.inputs import finite
from regard.recipe import Edges, Given, Projected, Recipe
from regard.recipe.base import tensors
from regard.record import Record, Trace
from regard.record.axes import check_rows
from regard.types import Kind, Shape, Weights

#: Whose positions: those that look, those looked at, or one sequence that does both.
Side = Literal["query", "key", "self"]
SIDES: tuple[Side, ...] = ("query", "key", "self")
_OTHER_KINDS = "say what the rows are by a recipe, as regard.recipe.Given(weights, None, 'signed')"
_LOOKED_AT = 256  # rows of a plain tensor that are checked to sum to 1 at most
_MASKED = -1e3  # added to a score, this or less leaves no weight


@dataclass(frozen=True, eq=False)
class Source:
    """The weights of one attention, made when asked, with what is known of them.

    `extra` forbids pairs that the attention's own mask did not: their weights count as 0, and what
    is left is not divided by its sum again. `known` is both of them; `alive` heeds both, None is
    all keys.
    """

    name: str
    shape: Shape
    kind: Kind = "distribution"
    matrix: Weights | None = None
    recipe: Recipe | None = None
    extra: Mask | None = None
    alive: Tensor | None = None  #: keys some query may see, (batch or 1, head or 1, key)
    crosses: bool = False  #: known to be cross-attention
    same: bool = False  #: known to be self-attention
    cleaned: bool = False  #: rows of padding are known to be finite
    known: Mask | None = None

    @property
    def device(self) -> torch.device:
        found = self.matrix if self.matrix is not None else self.recipe
        assert found is not None
        return found.device

    def weights(self, side: Side) -> Weights:
        """(batch, head, query, key), at least float32, 0 where a pair may not attend.

        In self-attention rows of padding are 0 or finite too.
        """
        made, allowed = self.unmasked(), self.allowed(side)
        return made if allowed is None else torch.where(allowed, made, made.new_zeros(()))

    def unmasked(self) -> Weights:
        """The weights as they came, at least float32: `allowed` is still to be heeded."""
        made = self.matrix
        if made is None:
            assert self.recipe is not None
            made = self.recipe.weights()
        return made.to(torch.promote_types(made.dtype, torch.float32))

    def allowed(self, side: Side) -> Tensor | None:
        """Pairs that count, as far as the weights do not say so by themselves; None for all."""
        pairs: Tensor | None = None
        if self.extra is not None:
            pairs = self.extra.dense(*self.shape[2:], self.device)
        rows = None if self.cleaned else self.real_rows(side)
        if rows is None:
            return pairs
        rows = rows[:, None, :, None]
        return rows if pairs is None else rows & pairs

    def real_rows(self, side: Side) -> Tensor | None:
        """Queries that are no padding, (batch or 1, query), as far as is known; None for all."""
        if self.alive is None or not self._one_sequence(side):
            return None
        return self.alive.any(1).to(self.device)

    def _one_sequence(self, side: Side) -> bool:
        """Whether query i and key i are one position: somebody says so, or it is known."""
        return side == "self" or (self.same and self.shape.queries == self.shape.keys)

    def clean(self, features: Tensor, side: Side) -> Tensor:
        """Features with NaN and inf zeroed where nobody looks, so that they reach no gradient."""
        if self.alive is None or (side == "query" and not self._one_sequence(side)):
            return features
        return finite(features, self.alive)

    @property
    def causal(self) -> bool:
        """Whether no query sees a later position, as far as masks say so.

        A band says so by itself. Pairs are looked at: some later position is seen, and none by a
        query before it. (Not while compiling, where nothing is there to be looked at.)
        """
        _, _, queries, keys = self.shape
        if self.crosses or self.known is None or queries != keys or queries < 2:
            return False
        found = parts(self.known)
        if any(
            isinstance(part, Band) and part.right is not None and part.right <= 0 for part in found
        ):
            return True
        if torch.compiler.is_compiling():
            return False
        return any(
            _looks_back_only(part.allowed.any((0, 1)))
            for part in found
            if isinstance(part, Pairs) and part.allowed.shape[2] == queries
        )

    @property
    def streams(self) -> bool:
        """Whether questions can be answered tile by tile: no matrix yet, and no gradient wanted."""
        if self.matrix is not None or self.extra is not None or torch.compiler.is_compiling():
            return False
        held = tensors(self.recipe)
        return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in held))


def source_of(
    weights: Any,
    *,
    mask: Mask | Tensor | None = None,
    causal: bool = False,
    axes: str | None = None,
) -> Source:
    """Weights as people hand them over.

    Args:
        weights: an `Attended`, a `Recipe`, a `Record`, or a tensor.
        mask: pairs that may attend, besides what the attention itself permitted; a tensor's axis
            key may have size 1, to leave out queries.
        causal: intersect `mask` with causality, aligned at the end.
        axes: the order of a tensor's axes in words, as "head batch query key".
    """
    if not isinstance(weights, Tensor) and axes is not None:
        raise RegardError(
            f"axes={axes!r} is for tensors; {_article(type(weights).__name__)} knows its own"
        )
    if isinstance(weights, Tensor):
        layers = arranged(weights, axes)
        if len(layers) != 1:
            raise ShapeError(f"weights: axis layer has size {len(layers)}, expected 1")
        matrix = layers[0]
        shape = Shape(*matrix.shape)
        extra = masks.resolve(_over_keys(mask, shape), causal, shape)
        alive = _alive(extra, shape, matrix.device)
        source = Source("weights", shape, matrix=matrix, extra=extra, alive=alive, known=extra)
        _check_some_rows(source, axes)
        return source
    if isinstance(weights, Record):
        weights.check_axes()
        own = _zeros_of(weights.recipe) if "softmax" in weights.operator else None
        source = _of_recipe(weights.name, weights.recipe, None, mask, causal, seen=own)
        attends = weights.attends
        return replace(source, crosses=attends == "cross", same=attends == "self")
    if isinstance(weights, Attended):
        if weights.recipe is None and weights.weights is None:
            raise UnavailableError(
                "weights: this Attended holds neither weights nor a recipe; call the mechanism "
                "with weights=True"
            )
        if weights.recipe is None:
            source = source_of(weights.weights, mask=mask, causal=causal)
        else:
            source = _of_recipe("weights", weights.recipe, weights.weights, mask, causal)
            source = replace(source, cleaned=True)
        return replace(source, crosses=weights.crosses, same=not weights.crosses)
    if isinstance(weights, Recipe):
        return _of_recipe("weights", weights, None, mask, causal)
    raise DtypeError(
        f"weights: {_article(type(weights).__name__)}, expected an Attended, a Recipe, a Record, "
        f"or a tensor (batch, head, query, key){_one_of(weights)}"
    )


def _of_recipe(
    name: str,
    recipe: Recipe,
    matrix: Tensor | None,
    mask: Mask | Tensor | None,
    causal: bool,
    *,
    seen: Mask | None = None,
) -> Source:
    own = masks.both(_own(recipe), seen)
    applied = own is not None and mask is not None and any(part is mask for part in parts(own))
    shape = recipe.shape
    extra = masks.resolve(None if applied else _over_keys(mask, shape), causal, shape)
    known = masks.both(own, extra)
    alive = _alive(known, shape, recipe.device)
    return Source(name, shape, recipe.kind, matrix, recipe, extra, alive, known=known)


def _alive(mask: Mask | None, shape: Shape, device: torch.device) -> Tensor | None:
    return None if mask is None else mask.alive(shape.queries, shape.keys, device)


def _own(recipe: Recipe) -> Mask | None:
    """The mask that weights were made with; models that are not ours add it to the scores.

    They add the least number there is, −10,000, or anything that leaves no weight.
    """
    mask, bias = getattr(recipe, "mask", None), getattr(recipe, "bias", None)
    own = mask if isinstance(mask, Mask) else None
    if not isinstance(bias, Tensor) or isinstance(recipe, Projected):  # there, of the projections
        return own
    seen = bias.detach() > _MASKED
    added = masks.pairs(seen.expand(-1, -1, -1, recipe.shape.keys))
    return masks.both(own, added)


def _zeros_of(recipe: Recipe) -> Mask | None:
    """What a softmax somebody else took had been told to leave out: there every head has 0."""
    if not isinstance(recipe, Given | Edges):
        return None
    return masks.pairs((recipe.weights().detach() != 0).any(1, keepdim=True))


def _looks_back_only(seen: Tensor) -> bool:
    """Whether (query, key) has pairs after the first key, and none above the diagonal."""
    return bool(seen[:, 1:].any() & ~seen.triu(1).any())


def _over_keys(mask: Mask | Tensor | None, shape: Shape) -> Mask | Tensor | None:
    """A tensor (batch or 1, head or 1, query, 1), which says which queries count, over all keys."""
    if isinstance(mask, Tensor) and mask.dim() == 4 and mask.shape[3] == 1:
        return mask.expand(-1, -1, -1, shape.keys)
    return mask


def _one_of(weights: Any) -> str:
    """How to take one attention of several, where that is what was handed over."""
    if isinstance(weights, BlockOutput):
        return f"; take one of its .attentions: {_names(weights.attentions)}"
    if isinstance(weights, Trace):
        return f"; take one of its records, as trace[0] or by name: {_names(weights.names())}"
    if isinstance(weights, dict) and weights:
        return f"; take one of {_names(weights)}"
    if isinstance(weights, list | tuple) and weights:
        return f"; take one of the {len(weights)} layers, as weights[0]"
    return ""


def _names(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, itertools.islice(names, 5)))


def _check_some_rows(source: Source, axes: str | None) -> None:
    """Refuse a tensor whose rows are no weights: it may be another order of axes.

    Some rows of every matrix, on a processor only: to look at all, or at a device's, would cost
    more than it tells.
    """
    assert source.matrix is not None
    if torch.compiler.is_compiling() or source.matrix.device.type != "cpu":
        return
    matrix, (batch, heads, queries, keys) = source.matrix.detach(), source.shape
    allowed = matrix.new_ones(1, 1, 1, 1, dtype=torch.bool)
    if source.extra is not None:
        allowed = source.extra.dense(queries, keys, matrix.device)
        if source.alive is not None and queries == keys:
            allowed = allowed & source.alive.any(1)[:, None, :, None]
    allowed = allowed.expand(matrix.shape)
    count = min(queries, max(4, _LOOKED_AT // max(1, batch * heads)))
    some = torch.linspace(0, max(0, queries - 1), count).long()
    try:
        rows = matrix[:, :, some].masked_fill(~allowed[:, :, some], 0.0)
        check_rows(rows, "partial", source.name, axes, _OTHER_KINDS)
    except ShapeError:  # which axis would sum to 1 is seen on all rows
        check_rows(matrix.masked_fill(~allowed, 0.0), "partial", source.name, axes, _OTHER_KINDS)
        raise


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
