"""Changes to attention, as values.

A change says what happens to scores, weights or values, and where: `where=` as in `regard.capture`,
`heads=`, `queries=` and `keys=`. Several changes compose: first those of scores, in order, then
those of weights, then those of values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard import masks
from regard.editing.call import AttentionCall
from regard.editing.plan import Plan, Replacement, Reweighting
from regard.editing.selection import Heads, Positions, Selection
from regard.errors import DtypeError, MaskError, RegardError, ShapeError, UnavailableError
from regard.masks import Mask
from regard.recipe import Recipe
from regard.record import Record, Trace
from regard.tracing.site_filter import shown

Pattern = Literal["uniform", "self", "previous"]
_PATTERNS = ("uniform", "self", "previous")


@dataclass(frozen=True, eq=False, kw_only=True)
class Change(ABC):
    """A change to attention; made by the functions of this package."""

    where: Any = None
    heads: Heads = None
    queries: Positions = None
    keys: Positions = None

    @abstractmethod
    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        """Add the change to what happens at a call."""

    @property
    def name(self) -> str:
        """The function that makes it."""
        return _NAMES[type(self)]

    def __repr__(self) -> str:
        amount = getattr(self, "amount", None)
        arguments = [] if amount is None else [_text(amount)]
        arguments += [
            f"{field}={shown(value) if field == 'where' else _text(value)}"
            for field in ("where", "heads", "queries", "keys")
            if (value := getattr(self, field)) is not None
        ]
        if not getattr(self, "renormalise", True):
            arguments.append("renormalise=False")
        return f"{self.name}({', '.join(arguments)})"


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<{tuple(value.shape)}>"
    if isinstance(value, Trace | Recipe):
        return type(value).__name__
    return repr(value)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Permission(Change):
    """Which pairs may attend: those of a mask; None for no pair."""

    amount: Mask | None = None

    @property
    def name(self) -> str:
        return "forbid" if self.amount is None else "allow"

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        allowed: Tensor | bool = False
        if self.amount is not None:
            if call.gathered:
                raise UnavailableError(
                    f"allow(): at '{call.site.name}' each query has keys of its own, chosen from "
                    "all, to which a mask does not apply"
                )
            allowed = _permitted(self.amount, call)
        plan.allow(allowed, selection.entries)


def _permitted(mask: Mask, call: AttentionCall) -> Tensor | bool:
    block = call.block
    try:
        allowed = mask.block(block, call.device)
    except (IndexError, RuntimeError) as error:
        raise ShapeError(f"allow({mask!r}): does not fit '{call.site.name}': {error}") from error
    if isinstance(allowed, bool):
        return allowed
    expected = (call.shape.batch, call.shape.heads, call.shape.queries, call.shape.keys)
    for axis, name in enumerate(("batch", "head", "query", "key")):
        if axis > 1 and allowed.shape[axis] < min(expected[axis], 2):
            end = call.n_queries if axis == 2 else call.n_keys
            raise ShapeError(
                f"allow({mask!r}): axis {name} is too short, expected 1 or at least {end} at "
                f"'{call.site.name}'"
            )
        if allowed.shape[axis] not in (1, expected[axis]):
            raise ShapeError(
                f"allow({mask!r}): axis {name} has size {allowed.shape[axis]}, expected 1 or "
                f"{expected[axis]} at '{call.site.name}'"
            )
    return allowed


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AddedBias(Change):
    """A number added to scores."""

    amount: Tensor | float

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        plan.add(_amount(self.amount, call, "bias()"), selection.entries)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ScoreFactor(Change):
    """A factor of scores."""

    amount: Tensor | float

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        plan.scale_scores(_amount(self.amount, call, "scale()"), selection.entries)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WeightFactor(Change):
    """A factor of weights."""

    amount: Tensor | float
    renormalise: bool = True

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        factor = _amount(self.amount, call, "multiply()")
        plan.steps.append(Reweighting(selection, factor, self.renormalise))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class NewWeights(Change):
    """Other weights in place of the model's own."""

    amount: Tensor | Trace | Record | Recipe | Pattern

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        weights = self._weights(call)
        plan.steps.append(Replacement(selection, weights))

    def _weights(self, call: AttentionCall) -> Tensor | None:
        """None for uniform weights, which depend on what each row may see."""
        source = self.amount
        if source == "uniform" if isinstance(source, str) else False:
            return None
        if isinstance(source, str):
            if call.gathered:
                raise UnavailableError(
                    f"replace({source!r}): at '{call.site.name}' keys have no positions"
                )
            targets = call.positions(2)[:, None] - int(source == "previous")
            return (targets.clamp_min(0) == call.positions(3)).to(call.dtype)[None, None]
        if isinstance(source, Trace):
            source = _record_of(source, call)
        if isinstance(source, Record | Recipe):
            source = source.weights()
        assert isinstance(source, Tensor)
        weights = call.part(source.to(call.device), "replace()")
        _check_rest(source, call)
        return weights.to(call.dtype)


