"""The contract: what every attention returns (`Attended`) and promises (`Mechanism`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.bias import Bias
from regard.cache_buffer import CacheBuffer, extended, shortened
from regard.errors import RegardError, StateError
from regard.masks import Mask, lasting
from regard.recipe import Recipe
from regard.types import Kind, Weights, brief, register_pytree


@dataclass(frozen=True, eq=False, repr=False)
class Attended:
    """What an attention returns.

    | field        | meaning                                                                     |
    |--------------|-----------------------------------------------------------------------------|
    | `output`     | (batch, query, width); from `attend`, (batch, head, query, value width);    |
    |              | from attention over an image, (batch, channel, height, width)               |
    | `weights`    | (batch, head, query, key), or None when not asked                           |
    | `state`      | what the next step needs; None where there is none                          |
    | `recipe`     | what the weights are made from; kept when weights or reductions were asked  |
    | `reductions` | results in the order asked                                                  |
    | `crosses`    | the keys are another sequence than the queries                              |
    """

    output: Float[Tensor, "*_"]
    weights: Weights | None = None
    state: State | RecurrentState | None = None
    recipe: Recipe | None = None
    reductions: tuple[Any, ...] = ()
    crosses: bool = False

    def __repr__(self) -> str:
        parts = [f"output={tuple(self.output.shape)}"]
        if self.weights is not None:
            parts.append(f"weights={tuple(self.weights.shape)}")
        if self.recipe is not None:
            parts.append(f"recipe={type(self.recipe).__name__}, {self.recipe.nbytes:,} bytes")
        if self.state is not None:
            parts.append(f"state of {self.state.keys} keys")
        if self.reductions:
            parts.append(f"{len(self.reductions)} reductions")
        return f"Attended({'; '.join(parts)})"

    def __iter__(self) -> Iterator[Any]:
        raise RegardError("Attended is not a tuple: take .output, .weights, .reductions, .state")

    def finished(
        self, output: Tensor, state: State | RecurrentState | None, *, crosses: bool = False
    ) -> Attended:
        """The same attention with the mechanism's own output and state in place."""
        return Attended(output, self.weights, state, self.recipe, self.reductions, crosses)


@dataclass(frozen=True, eq=False, repr=False)
class State:
    """Keys and values that a mechanism has already prepared.

    `growing`: each call appends its keys (a cache). Otherwise fixed: later calls pass the query
    alone. `step` counts the queries that have been answered. The shapes of `key` and `value` are
    the mechanism's own; their key axis is second to last. `padding` says which keys are real, as
    far as a mask has said so: a later call whose mask does not mask keys itself uses it.

    Without gradients a growing state is a view of a preallocated buffer, so that a step writes its
    own keys and copies no others. The state stays a value: see `CacheBuffer`.

    A mechanism with a window drops keys that no later query can see. `dropped` says how many, and
    `first` how many it kept before them; `length` counts all positions of the text.
    """

    key: Float[Tensor, "*_"]
    value: Float[Tensor, "*_"]
    growing: bool
    step: int = 0
    padding: Bool[Tensor, "batch key"] | None = None
    first: int = 0
    dropped: int = 0
    buffer: CacheBuffer | None = None

    def __repr__(self) -> str:
        text = brief(replace(self, buffer=None))
        return text if self.dropped else text.replace(", first=0, dropped=0", "")

    @property
    def keys(self) -> int:
        """How many keys are held."""
        return self.key.shape[-2]

    @property
    def length(self) -> int:
        """How many keys there were: those that are held, and those that were dropped."""
        return self.keys + self.dropped

    def positions(self, keys: int | None = None) -> Int[Tensor, " key"]:
        """The positions in the text of the keys that are held.

        With `keys`, the size of the key axis of the weights of the call that gave this state: the
        positions of those keys, before the call dropped some of them.
        """
        keys = self.keys if keys is None else keys
        gone = self.length - keys
        first = 0 if gone == 0 else self.first
        positions = torch.arange(keys, device=self.key.device)
        return torch.where(positions < first, positions, positions + gone)

    def append(
        self, key: Tensor, value: Tensor, queries: int, padding: Tensor | None = None
    ) -> State:
        """This state with more keys and values behind the old ones, after `queries` more."""
        (keys, values), buffer = extended(self.buffer, (self.key, self.value), (key, value))
        gap = {"first": self.first, "dropped": self.dropped}
        return State(keys, values, True, self.step + queries, padding, **gap, buffer=buffer)

    def windowed(self, first: int, last: int) -> State:
        """This state with its `first` keys and the `last` ones alone."""
        if first + last >= self.keys:
            return self
        (key, value), buffer = shortened(self.buffer, (self.key, self.value), first, last)
        padding = self.padding
        if padding is not None:
            padding = torch.cat([padding[:, :first], padding[:, self.keys - last :]], dim=1)
        dropped = self.length - first - last
        return State(key, value, True, self.step, padding, first, dropped, buffer)


