"""What people hand over as weights, read once: an attention, its recipe, a record or a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard import masks
from regard.aggregate.sources import arranged, check_rows
from regard.contract import Attended
from regard.errors import DtypeError, RegardError, ShapeError, UnavailableError
from regard.masks import Mask
from regard.masks.parts import parts
from regard.mechanisms.inputs import finite
from regard.recipe import Recipe
from regard.recipe.base import tensors
from regard.record import Record
from regard.types import Kind, Shape, Weights

#: Whose positions: those that look, those looked at, or one sequence that does both.
Side = Literal["query", "key", "self"]
SIDES = ("query", "key", "self")
_LOOKED_AT = 64  # rows of a plain tensor that are checked to sum to 1 at most


@dataclass(frozen=True, eq=False)
class Source:
    """The weights of one attention, made when asked, with what is known of them.

    `extra` forbids pairs that the attention's own mask did not: their weights count as 0, and what
    is left is not divided by its sum again. `alive` heeds both; None is all keys.
    """

    name: str
    shape: Shape
    kind: Kind = "distribution"
    matrix: Weights | None = None
    recipe: Recipe | None = None
    extra: Mask | None = None
    alive: Tensor | None = None  #: keys some query may see, (batch or 1, head or 1, key)
    crosses: bool = False  #: known to be cross-attention
    cleaned: bool = False  #: rows of padding are known to be finite

    @property
    def device(self) -> torch.device:
        found = self.matrix if self.matrix is not None else self.recipe
        assert found is not None
        return found.device

    def weights(self, side: Side) -> Weights:
        """(batch, head, query, key), at least float32, 0 where a pair may not attend.

        Where queries and keys are the same positions, rows of padding are 0 or finite too.
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
        if side != "self" or self.cleaned or self.alive is None:
            return pairs
        rows = self.alive.any(1)[:, None, :, None].to(self.device)
        return rows if pairs is None else rows & pairs

    def real_rows(self, side: Side) -> Tensor | None:
        """Queries that are no padding, (batch or 1, query), as far as is known; None for all."""
        if side != "self" or self.alive is None:
            return None
        return self.alive.any(1).to(self.device)

    def clean(self, features: Tensor, side: Side) -> Tensor:
        """Features with NaN and inf zeroed where nobody looks, so that they reach no gradient."""
        if side == "query" or self.alive is None:
            return features
        return finite(features, self.alive)

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
        mask: pairs that may attend, besides what the attention itself permitted.
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
        extra = masks.resolve(mask, causal, shape)
        alive = _alive(extra, shape, matrix.device)
        source = Source("weights", shape, matrix=matrix, extra=extra, alive=alive)
        _check_some_rows(source, axes)
        return source
    if isinstance(weights, Record):
        recipe, crosses = weights.recipe, weights.attends == "cross"
        return _of_recipe(weights.name, recipe, None, mask, causal, crosses=crosses)
    if isinstance(weights, Attended):
        if weights.recipe is None and weights.weights is None:
            raise UnavailableError(
                "weights: this Attended holds neither weights nor a recipe; call the mechanism "
                "with weights=True"
            )
        if weights.recipe is not None:
            made, recipe = weights.weights, weights.recipe
            return _of_recipe("weights", recipe, made, mask, causal, cleaned=True)
        return source_of(weights.weights, mask=mask, causal=causal)
    if isinstance(weights, Recipe):
        return _of_recipe("weights", weights, None, mask, causal)
    raise DtypeError(
        f"weights: {_article(type(weights).__name__)}, expected an Attended, a Recipe, a Record, "
        "or a tensor (batch, head, query, key)"
    )


def _of_recipe(
    name: str,
    recipe: Recipe,
    matrix: Tensor | None,
    mask: Mask | Tensor | None,
    causal: bool,
    *,
    crosses: bool = False,
    cleaned: bool = False,
) -> Source:
    own = _own(recipe)
    applied = own is not None and mask is not None and any(part is mask for part in parts(own))
    extra = masks.resolve(None if applied else mask, causal, recipe.shape)
    alive = _alive(masks.both(own, extra), recipe.shape, recipe.device)
    return Source(name, recipe.shape, recipe.kind, matrix, recipe, extra, alive, crosses, cleaned)


def _alive(mask: Mask | None, shape: Shape, device: torch.device) -> Tensor | None:
    return None if mask is None else mask.alive(shape.queries, shape.keys, device)


def _own(recipe: Recipe) -> Mask | None:
    """The mask that weights were made with; models that are not ours add it to the scores."""
    mask, bias = getattr(recipe, "mask", None), getattr(recipe, "bias", None)
    own = mask if isinstance(mask, Mask) else None
    if not isinstance(bias, Tensor) or bias.requires_grad:
        return own
    seen = bias > torch.finfo(bias.dtype).min / 2
    added = masks.pairs(seen.expand(-1, -1, -1, recipe.shape.keys))
    return masks.both(own, added)


def check_features(place: str, features: Tensor, width: int, source: Source, side: Side) -> None:
    """Raise where features (batch, position, width) do not fit; names axis, size, expectation."""
    if features.dim() != 3:
        raise ShapeError(
            f"{place}: features have {features.dim()} axes {tuple(features.shape)}, expected 3: "
            "(batch, position, width)"
        )
    if not features.is_floating_point():
        raise DtypeError(f"{place}: features are {features.dtype}, expected floating point")
    if features.shape[2] != width:
        raise ShapeError(
            f"{place}: features: axis width has size {features.shape[2]}, expected {width}"
        )
    batch, _, queries, keys = source.shape
    if features.shape[0] != batch:
        raise ShapeError(
            f"{place}: features: axis batch has size {features.shape[0]}, expected {batch} as in "
            f"{source.name}"
        )
    if side == "self":
        check_same_positions(place, source)
    size, axis = (keys, "keys") if side == "key" else (queries, "queries")
    if features.shape[1] != size:
        raise ShapeError(
            f"{place}: features: axis position has size {features.shape[1]}, expected {size}, the "
            f"{axis} of {source.name}"
        )


def check_same_positions(place: str, source: Source) -> None:
    """Raise where queries and keys cannot be the same positions."""
    _, _, queries, keys = source.shape
    if source.crosses or queries != keys:
        what = "is cross-attention, " if source.crosses else "has "
        raise ShapeError(
            f"{place}: side='self' needs queries and keys that are the same positions; "
            f"{source.name} {what}{queries} queries × {keys} keys. For cross-attention say "
            "side='query' or side='key'"
        )


def check_heads(place: str, source: Source, n_heads: int) -> None:
    """Raise where an attention has another number of heads than a module was made for."""
    if source.shape.heads != n_heads:
        raise ShapeError(
            f"{place}: {source.name}: axis head has size {source.shape.heads}, expected {n_heads}"
        )


def _check_some_rows(source: Source, axes: str | None) -> None:
    """Refuse a tensor whose first rows are no weights: it may be another order of axes.

    A few rows, on a processor only: to look at all, or at a device's, would cost more than it
    tells.
    """
    assert source.matrix is not None
    if torch.compiler.is_compiling() or source.matrix.device.type != "cpu":
        return
    rows = slice(0, min(_LOOKED_AT, source.shape.queries))
    some = source.matrix[:1, :1, rows].detach()
    if source.extra is not None:
        allowed = source.extra.dense(*source.shape[2:], some.device)[:1, :1, rows]
        alive = source.alive
        if alive is not None and source.shape.queries == source.shape.keys:
            allowed = allowed & alive.any(1)[:1, None, rows, None]
        some = some.masked_fill(~allowed, 0.0)
    check_rows(some, "partial", source.name, axes)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