def _check_rest(weights: Tensor, call: AttentionCall) -> None:
    """Refuse weights of a longer run. Over a cache their rest is of later steps, unless it holds
    weight of these queries."""
    rows, last = weights, call.first_key + call.shape.keys
    if weights.shape[2] != 1:
        rows = weights.narrow(2, call.first_query, call.shape.queries)
        if weights.shape[2] > call.n_queries and not call.growing:
            raise call.misfit("replace()", weights, 2, f"1 or {call.n_queries}")
    if weights.shape[3] > max(last, 1) and not (call.growing and not rows[..., last:].any()):
        raise call.misfit("replace()", weights, 3, f"1 or {last}")


def _record_of(trace: Trace, call: AttentionCall) -> Record:
    """The record of a trace that happened at the same place."""
    records = [record for record in trace if record.path == call.site.path]
    if len({record.step for record in records}) > 1:
        raise UnavailableError(
            f"a trace of several passes at '{call.site.path}'; expected the trace of one, as "
            "regard.trace(model, ...) makes, or a record of it"
        )
    if len(records) < call.site.call:
        raise RegardError(
            f"the trace has {len(records)} records of '{call.site.base}', expected at least "
            f"{call.site.call}; it has {', '.join(trace.names()[:5])}"
        )
    return records[call.site.call - 1]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Silence(Change):
    """Nothing is mixed: the output of a head is 0."""

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        plan.silence(selection.rows)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ValueFactor(Change):
    """A factor of values."""

    amount: Tensor | float

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        factor = _amount(self.amount, call, "scale_values()")
        if factor.shape[2] != 1:
            raise ShapeError(
                f"scale_values(): {tuple(factor.shape)}, axis query has size {factor.shape[2]}, "
                "expected 1: all queries mix the same values"
            )
        plan.scale_values(factor, selection)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class NewValues(Change):
    """Other values in place of the model's own."""

    amount: Tensor | Trace | Record

    def extend(self, plan: Plan, selection: Selection, call: AttentionCall) -> None:
        source = self.amount
        if isinstance(source, Trace):
            source = _record_of(source, call)
        if isinstance(source, Record):
            values = source.recipe.value
            if values is None:
                raise UnavailableError(
                    f"replace_values(): '{source.name}' holds no values; capture with values=True"
                )
            source = values
        if source.dim() != 4:
            raise ShapeError(
                f"replace_values(): {tuple(source.shape)}, expected (batch or 1, head or 1, key, "
                "width)"
            )
        for axis, axis_name in enumerate(("batch", "head")):
            if source.shape[axis] not in (1, call.shape[axis]) and not (
                axis == 1 and call.shape.heads % max(source.shape[1], 1) == 0
            ):
                raise ShapeError(
                    f"replace_values(): {tuple(source.shape)}, axis {axis_name} has size "
                    f"{source.shape[axis]}, expected 1 or {call.shape[axis]} at "
                    f"'{call.site.name}'"
                )
        end = call.first_key + call.shape.keys
        size = source.shape[2]
        if size != 1 and (size < end or (size > end and not call.growing)):
            least = "at least " if call.growing else ""
            raise ShapeError(
                f"replace_values(): {tuple(source.shape)}, axis key has size {size}, expected 1 "
                f"or {least}{end} at '{call.site.name}'"
            )
        if size != 1:
            source = source[:, :, call.first_key : end]
        plan.new_values.append((selection, source.to(call.device)))