@dataclass(frozen=True, eq=False, repr=False)
class RecurrentState:
    """A memory of all keys so far, of constant size.

    There is no key axis: keys are written into `memory` and not stored, so a later call has weights
    for its own keys alone. `growing`: each call writes its keys. Otherwise fixed: later calls pass
    the query alone. `written` counts the real keys, `keys` all positions, padding
    included, and `step` the queries that have been answered. A mask spans all
    positions, old and new, as with any state; what has been written stays written. `draw` says
    which draw of random features it was written in; a later one cannot read it.
    """

    memory: Float[Tensor, "batch head features value_width"]
    written: Int[Tensor, " batch"]
    keys: int
    growing: bool
    step: int = 0
    normaliser: Float[Tensor, "batch head features"] | None = None
    draw: Int[Tensor, " batch"] | None = None

    def __repr__(self) -> str:
        return brief(self)

    def followed_by(self, new: RecurrentState) -> RecurrentState:
        """The state after a further call, whose own counts are those of `new`."""
        return replace(
            new,
            written=self.written + new.written,
            keys=self.keys + new.keys,
            growing=self.growing,
            step=self.step + new.step,
            draw=self.draw,
        )


register_pytree(
    State,
    static=("growing", "step", "first", "dropped"),
    optional=("padding",),
    left_out=("buffer",),
)
register_pytree(RecurrentState, static=("keys", "growing", "step"), optional=("normaliser", "draw"))
register_pytree(Attended, static=("crosses",))


@dataclass(frozen=True, eq=False)
class BlockOutput:
    """What a module with several attentions returns: its output, the attentions inside by name, and
    the state the next step needs."""

    output: Float[Tensor, "*_"]
    attentions: dict[str, Attended] = field(default_factory=dict)
    state: Any = None


register_pytree(BlockOutput)


class Traits(NamedTuple):
    """Which laws hold for a mechanism; the contract suite chooses its checks by them."""

    order_matters: bool = False  #: permuting the keys changes the output
    keeps_state: bool = True  #: `begin` and growing states work
    self_only: bool = False  #: queries and keys must be the same sequence
    longest: int | None = None  #: more keys than this are refused
    takes_value: bool = True  #: values may be passed apart from the keys
    points: bool = False  #: the output is the weights, (batch, query, key): nothing is mixed
    sequential: bool = False  #: a query's weights depend on the queries before it
    hard: bool = False  #: eval chooses keys, with weights 0 or 1; training draws at random
    recurrent: bool = False  #: states are `RecurrentState`s: one size, no key axis
    scored: bool = True  #: has scores: takes a bias, and masks of pairs


class Mechanism(nn.Module, ABC):
    """An attention mechanism. The contract page has the promises behind each argument."""

    kind: Kind = "distribution"
    traits: Traits = Traits()

    @abstractmethod
    def forward(
        self,
        query: Float[Tensor, "batch query query_width"],
        key: Float[Tensor, "batch new_key key_width"] | None = None,
        value: Float[Tensor, "batch new_key value_width"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        causal: bool = False,
        state: State | RecurrentState | bool | None = None,
        weights: bool = False,
        reduce: Sequence[Any] = (),
    ) -> Attended:
        """Attend.

        Args:
            query: (batch, query, width), the positions that attend.
            key: (batch, key, width), the positions attended to; defaults to `query`.
            value: (batch, key, width), what is mixed; defaults to `key`.
            mask: a `Mask`, or a boolean tensor (batch or 1, head or 1, query or 1, key);
                True means "may attend". With a state it spans all keys, old and new, dropped
                ones too. A state stores padding: the part of a mask that is the same for all
                queries.
            bias: added to the scores, (batch or 1, head or 1, query or 1, key) or a `Bias`; its
                keys are those of the mask.
            causal: intersect the mask with bottom-right causality.
            state: a `State` to continue from, or True to start a growing one.
            weights: also return the weights, before dropout.
            reduce: reducers whose results come back in `Attended.reductions`.
        """

    @abstractmethod
    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        """The keys and values that a state holds: projected, or whatever is computed once.

        `start` is the position of the first key, behind those a growing state already holds.
        """

    def fix(self, key: Tensor, value: Tensor | None = None, *, mask: Mask | None = None) -> State:
        """A fixed state: keys and values prepared once; later calls pass the query alone.

        `mask` (padding) is stored: later calls need not pass it again.
        """
        prepared = self.prepare(key, key if value is None else value)
        return State(*prepared, growing=False, padding=lasting(mask, key.shape[0]))

    def begin(self, key: Tensor, value: Tensor | None = None, *, mask: Mask | None = None) -> State:
        """A growing state that already holds these keys; each call appends its own."""
        if not self.traits.keeps_state:
            raise StateError(f"{type(self).__name__} keeps no growing state; use fix(key, value)")
        prepared = self.prepare(key, key if value is None else value)
        return State(*prepared, growing=True, padding=lasting(mask, key.shape[0]))
