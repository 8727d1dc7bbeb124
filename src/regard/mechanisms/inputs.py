"""What every mechanism does before it attends: defaults, checks, masks, state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import checks, masks
from regard.contract import Mechanism, RecurrentState, State
from regard.errors import DtypeError, ShapeError, StateError
from regard.masks import Mask
from regard.masks.parts import Band
from regard.softmax import autocasting
from regard.types import Shape


class Widths(NamedTuple):
    """Features a position that a mechanism takes; None where any number will do."""

    query: int | None = None
    key: int | None = None
    value: int | None = None


class Inputs(NamedTuple):
    """Checked inputs: keys and values as the mechanism's `prepare` made them, all of them."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    state: State | None
    step: int  # queries answered before this call
    shape: Shape
    crosses: bool = False  # the keys are another sequence
    past: RecurrentState | None = None  # what keys of earlier calls have become, if not keys
    held: int = 0  # keys that a growing state held before this call
    gap: slice = slice(0, 0)  # keys of the text that the state has dropped

    @property
    def text(self) -> Shape:
        """The sizes with all keys of the text, dropped ones too, as masks and biases have them."""
        gone = self.gap.stop - self.gap.start
        return self.shape if gone == 0 else self.shape._replace(keys=self.shape.keys + gone)


def gather(
    mechanism: Mechanism,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    mask: Mask | Tensor | None,
    causal: bool,
    state: State | RecurrentState | bool | None,
    widths: Widths,
    n_heads: int = 1,
) -> Inputs:
    """Resolve defaults and state, check every axis, and zero what nobody may see."""
    name = type(mechanism).__name__
    if state is not None and not isinstance(state, State | bool):
        raise StateError(
            f"{name}: state is {type(state).__name__}, expected a State (the .state of the last "
            "call), or True to start one"
        )
    held = state if isinstance(state, State) else None
    if held is not None:
        _check_state(name, held, query)
    fixed = held is not None and not held.growing
    if fixed and (key is not None or value is not None):
        raise StateError(f"{name}: a fixed state holds the keys; pass the query alone")
    if not (state is None or state is False or fixed or mechanism.traits.keeps_state):
        raise StateError(f"{name} keeps no growing state; use fix(key, value)")
    check_features(name, "query", query, widths.query, query)
    old = 0 if held is None else held.keys
    if fixed:
        new = 0
    else:
        alone = (key is None or key is query) and (value is None or value is query)
        key = query if key is None else key
        value = key if value is None else value
        check_features(name, "key", key, widths.key, query)
        check_features(name, "value", value, widths.value, query)
        new = key.shape[1]
        if value.shape[1] != new:
            raise ShapeError(f"{name}: value: axis key has size {value.shape[1]}, expected {new}")
    shape = Shape(query.shape[0], n_heads, query.shape[1], old + new)
    gap, gone = slice(0, 0), 0
    if held is not None and held.dropped:
        gap, gone = slice(held.first, held.first + held.dropped), held.dropped
    text = shape if gone == 0 else shape._replace(keys=shape.keys + gone)
    longest = mechanism.traits.longest
    if longest is not None and text.keys > longest:
        raise ShapeError(f"{name}: axis key has size {text.keys}, expected at most {longest}")
    whole = None if mask is None and not causal else masks.resolve(mask, causal, text)
    if gone:
        _check_gap(name, gap, getattr(mechanism, "window", None), text)
        if whole is not None:
            whole = whole.without_keys(gap, *text[2:], query.device)
    whole, padding = _remembered(whole, state, shape)
    step = 0 if held is None else held.step

    if held is not None and fixed:
        after = State(held.key, held.value, False, step + shape.queries, padding)
        return Inputs(query, held.key, held.value, whole, after, step, shape, crosses=True)
    assert key is not None and value is not None
    crosses = key is not query
    if whole is not None:
        alive = whole.alive(shape.queries, shape.keys, query.device)
        if alive is not None:
            same_value, new_alive = value is key, alive[..., old:]
            key = finite(key, new_alive)
            value = key if same_value else finite(value, new_alive)
            query = key if alone else query
    keys, values = mechanism.prepare(key, value, start=old + gone)
    if held is None:
        started = State(keys, values, True, shape.queries, padding) if state else None
        return Inputs(query, keys, values, whole, started, step, shape, crosses)
    check_held(name, held.key, held.value, keys.shape, values.shape)
    after = held.append(keys, values, shape.queries, padding)
    return Inputs(
        query, after.key, after.value, whole, after, step, shape, crosses, held=old, gap=gap
    )


