"""The weights that a reuse layer takes: an attention, its recipe, a record or a tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard import checks, masks
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

#: Whose positions: queries, keys, or one sequence that is both.
Side = Literal["query", "key", "self"]
SIDES: tuple[Side, ...] = ("query", "key", "self")
_OTHER_KINDS = (
    "pass rows of another kind in a recipe, as regard.recipe.Given(weights, None, 'signed')"
)
_CHECKED_ROWS = 256  # of a plain tensor, which must sum to 1 at most
_MASKED = -1e3  # a bias of this or less leaves no weight


@dataclass(frozen=True, eq=False)
class Source:
    """The weights of one attention, computed on request, with its masks.

    `extra` forbids pairs that the attention's own mask allowed: their weights count as 0, and the
    others are not renormalised. `mask` is both together, and `alive` follows from it.
    """

    name: str
    shape: Shape
    kind: Kind = "distribution"
    matrix: Weights | None = None
    recipe: Recipe | None = None
    extra: Mask | None = None
    alive: Tensor | None = None  #: keys some query may see, (batch or 1, head or 1, key); or all
    crosses: bool = False  #: surely cross-attention
    same: bool = False  #: surely self-attention
    cleaned: bool = False  #: rows of padding are surely finite
    mask: Mask | None = None

    @property
    def device(self) -> torch.device:
        holder = self.matrix if self.matrix is not None else self.recipe
        assert holder is not None
        return holder.device

    def weights(self, side: Side) -> Weights:
        """(batch, head, query, key), at least float32, 0 where a pair may not attend.

        In self-attention rows of padding are 0 or finite too.
        """
        weights, allowed = self.unmasked(), self.allowed(side)
        return weights if allowed is None else torch.where(allowed, weights, weights.new_zeros(()))

    def unmasked(self) -> Weights:
        """The weights, at least float32, before `allowed` is applied."""
        weights = self.matrix
        if weights is None:
            assert self.recipe is not None
            weights = self.recipe.weights()
        return weights.to(torch.promote_types(weights.dtype, torch.float32))

    def allowed(self, side: Side) -> Tensor | None:
        """Pairs whose weights count, where the weights are not 0 already; None for all."""
        pairs: Tensor | None = None
        if self.extra is not None:
            pairs = self.extra.dense(*self.shape[2:], self.device)
        rows = None if self.cleaned else self.real_rows(side)
        if rows is None:
            return pairs
        rows = rows[:, None, :, None]
        return rows if pairs is None else rows & pairs

    def real_rows(self, side: Side) -> Tensor | None:
        """Queries that are not padding, (batch or 1, query), as far as known; None for all."""
        if self.alive is None or not self._one_sequence(side):
            return None
        return self.alive.any(1).to(self.device)

    def _one_sequence(self, side: Side) -> bool:
        """Whether query i and key i are one position: by the caller's side, or surely."""
        return side == "self" or (self.same and self.shape.queries == self.shape.keys)

    def clean(self, features: Tensor, side: Side) -> Tensor:
        """Features with NaN and inf zeroed where nobody attends, so that they reach no gradient."""
        if self.alive is None or (side == "query" and not self._one_sequence(side)):
            return features
        return finite(features, self.alive)

    @property
    def causal(self) -> bool:
        """Whether masks keep every query from later positions.

        A band tells by its type, pairs by their values (not while compiling, where there are none).
        """
        _, _, queries, keys = self.shape
        if self.crosses or self.mask is None or queries != keys or queries < 2:
            return False
        masks_inside = parts(self.mask)
        bands = [mask for mask in masks_inside if isinstance(mask, Band)]
        if any(band.right is not None and band.right <= 0 for band in bands):
            return True
        if torch.compiler.is_compiling():
            return False
        return any(
            _looks_back_only(mask.allowed.any((0, 1)))
            for mask in masks_inside
            if isinstance(mask, Pairs) and mask.allowed.shape[2] == queries
        )

    @property
    def streams(self) -> bool:
        """Whether reducers can run tile by tile: there is no matrix, and no gradient is needed."""
        if self.matrix is not None or self.extra is not None or torch.compiler.is_compiling():
            return False
        trained = any(tensor.requires_grad for tensor in tensors(self.recipe))
        return not (torch.is_grad_enabled() and trained)

    def check_features(
        self,
        owner: str,
        features: Tensor,
        width: int,
        side: Side,
        *,
        sides: Sequence[Side] = SIDES,
    ) -> None:
        """Raise where features (batch, position, width) do not fit the weights of a side."""
        batch, _, queries, keys = self.shape
        argument, axes = f"{owner}: features", {"batch": batch, "position": None, "width": width}
        checks.check_features(argument, features, axes, batch=f"as in {self.name}")
        if side == "self":
            self.check_same_positions(owner, sides)
        size, axis = (keys, "keys") if side == "key" else (queries, "queries")
        reason = f"as the {axis} of {self.name}"
        if side == "key" and features.shape[1] == queries:
            reason += " (in a step of decoding: of all positions so far)"
        checks.check_axes(argument, features, {**axes, "position": size}, position=reason)

    def check_same_positions(self, owner: str, sides: Sequence[Side] = SIDES) -> None:
        """Raise where queries and keys cannot be the same positions; `sides` are those to offer.

        An attention whose keys were passed apart is cross-attention, however many there are.
        """
        _, _, queries, keys = self.shape
        if not self.crosses and queries == keys:
            return
        others = " or ".join(f"side={side!r}" for side in sides if side != "self")
        problem = f"has {queries} queries × {keys} keys"
        fix = f"For cross-attention, or a step of decoding with a state, say {others}"
        if self.crosses:
            problem = f"is cross-attention, {queries} queries × {keys} keys"
            fix = f"Say {others}"
            if queries == keys:
                fix += "; if they are the same positions all the same, pass the weights as a tensor"
        raise ShapeError(
            f"{owner}: side='self' needs queries and keys that are the same positions; "
            f"{self.name} {problem}. {fix}"
        )

    def check_heads(self, owner: str, n_heads: int) -> None:
        """Raise where the attention has another number of heads than a layer was built for."""
        if self.shape.heads != n_heads:
            raise ShapeError(
                f"{owner}: {self.name}: axis head has size {self.shape.heads}, expected {n_heads}"
            )