def _amount(amount: Tensor | float, call: AttentionCall, what: str) -> Tensor:
    """A number or tensor as (batch or 1, head or 1, query or 1, key or 1)."""
    if isinstance(amount, Tensor):
        return call.part(amount.to(call.device), what).to(call.dtype)
    return torch.full((1, 1, 1, 1), amount, dtype=call.dtype, device=call.device)


# -- the functions that make them


def forbid(
    *, where: Any = None, heads: Heads = None, queries: Positions = None, keys: Positions = None
) -> Change:
    """Forbid these queries to attend to these keys; a row left with nothing gives 0.

    Without `queries` no query may attend to the keys, without `keys` the queries attend to nothing.

    Args:
        where: which sites, as in `regard.capture`: a glob of module paths, a compiled regular
            expression, layer numbers, a function of a `Site`, or a list of those.
        heads: which heads, a number or several.
        queries: which queries: a position, a slice, several positions, a word or words (where
            tokens are known), or a boolean (batch, position). Positions are absolute, also over a
            cache; negative ones count from the last so far.
        keys: which keys, the same way.

    >>> forbid(queries=-1, keys=[3, 4], where="*layer.2*")
    forbid(where='*layer.2*', queries=-1, keys=[3, 4])
    """
    if queries is None and keys is None:
        raise RegardError(
            "forbid: expected queries, keys or both; silence(heads=) takes all of a head"
        )
    return _checked(Permission(where=where, heads=heads, queries=queries, keys=keys))


def allow(
    mask: Mask | Tensor,
    *,
    where: Any = None,
    heads: Heads = None,
    queries: Positions = None,
    keys: Positions = None,
) -> Change:
    """Keep only the pairs of a mask, of those that the model permits.

    Args:
        mask: a mask of `regard.masks`, or a boolean (batch or 1, head or 1, query or 1, key). True
            means "may attend". Positions are absolute.
        where: which sites, as in `forbid`, and so on.

    >>> from regard import masks
    >>> allow(masks.window(2, 0), heads=0)
    allow(window(2, 0), heads=0)
    """
    if isinstance(mask, Tensor):
        if mask.is_floating_point():
            raise DtypeError(f"allow(): a mask of {mask.dtype}, expected torch.bool; use bias()")
        mask = masks.pairs(mask)
    if not isinstance(mask, Mask):
        raise MaskError(f"allow({mask!r}): expected a mask of regard.masks, as masks.window(2, 0)")
    return _checked(Permission(amount=mask, where=where, heads=heads, queries=queries, keys=keys))


def bias(
    amount: Tensor | float,
    *,
    where: Any = None,
    heads: Heads = None,
    queries: Positions = None,
    keys: Positions = None,
) -> Change:
    """Add a number to scores, or a tensor (batch or 1, head or 1, query or 1, key or 1).

    A tensor that requires a gradient gets one.
    """
    return _checked(AddedBias(amount=amount, where=where, heads=heads, queries=queries, keys=keys))


def scale(
    factor: Tensor | float,
    *,
    where: Any = None,
    heads: Heads = None,
    queries: Positions = None,
    keys: Positions = None,
) -> Change:
    """Multiply scores: `scale(1 / t)` is softmax at temperature t."""
    return _checked(
        ScoreFactor(amount=factor, where=where, heads=heads, queries=queries, keys=keys)
    )


def multiply(
    factor: Tensor | float,
    *,
    renormalise: bool = True,
    where: Any = None,
    heads: Heads = None,
    queries: Positions = None,
    keys: Positions = None,
) -> Change:
    """Multiply weights; rows sum again to what they summed to, unless `renormalise` is False."""
    return _checked(
        WeightFactor(
            amount=factor,
            renormalise=renormalise,
            where=where,
            heads=heads,
            queries=queries,
            keys=keys,
        )
    )


