"""What mechanisms with a recurrent state have in common: keys are written into a memory."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard import masks
from regard.bias import Bias
from regard.contract import Attended, RecurrentState, State, Traits
from regard.errors import (
    DtypeError,
    MaskError,
    RegardError,
    ShapeError,
    StateError,
    UnavailableError,
)
from regard.kernel.attend import run
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.mechanisms.decays import Decay
from regard.mechanisms.feature_maps import Side, advance, draw_number
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.heads import Heads
from regard.mechanisms.inputs import Inputs, Widths, check_features, finite
from regard.recipe import Recipe, Recurrent
from regard.recipe.linear import key_mask
from regard.softmax import autocasting
from regard.types import Shape


class RecurrentMechanism(FromRecipe):
    """Heads of features that are written into a memory of one size, and read from it.

    With `causal=True` a query reads the memory as it is after its own position, otherwise after the
    last key. A mask may name keys (padding) and causality. Queries and keys are projected, then
    mapped to features; the output projection has no bias, so that a query which reads nothing has
    output 0.
    """

    def __init__(
        self,
        width: int,
        heads: int | Heads,
        *,
        inputs: tuple[int, int] | None,
        bias: bool,
        feature_map: nn.Module,
        decay: Decay | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if inputs is not None and (not isinstance(inputs, tuple) or len(inputs) != 2):
            raise RegardError(f"{name}: inputs={inputs!r}, expected a tuple of two")
        if not isinstance(feature_map, nn.Module) or not _takes_side(feature_map):
            raise RegardError(
                f"{name}: feature_map={feature_map!r}, expected a module that is called as "
                "feature_map(x, side), as EluPlusOne()"
            )
        if decay is not None and not isinstance(decay, nn.Module):
            raise RegardError(
                f"{name}: decay={decay!r}, expected a part, as FixedDecay([0.9, 0.99]) with a "
                "number a head, or GatedDecay(width, n_heads)"
            )
        heads = heads if isinstance(heads, Heads) else Heads(heads)
        self.n_heads, self.n_groups, self.head_width, self.value_width = heads.fitted(width, name)
        key_in, value_in = inputs or (width, width)
        self.sizes = Widths(width, key_in, value_in)
        self.to_query = nn.Linear(width, self.n_heads * self.head_width, bias=bias)
        self.to_key = nn.Linear(key_in, self.n_groups * self.head_width, bias=bias)
        self.to_value = nn.Linear(value_in, self.n_groups * self.value_width, bias=bias)
        self.to_output = nn.Linear(self.n_heads * self.value_width, width, bias=False)
        for linear in (self.to_query, self.to_key, self.to_value, self.to_output):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        self.feature_map = feature_map
        self.decay = decay
        self.traits = Traits(order_matters=decay is not None, recurrent=True, scored=False)

    @abstractmethod
    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Recurrent:
        """What is written and read; keys and values are as they came in."""

    def widths(self, query_width: int) -> Widths:
        return self.sizes

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values as they came in: a state holds what was written of them."""
        return key, value

    def features(self, projected: Tensor, side: Side) -> Tensor:
        """Features (batch, head or group, position, features) of projected queries or keys."""
        heads = projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        features: Tensor = self.feature_map(heads, side)
        return features

    def values(self, value: Tensor) -> Tensor:
        """Values (batch, group, key, value width)."""
        values: Tensor = self.to_value(value).unflatten(-1, (self.n_groups, self.value_width))
        return values.transpose(1, 2)

    def log_decay(self, key: Tensor) -> Tensor | None:
        """The decay before each key, (batch, head, key), as a logarithm."""
        if self.decay is None:
            return None
        log_decay: Tensor = self.decay(key)
        expected = (key.shape[0], self.n_heads, key.shape[1])
        if log_decay.shape != expected:
            raise ShapeError(
                f"{type(self).__name__}: the decay gave {tuple(log_decay.shape)}, expected "
                f"{expected}: batch, heads, keys"
            )
        return log_decay

    def memory(self, inputs: Inputs, features: int, *, normalised: bool = False) -> Tensor | None:
        """The memory before these keys; None where there is none."""
        if inputs.past is None:
            return None
        if (inputs.past.normaliser is not None) != normalised:
            held, wanted = ("no normaliser", "one") if normalised else ("a normaliser", "none")
            raise StateError(
                f"{type(self).__name__}: state has {held}, expected {wanted}; another module made "
                "this state"
            )
        memory, expected = inputs.past.memory, (self.n_heads, features, self.value_width)
        for axis, got, want in zip(("head", "features", "width"), memory.shape[1:], expected):
            if got != want:
                raise ShapeError(
                    f"{type(self).__name__}: state: memory: axis {axis} has size {got}, expected "
                    f"{want}; another module made this state"
                )
        return memory

    def finish(self, mixed: Tensor, recipe: Recurrent) -> Tensor:  # type: ignore[override]
        output: Tensor = self.to_output(mixed.transpose(1, 2).flatten(2))
        return output

    def fix(  # type: ignore[override]  # the state that `traits.recurrent` promises
        self, key: Tensor, value: Tensor | None = None, *, mask: Mask | None = None
    ) -> RecurrentState:
        """A fixed state: the keys are written once, and later calls pass the query alone.

        Padding is not written. The keys are gone then: such calls have no weights to give.
        """
        return replace(self.begin(key, value, mask=mask), growing=False)

    def begin(  # type: ignore[override]
        self, key: Tensor, value: Tensor | None = None, *, mask: Mask | None = None
    ) -> RecurrentState:
        """A state with these keys written; each call writes its own."""
        key, value = self._checked(key, value, mask)
        nobody = key.new_zeros(key.shape[0], 0, self.to_query.in_features)
        inputs = self.gather(nobody, key, value, mask=mask, causal=False, state=None)
        state = run(self.recipe(inputs, None)).state
        assert isinstance(state, RecurrentState)
        return self._drawn(state)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        causal: bool = False,
        state: State | RecurrentState | bool | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> Attended:
        """Attend; see `Mechanism.forward`.

        With a state, weights are those of this call's keys: earlier ones are in the memory, and a
        fixed state has no others.
        """
        name = type(self).__name__
        if bias is not None:
            raise UnavailableError(
                f"{name}: bias: weights are products of features, and there are no scores to add "
                "it to; a decay fades keys with their distance"
            )
        fixed = isinstance(state, RecurrentState) and not state.growing
        if fixed and (weights or reduce):
            raise UnavailableError(
                f"{name}: weights and reductions with a fixed state: its keys were written into a "
                "memory and are gone; pass key and value in place of the state"
            )
        if not isinstance(state, RecurrentState):  # a memory keeps the features it was written in
            advance(self.feature_map)
        return super().forward(
            query,
            key,
            value,
            mask=mask,
            causal=causal,
            state=state,
            weights=weights,
            reduce=reduce,
        )

    def gather(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        mask: Mask | Tensor | None,
        causal: bool,
        state: State | RecurrentState | bool | None,
    ) -> Inputs:
        """Inputs with this call's keys alone, and in `past` what earlier ones have become."""
        name = type(self).__name__
        if state is not None and not isinstance(state, RecurrentState | bool):
            raise StateError(
                f"{name}: state is {type(state).__name__}, expected a RecurrentState (the .state "
                "of the last call), or True to start one"
            )
        past = state if isinstance(state, RecurrentState) else None
        check_features(name, "query", query, self.sizes.query, query)
        if past is not None:
            _check_past(name, past, query)
            if past.draw is not None and not torch.compiler.is_compiling():
                _check_draw(name, past.draw, draw_number(self.feature_map))
        fixed = past is not None and not past.growing
        if fixed:
            if key is not None or value is not None:
                raise StateError(f"{name}: a fixed state holds the keys; pass the query alone")
            if causal:
                raise StateError(f"{name}: causal=True, but a fixed state can only be read whole")
            key = query.new_zeros(query.shape[0], 0, self.to_key.in_features)
            value = query.new_zeros(query.shape[0], 0, self.to_value.in_features)
        alone = (key is None or key is query) and (value is None or value is query)
        key = query if key is None else key
        value = key if value is None else value
        check_features(name, "key", key, self.sizes.key, query)
        check_features(name, "value", value, self.sizes.value, query)
        if value.shape[1] != key.shape[1]:
            raise ShapeError(
                f"{name}: value: axis key has size {value.shape[1]}, expected {key.shape[1]}"
            )
        shape = Shape(query.shape[0], self.n_heads, query.shape[1], key.shape[1])
        cut = self._own_mask(mask, causal, past, shape)
        alive = None if cut is None else cut.alive(shape.queries, shape.keys, query.device)
        crosses = fixed or key is not query
        if alive is not None:
            same_value = value is key
            key = finite(key, alive)
            value = key if same_value else finite(value, alive)
            query = key if alone else query
        step = 0 if past is None else past.step
        return Inputs(query, key, value, cut, None, step, shape, crosses, past)

    def after(self, inputs: Inputs, recipe: Recipe, attended: Attended) -> RecurrentState | None:
        """The state after a call."""
        new, past = attended.state, inputs.past
        assert isinstance(new, RecurrentState)
        return self._drawn(new) if past is None else past.followed_by(new)

    def _drawn(self, state: RecurrentState) -> RecurrentState:
        """A new state that knows which draw of random features it is written in."""
        number = draw_number(self.feature_map)
        if number is None:
            return state
        return replace(state, draw=number.to(state.written.device).expand_as(state.written))

    def _own_mask(
        self, mask: Mask | Tensor | None, causal: bool, past: RecurrentState | None, shape: Shape
    ) -> Mask | None:
        """The mask of this call's keys, out of one that spans all positions."""
        name, old = type(self).__name__, 0 if past is None else past.keys
        whole = masks.resolve(mask, causal, shape._replace(keys=old + shape.keys))
        try:
            causal, keep = key_mask(whole)
        except MaskError as error:
            raise MaskError(f"{name}: {error}") from None
        if past is not None and causal and shape.queries > shape.keys:
            raise StateError(
                f"{name}: {shape.queries} queries and {shape.keys} new keys with causal=True: the "
                "first queries lie before what the state has taken in, which cannot be undone"
            )
        if keep is None:
            return masks.causal() if causal else None
        if past is not None and not torch.compiler.is_compiling():
            _check_written(name, past, keep[:, :old])
        own = masks.padding(keep[:, old:])
        return own & masks.causal() if causal else own