def source_of(
    weights: Any,
    *,
    mask: Mask | Tensor | None = None,
    causal: bool = False,
    axes: str | None = None,
) -> Source:
    """The source that a reuse layer makes of its argument `weights`.

    Args:
        weights: an `Attended`, a `Recipe`, a `Record`, or a tensor (batch, head, query, key).
        mask: pairs that may attend, in addition to the attention's own mask; weights of others
            count as 0. The key axis of a tensor may have size 1, to leave out queries. In
            self-attention a position that no query may see is padding, and left out as a query too.
        causal: intersect `mask` with causality, aligned at the end.
        axes: the order of a tensor's axes, as "head batch query key".
    """
    if not isinstance(weights, Tensor) and axes is not None:
        raise RegardError(
            f"axes={axes!r} is for tensors; {_article(type(weights).__name__)} has its own"
        )
    if isinstance(weights, Tensor):
        layers = arranged(weights, axes)
        if len(layers) != 1:
            raise ShapeError(f"weights: axis layer has size {len(layers)}, expected 1")
        matrix = layers[0]
        shape = Shape(*matrix.shape)
        extra = masks.resolve(_over_keys(mask, shape), causal, shape)
        alive = _alive(extra, shape, matrix.device)
        source = Source("weights", shape, matrix=matrix, extra=extra, alive=alive, mask=extra)
        _check_some_rows(source, axes)
        return source
    if isinstance(weights, Record):
        weights.check_axes()
        zeros = _zeros_of(weights.recipe) if "softmax" in weights.operator else None
        source = _of_recipe(weights.name, weights.recipe, None, mask, causal, zeros=zeros)
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
        f"or a tensor (batch, head, query, key){_selection(weights)}"
    )


def _of_recipe(
    name: str,
    recipe: Recipe,
    matrix: Tensor | None,
    mask: Mask | Tensor | None,
    causal: bool,
    *,
    zeros: Mask | None = None,
) -> Source:
    own = masks.both(_own_mask(recipe), zeros)
    applied = own is not None and mask is not None and any(inner is mask for inner in parts(own))
    shape = recipe.shape
    extra = masks.resolve(None if applied else _over_keys(mask, shape), causal, shape)
    both = masks.both(own, extra)
    alive = _alive(both, shape, recipe.device)
    return Source(name, shape, recipe.kind, matrix, recipe, extra, alive, mask=both)


def _alive(mask: Mask | None, shape: Shape, device: torch.device) -> Tensor | None:
    return None if mask is None else mask.alive(shape.queries, shape.keys, device)


def _own_mask(recipe: Recipe) -> Mask | None:
    """The mask of a recipe; other people's models add it to the scores as a large negative bias."""
    mask, bias = getattr(recipe, "mask", None), getattr(recipe, "bias", None)
    own = mask if isinstance(mask, Mask) else None
    if not isinstance(bias, Tensor) or isinstance(recipe, Projected):  # its bias is a projection's
        return own
    allowed = bias.detach() > _MASKED
    return masks.both(own, masks.pairs(allowed.expand(-1, -1, -1, recipe.shape.keys)))


def _zeros_of(recipe: Recipe) -> Mask | None:
    """The mask of another model's softmax, from its weights: pairs where some head is not 0."""
    if not isinstance(recipe, Given | Edges):
        return None
    return masks.pairs((recipe.weights().detach() != 0).any(1, keepdim=True))


def _looks_back_only(seen: Tensor) -> bool:
    """Whether (query, key) has pairs after the first key, and none above the diagonal."""
    return bool(seen[:, 1:].any() & ~seen.triu(1).any())


def _over_keys(mask: Mask | Tensor | None, shape: Shape) -> Mask | Tensor | None:
    """A tensor (batch or 1, head or 1, query, 1) expanded over the keys."""
    if isinstance(mask, Tensor) and mask.dim() == 4 and mask.shape[3] == 1:
        return mask.expand(-1, -1, -1, shape.keys)
    return mask


def _selection(weights: Any) -> str:
    """How to select one attention, where several were passed."""
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
    """Raise where rows of a tensor are not weights: its axes may be in another order.

    Only some rows of every matrix are checked, and only on the CPU, to keep it cheap.
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
    count = min(queries, max(4, _CHECKED_ROWS // max(1, batch * heads)))
    some = torch.linspace(0, max(0, queries - 1), count).long()
    try:
        rows = matrix[:, :, some].masked_fill(~allowed[:, :, some], 0.0)
        check_rows(rows, "partial", source.name, axes, _OTHER_KINDS)
    except ShapeError:  # only all rows show which axis does sum to 1
        check_rows(matrix.masked_fill(~allowed, 0.0), "partial", source.name, axes, _OTHER_KINDS)
        raise


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