def replace(
    weights: Tensor | Trace | Record | Recipe | Pattern,
    *,
    where: Any = None,
    heads: Heads = None,
    queries: Positions = None,
    keys: Positions = None,
) -> Change:
    """Use other weights.

    Args:
        weights: a tensor (batch or 1, head or 1, query, key); a trace, whose record of the same
            site is used, or one record or recipe; "uniform" over what each query may see; "self";
            or "previous", the position before (the first position attends to itself).
        where: which sites, as in `forbid`, and so on.
    """
    if isinstance(weights, str) and weights not in _PATTERNS:
        raise RegardError(f"replace({weights!r}): expected a tensor, a trace or {_PATTERNS}")
    if not isinstance(weights, str | Tensor | Trace | Record | Recipe):
        raise RegardError(
            f"replace(): {type(weights).__name__}, expected a tensor, a trace or {_PATTERNS}"
        )
    return _checked(
        NewWeights(amount=weights, where=where, heads=heads, queries=queries, keys=keys)
    )


def silence(*, where: Any = None, heads: Heads = None, queries: Positions = None) -> Change:
    """Make the output of heads 0, for all queries or some."""
    return _checked(Silence(where=where, heads=heads, queries=queries))


def scale_values(
    factor: Tensor | float, *, where: Any = None, heads: Heads = None, keys: Positions = None
) -> Change:
    """Multiply the values of keys, and leave the weights alone."""
    return _checked(ValueFactor(amount=factor, where=where, heads=heads, keys=keys))


def replace_values(
    values: Tensor | Trace | Record,
    *,
    where: Any = None,
    heads: Heads = None,
    keys: Positions = None,
) -> Change:
    """Use other values, (batch or 1, head or 1, key or 1, width), or those of a trace that was
    captured with `values=True`; at fused operators only."""
    return _checked(NewValues(amount=values, where=where, heads=heads, keys=keys))


def _checked(change: Change) -> Change:
    amount = getattr(change, "amount", None)
    if isinstance(change, AddedBias | ScoreFactor | WeightFactor | ValueFactor):
        if isinstance(amount, bool) or not isinstance(amount, int | float | Tensor):
            raise RegardError(
                f"{change.name}({amount!r}): expected a number or a tensor of four axes"
            )
        if isinstance(amount, Tensor) and not amount.is_floating_point():
            raise DtypeError(f"{change.name}(): a tensor of {amount.dtype}, expected floats")
        _check_numbers(change, amount)
    if isinstance(change, NewWeights | NewValues) and isinstance(amount, Tensor):
        if not amount.is_floating_point():
            raise DtypeError(f"{change.name}(): a tensor of {amount.dtype}, expected floats")
        _check_numbers(change, amount)
    heads = change.heads
    if heads is not None and not isinstance(heads, int):
        if isinstance(heads, slice):
            return change
        if isinstance(heads, str) or not isinstance(heads, Iterable):
            raise RegardError(f"heads={heads!r}: expected a number or several")
        object.__setattr__(change, "heads", list(heads))
        if not change.heads:
            raise RegardError(f"heads={heads!r}: expected at least one; leave it out for all")
    return change


def _check_numbers(change: Change, amount: Tensor | float) -> None:
    """Refuse numbers that leave no weights."""
    numbers = torch.as_tensor(amount).detach()
    if bool(numbers.isnan().any()):
        raise RegardError(f"{change.name}({_text(amount)}): it holds NaN, expected numbers")
    endless = numbers.isposinf() if isinstance(change, AddedBias) else numbers.isinf()
    if bool(endless.any()):
        raise RegardError(
            f"{change.name}({_text(amount)}): it holds an infinity, which gives NaN; allow() keeps "
            "nothing but some pairs, and forbid() takes pairs away"
        )
    if isinstance(change, WeightFactor) and change.renormalise and bool((numbers < 0).any()):
        raise RegardError(
            f"multiply({_text(amount)}): a factor is {float(numbers.min()):g}, expected at least "
            "0, as rows are divided by their sums; renormalise=False takes negative ones"
        )


_NAMES: dict[type, str] = {
    AddedBias: "bias",
    ScoreFactor: "scale",
    WeightFactor: "multiply",
    NewWeights: "replace",
    Silence: "silence",
    ValueFactor: "scale_values",
    NewValues: "replace_values",
}