def _takes_side(feature_map: nn.Module) -> bool:
    """Whether a module can be called as `feature_map(x, side)`; most activations cannot."""
    try:
        inspect.signature(feature_map.forward).bind("x", "side")
    except TypeError:
        return False
    return True


def _check_written(name: str, past: RecurrentState, keep: Tensor) -> None:
    """Raise where a mask now names other keys of earlier calls than were written."""
    counts = keep.sum(1).to(past.written.device).expand_as(past.written)
    if not torch.equal(counts, past.written):
        raise StateError(
            f"{name}: mask: of the {past.keys} positions before this call it keeps "
            f"{counts.tolist()}, but {past.written.tolist()} keys were written, and what has been "
            "written stays written"
        )


def _check_draw(name: str, held: Tensor, now: Tensor | None) -> None:
    """Raise where random features have been drawn again since a state was written in them."""
    if now is not None and bool((held != now.to(held.device)).any()):
        raise StateError(
            f"{name}: state was written in draw {held.unique().tolist()} of the random features, "
            f"which are now in draw {int(now)}; start a new one, or draw less often (redraw_every)"
        )


def _check_past(name: str, past: RecurrentState, query: Tensor) -> None:
    if past.memory.shape[0] != query.shape[0]:
        raise ShapeError(
            f"{name}: state: axis batch has size {past.memory.shape[0]}, expected {query.shape[0]}"
        )
    expected = torch.promote_types(query.dtype, torch.float32)
    if past.memory.dtype != expected and not autocasting(query.device):
        raise DtypeError(
            f"{name}: state is {past.memory.dtype}, expected {expected} for a query of "
            f"{query.dtype}; start a new one with the module as it is now"
        )
