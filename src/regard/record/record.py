"""One attention that happened: where, and what its weights are computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from regard.errors import RegardError, ShapeError, UnavailableError
from regard.kernel.reduce import reduce
from regard.kernel.reducers.base import Reducer
from regard.recipe import Edges, Given, Recipe
from regard.recipe.base import span
from regard.recipe.edges import EdgeWeights, Index, Offsets
from regard.record import upward
from regard.record.axes import check_rows, in_order
from regard.record.gradient import OutputGradient
from regard.record.site import Attends, Site
from regard.record.stored_attention import StoredAttention, StoredRecipe, storage_bytes, weights_of
from regard.record.tokens import Tokens, checked_tokens, count, fit, nested
from regard.types import Kind, Mixed, Shape, Values, Weights

_OTHER_ORDER = "name the axes in another order"
HeldAs = Literal["recipe", "weights", "reductions", "disk", "dropped"]


class EdgeList(NamedTuple):
    """A sparse attention as pairs: edge e joins query `query[…, e]` and key `key[…, e]`.

    Edges are in the model's order. An edge of weight 0 may be padding.
    """

    query: Index  #: (batch or 1, head or 1, edge): size 1 where all share the pairs
    key: Index  #: as `query`
    weights: EdgeWeights  #: (batch, head, edge), before dropout


class Record:
    """One attention: where it happened, and what its weights are computed from.

    Nothing is computed until requested. `weights()` returns (batch, head, query, key), before
    dropout; `reduce()` streams. `shape`, `kind` and `dtype` are known whatever is stored.
    """

    def __init__(
        self,
        site: Site,
        held: StoredAttention | Path | None,
        *,
        shape: Shape,
        kind: Kind,
        dtype: torch.dtype,
        held_as: HeldAs = "recipe",
        reductions: tuple[Any, ...] = (),
        output: Tensor | None = None,
        gradient: OutputGradient | None = None,
        query_tokens: Tokens | None = None,
        key_tokens: Tokens | None = None,
        value_held: bool = False,
        not_kept: str = "",
    ) -> None:
        self._value_held = value_held
        self._not_kept = not_kept  # why values and gradient are missing, if not by the options
        self.site, self._held = site, held
        self.shape, self.kind, self.dtype = shape, kind, dtype
        self.held: HeldAs = held_as
        self.reductions = reductions
        self.output = output
        self._gradient = gradient
        self.query_tokens = _words(query_tokens)
        self.key_tokens = _words(key_tokens)

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        sizes = f"{heads} head{'s' * (heads != 1)}, {queries} × {keys}, batch {batch}"
        if not self.site.axes_known:
            sizes = f"{tuple(self.shape)}, axes unknown"
        edges = "" if self.n_edges is None else f", {self.n_edges} edges"
        return f"Record({self.name!r}: {self.attends} {self.kind}, {sizes}{edges}, {self.held})"

    def _repr_html_(self) -> str:
        """The page in a frame; a table of one row where a page is not possible."""
        return upward.shown(self)

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def path(self) -> str:
        return self.site.path

    @property
    def module_class(self) -> str:
        return self.site.module_class

    @property
    def source(self) -> str:
        return self.site.source

    @property
    def operator(self) -> str:
        return self.site.operator

    @property
    def call(self) -> int:
        return self.site.call

    @property
    def step(self) -> int:
        return self.site.step

    @property
    def layer(self) -> int | None:
        return self.site.layer

    @property
    def attends(self) -> Attends:
        return self.site.attends

    @property
    def recipe(self) -> Recipe:
        """What the weights are computed from; raises, with the reason, if nothing is stored."""
        if isinstance(self._held, Path):
            from regard.record.store import load_recipe

            return load_recipe(self._held)
        if self._held is None:
            why = {
                "dropped": "dropped (by max_bytes or for a reducer): trace.notes says why",
                "reductions": "only reductions were kept: record.reductions has them",
            }
            raise UnavailableError(f"{self.name}: {why.get(self.held, 'nothing is held')}")
        return self._held.recipe()

    @property
    def parts(self) -> StoredAttention | Path | None:
        """The stored form of the recipe, or its file."""
        return self._held

    @property
    def value_held(self) -> bool:
        """Whether `mixed()` is available."""
        return (
            self._held.value_held if isinstance(self._held, StoredAttention) else self._value_held
        )

    @property
    def n_edges(self) -> int | None:
        """The number of edges of one matrix, if a list of them is in memory; else None."""
        return self._held.n_edges if isinstance(self._held, StoredAttention) else None

    @property
    def edges(self) -> EdgeList:
        """The pairs of a sparse attention (graphs, gathered keys, windows) and their weights."""
        recipe = self._edges()
        weights = recipe.edge_weights.to(recipe.dtype)
        return EdgeList(recipe.query_index, recipe.key_index, weights)

    def offsets(
        self, *, grid: tuple[int, int] | None = None, reach: tuple[int, int] | None = None
    ) -> Offsets:
        """The weights of local attention over an image by (dy, dx): see `Edges.offsets`."""
        return self._edges().offsets(grid=grid, reach=reach)

    def _edges(self) -> Edges:
        recipe = self.recipe
        if not isinstance(recipe, Edges):
            raise UnavailableError(
                f"{self.name}: its weights are a matrix of {self.shape.queries} × "
                f"{self.shape.keys}, not a list of edges: record.weights() has it"
            )
        return recipe

    @property
    def storages(self) -> dict[int, int]:
        """Bytes of each storage this record keeps alive."""
        tensors = tree_flatten(self.reductions)[0] + [self.output]
        if isinstance(self._held, StoredAttention):
            tensors.extend(self._held.tensors())
        return storage_bytes([leaf for leaf in tensors if isinstance(leaf, Tensor)])

    @property
    def nbytes(self) -> int:
        """Bytes this record keeps alive, including those shared with other records."""
        return sum(self.storages.values())

    def weights(self, rows: Any = None, columns: Any = None) -> Weights:
        """Exact weights (batch, head, query, key), before dropout, or a block of them.

        Unknown axes are in the model's order, padded to four with axes of size 1.
        """
        for side, where, size in (
            ("rows", rows, self.shape.queries),
            ("columns", columns, self.shape.keys),
        ):
            if where is not None:
                span(where, size, side)
        return self.recipe.weights(rows, columns)

    def mixed(self) -> Mixed:
        """Weights times values, before dropout and output projection; needs `values=True`."""
        self.checked_values()
        return self.recipe.mixed()

    def reduce(self, *reducers: Reducer) -> tuple[Any, ...]:
        """The reducers' results, streamed, in the order given."""
        if any(isinstance(reducer, list | tuple) for reducer in reducers):
            raise RegardError(
                "reduce: a list, expected reducers one by one, as reduce(Entropy(), HeadMean())"
            )
        recipe = self.recipe
        if any(getattr(reducer, "across_heads", False) for reducer in reducers):
            self.check_axes()
        try:
            return reduce(recipe, list(reducers))
        except UnavailableError as error:
            raise UnavailableError(f"{self.name}: {error}") from None

    def gradient(self, rows: slice | None = None) -> Weights:
        """Gradient of the loss with respect to the weights, after backward; needs `grad=True`."""
        return self._kept_gradient().of_weights(self.name, rows)

    def gradient_parts(self) -> tuple[Tensor, Tensor | None]:
        """The gradient as two factors: the output's gradient (batch, head, query, width) and the
        values (batch, head, key, width); or the gradient itself and None."""
        return self._kept_gradient().parts(self.name)

    def clear_gradient(self) -> None:
        """Reset the gradient."""
        if self._gradient is not None:
            self._gradient.clear()

    def _kept_gradient(self) -> OutputGradient:
        if self._gradient is None:
            reason = self._not_kept or (
                "capture(grad=True) keeps one, where the pass is part of an autograd graph"
            )
            raise UnavailableError(f"{self.name}: there is no gradient: {reason}")
        return self._gradient

    def checked_values(self) -> Values:
        """The values (batch, group, key, width); raises, with the reason, if there are none."""
        value = self.recipe.value
        if value is None:
            reason = self._not_kept or (
                "capture(values=True) keeps them, where they meet the weights in a matrix product"
            )
            raise UnavailableError(f"{self.name}: no values were kept: {reason}")
        return value

    def check_axes(self) -> None:
        """Raise if the axes of the weights are unknown."""
        if not self.site.axes_known:
            raise UnavailableError(
                f"{self.name}: the order of the axes of its weights {tuple(self.shape)} is not "
                "known, so per-head statistics would be guesses; name the axes, as "
                "record.with_axes('batch head query key')"
            )

    def with_axes(self, axes: str, **sizes: int) -> Record:
        """The same attention with its axes named: its `weights()` are (batch, head, query, key).
        Values, output and gradient are dropped.

        Args:
            axes: a name for each axis of the present `weights()`; axes of size 1 need none. Merged
                axes go in brackets, as in "(batch head) query key"; 1 is an axis of size 1.
            sizes: sizes of the axes in brackets, all but one per bracket, as `head=4`.
        """
        try:
            weights = in_order(self.recipe.weights(), axes, sizes=sizes)
        except RegardError as error:
            shape = tuple(self.shape)
            raise ShapeError(f"{self.name}: {error}; weights are {shape} as they lie") from None
        # Rows without a key may be NaN, and promise nothing.
        check_rows(weights.nan_to_num(0.0), self.kind, self.name, axes, _OTHER_ORDER)
        held = StoredRecipe(Given(weights, None, self.kind))
        return self._copy(
            site=replace(self.site, axes_known=True),
            held=held,
            held_as="weights" if self.held == "weights" else "recipe",
            shape=held.shape,
            output=None,
            gradient=None,
            query_tokens=_fitting(self.query_tokens, held.shape.batch, held.shape.queries),
            key_tokens=_fitting(self.key_tokens, held.shape.batch, held.shape.keys),
            value_held=False,
            not_kept="with_axes keeps weights alone",
        )

    def of_heads(self, *heads: int) -> Record:
        """The same attention, restricted to some heads."""
        self.check_axes()
        if not heads:
            raise RegardError(f"{self.name}: no heads were named; expected numbers from 0")
        all_heads = range(self.shape.heads)
        try:
            which = [all_heads[head] for head in heads]
        except IndexError:
            raise RegardError(
                f"{self.name}: heads {heads}, expected numbers from 0 to {self.shape.heads - 1}"
            ) from None
        output = self.output
        if output is not None:
            by_head = output.dim() == 4 and output.shape[1] == self.shape.heads
            output = output[:, which] if by_head else None
        return self._copy(
            held=StoredRecipe(self.recipe.of_heads(which)),
            held_as="weights" if self.held == "weights" else "recipe",
            shape=self.shape._replace(heads=len(which)),
            output=output,
            gradient=None if self._gradient is None else self._gradient.of_heads(which),
        )

    def to(self, device: torch.device | str) -> Record:
        """The same record with its tensors on a device."""
        held = self._held
        if held is not None:
            held = StoredRecipe(self.recipe.map(lambda tensor: tensor.to(device)))
        return self._copy(
            held=held,
            held_as="recipe" if self.held == "disk" else self.held,
            output=None if self.output is None else self.output.to(device),
            reductions=map_tensors(self.reductions, lambda tensor: tensor.to(device)),
            gradient=None if self._gradient is None else self._gradient.to(device),
        )

    def detach(self) -> Record:
        """The same record outside the autograd graph."""
        held = self._held
        if isinstance(held, StoredAttention):
            held = StoredRecipe(self.recipe.detach())
        return self._copy(held=held, output=None if self.output is None else self.output.detach())

    def with_weights(self) -> Record:
        """The same record, storing weights (edges, for a sparse attention) instead of a recipe."""
        return self._copy(held=StoredRecipe(weights_of(self.recipe)), held_as="weights")

    def relabelled(self, attends: Attends) -> Record:
        """The same record, labelled as self- or cross-attention."""
        return self._copy(site=replace(self.site, attends=attends))

    def with_tokens(self, query: Tokens | None, key: Tokens | None = None) -> Record:
        """The same record with tokens for its positions: one list for all examples, or a list per
        example."""
        sides = (("query", query, self.shape.queries), ("key", key, self.shape.keys))
        for side, tokens, size in sides:
            if tokens is None:
                continue
            words = checked_tokens(tokens, f"{self.name}: {side} tokens")
            if not fit(words, self.shape.batch, size):
                expected = f"{self.shape.batch} × {size}" if nested(words) else f"{size}"
                raise RegardError(
                    f"{self.name}: {count(words)} {side} tokens, expected {expected}: one a "
                    "position"
                )
        return self._copy(query_tokens=query, key_tokens=key)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Save this attention to one file, as `Trace.save` does: a page (.html), or its data."""
        return upward.save(self, path, **options)

    def drop(self) -> None:
        """Release everything stored; shape, kind and dtype remain."""
        self._held, self.held, self.output = None, "dropped", None

    def _copy(self, **changes: Any) -> Record:
        now = {
            "site": self.site,
            "held": self._held,
            "shape": self.shape,
            "kind": self.kind,
            "dtype": self.dtype,
            "held_as": self.held,
            "reductions": self.reductions,
            "output": self.output,
            "gradient": self._gradient,
            "query_tokens": self.query_tokens,
            "key_tokens": self.key_tokens,
            "value_held": self._value_held,
            "not_kept": self._not_kept,
        }
        return Record(**{**now, **changes})

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a detached recipe; flex attention as its weights."""
        from regard.record.store import storable

        state = dict(self.__dict__)
        if isinstance(self._held, StoredAttention):
            state["_held"] = StoredRecipe(storable(self.recipe))
        state["_gradient"] = None
        state["output"] = None if self.output is None else self.output.detach()
        return state


def _words(tokens: Tokens | None) -> Any:
    """A copy of the tokens as lists."""
    if tokens is None:
        return None
    return [list(example) for example in tokens] if nested(tokens) else list(tokens)


def _fitting(tokens: Any, batch: int, positions: int) -> Any:
    """The tokens, if their number still fits."""
    return tokens if tokens is not None and fit(tokens, batch, positions) else None


def map_tensors(results: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the tensors among the results of reducers."""
    if isinstance(results, Tensor):
        return change(results)
    if isinstance(results, tuple):
        changed = [map_tensors(result, change) for result in results]
        return type(results)(*changed) if hasattr(results, "_fields") else tuple(changed)
    return results