def _remembered(
    mask: Mask | None, state: State | RecurrentState | bool | None, shape: Shape
) -> tuple[Mask | None, Tensor | None]:
    """The mask with the padding that the state holds, and the padding the next one holds.

    A mask that names keys speaks for all of them, old and new. Otherwise old keys are what they
    were, and new ones are real.
    """
    if state is None or state is False:
        return mask, None
    padding = masks.lasting(mask, shape.batch)
    if padding is not None or not isinstance(state, State) or state.padding is None:
        return mask, padding
    new = shape.keys - state.padding.shape[1]
    kept = torch.nn.functional.pad(state.padding, (0, new), value=True)
    return masks.with_padding(mask, kept), kept


def _check_gap(name: str, gap: slice, window: Any, text: Shape) -> None:
    """Raise where a query may see a key that was dropped."""
    reach = window.left if isinstance(window, Band) else None
    earliest = 0 if reach is None else text.keys - text.queries - reach
    first = window.first if isinstance(window, Band) else 0
    if earliest < gap.stop or first > gap.start:
        seen = min(earliest, gap.start) if first > gap.start else max(earliest, 0)
        raise StateError(
            f"{name}: state: keys {gap.start} to {gap.stop - 1} were dropped, but a query of this "
            f"call sees keys from {seen} on; pass at most as many queries as new keys, to the "
            "module that made the state"
        )


def _check_state(name: str, state: State, query: Tensor) -> None:
    if state.key.shape[0] != query.shape[0]:
        raise ShapeError(
            f"{name}: state: axis batch has size {state.key.shape[0]}, expected {query.shape[0]}"
        )
    if state.key.dtype != query.dtype and not autocasting(query.device):
        raise DtypeError(
            f"{name}: state is {state.key.dtype}, expected {query.dtype} as the query; start a new "
            "one with the module as it is now"
        )


def check_held(
    name: str, key: Tensor, value: Tensor, key_sizes: Sequence[int], value_sizes: Sequence[int]
) -> None:
    """Raise where the (batch, head, key, width) tensors of a state have other heads or widths."""
    for which, held, sizes in (("key", key, key_sizes), ("value", value, value_sizes)):
        if held.dim() != len(sizes):
            raise ShapeError(
                f"{name}: state: {which} has {held.dim()} axes {tuple(held.shape)}, expected "
                f"{len(sizes)}"
            )
        for axis, dim in (("head", -3), ("width", -1)):
            if len(sizes) == 4 and held.shape[dim] != sizes[dim]:
                raise ShapeError(
                    f"{name}: state: {which}: axis {axis} has size {held.shape[dim]}, expected "
                    f"{sizes[dim]}; another module made this state"
                )


def finite(features: Tensor, alive: Tensor) -> Tensor:
    """Features (batch, position, width) with NaN and inf zeroed where no query looks now.

    Numbers stay: a later query may attend to them, and a position nobody attends to may be a query.
    """
    kept = alive.any(1).to(features.device)[..., None] | features.isfinite()
    return torch.where(kept, features, features.new_zeros(()))


def check_features(name: str, which: str, tensor: Tensor, width: int | None, query: Tensor) -> None:
    """Raise where features (batch, position, width) do not fit; names axis, size, expectation."""
    argument, axis = f"{name}: {which}", "query" if which == "query" else "key"
    checks.check_features(argument, tensor, {"batch": None, axis: None, "width": width})
    checks.check_dtype(argument, tensor, query, "the query")
    checks.check_axes(argument, tensor, {"batch": query.shape[0], axis: None, "width": None})
