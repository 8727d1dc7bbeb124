"""Delta rules and linear attention: our own, and the plain torch ones of Qwen3-Next and others.

transformers writes the rule as two Python functions, chunked and step by step. No single operator
attends there, so the functions are recognised by their code, and read at two operators: the first
transposes the query, when all arguments are unchanged; the last transposes the output, when the
state is final. The recipe is built on demand.

A call that continues from a state has earlier keys. The state is compared with the final states of
earlier calls, also in another order, as after beam search; nothing is assumed about caches. If it
is one of them, the keys of all these calls are the columns of the weights.

Our own mechanisms read their memories in `read_memory`, which has the recipe already.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.kernel.linear_delta_chunks import read_memory
from regard.masks.parts import Band
from regard.recipe import Delta, Recipe, Recurrent
from regard.record.stored_attention import (
    StoredAttention,
    check_versions,
    copied,
    detached,
    versions,
)
from regard.tracing.key_cache import example_orders, order_of
from regard.tracing.module_paths import argument, frame_of
from regard.types import Kind, Shape

_PACKAGE, _OURS = "transformers.models.", "regard.mechanisms.recurrent"
_FUNCTIONS = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
_ARGUMENTS = ("query", "key", "value", "g", "beta", "initial_state", "use_qk_l2norm_in_kernel")
_OUTPUT, _STATE = "core_attn_out", "last_recurrent_state"
_EPSILON = 1e-6  # of the length of queries and keys, as there

STATE = (
    "its state holds keys of calls that were not captured: weights are those of this call's keys, "
    "and the recipe's memory is the rest"
)
EARLIER = (
    "its state holds keys of earlier calls: weights are those of this call's keys, and the "
    "recipe's memory is the rest"
)
JOINED = "there is none for keys that several calls wrote"


class StateWrite(NamedTuple):
    """What one call writes into the state, with the model's axes."""

    key: Tensor  # (batch, key, head, width)
    value: Tensor | None
    log_decay: Tensor  # (batch, key, head)
    strength: Tensor


class StateWrites:
    """What each call wrote, and the order of its examples among those of the call before."""

    def __init__(self) -> None:
        self.calls: list[StateWrite] = []
        self.orders: list[Tensor | None] = []
        self.versions: list[tuple[int, ...]] = []

    def append(self, written: StateWrite, order: Tensor | None) -> None:
        """Add a call."""
        self.calls.append(written)
        self.orders.append(order)
        self.versions.append(versions(_tensors(written)))

    def written(self, calls: int) -> StateWrite:
        """What the first `calls` calls wrote, concatenated."""
        writes: list[StateWrite] = []
        for index, order in example_orders(self.orders[:calls]):
            call = self.calls[index]
            check_versions(_tensors(call), self.versions[index])
            writes.append(call if order is None else _map(call, _picked(order)))
        if calls == 1:
            return writes[0]
        fields = zip(*writes)
        joined: list[Any] = [None if field[0] is None else torch.cat(field, 1) for field in fields]
        return StateWrite(*joined)

    def protect(self, calls: int, storage: int) -> None:
        """Copy what the first calls wrote in this storage."""
        self.calls[:calls] = [_map(call, copied(storage)) for call in self.calls[:calls]]
        self.versions[:calls] = [versions(_tensors(call)) for call in self.calls[:calls]]


class DeltaCall(StoredAttention):
    """A call of the rule: its queries, and what it and earlier calls wrote."""

    def __init__(
        self, query: Tensor, chain: StateWrites, memory: Tensor | None, unit_length: bool
    ) -> None:
        self._query, self._memory, self._unit_length = query, memory, unit_length
        self._chain, self._calls = chain, len(chain.calls)
        self._keys = sum(call.key.shape[1] for call in chain.calls)
        self._versions = versions(self._alone())

    def recipe(self) -> Recipe:
        check_versions(self._alone(), self._versions)
        written = self._chain.written(self._calls)
        query, key = self._features(self._query), self._features(written.key)
        return Delta(
            query * query.shape[-1] ** -0.5,
            key,
            _on_heads(written.strength),
            None if written.value is None else _on_heads(written.value),
            log_decay=_on_heads(written.log_decay),
            mask=Band(None, 0),
            memory=None if self._memory is None else self._memory.float(),
        )

    def _features(self, tensor: Tensor) -> Tensor:
        features = _on_heads(tensor)
        if not self._unit_length:
            return features
        return features * (features.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()

    @property
    def shape(self) -> Shape:
        batch, queries, heads, _ = self._query.shape
        return Shape(batch, heads, queries, self._keys)

    @property
    def kind(self) -> Kind:
        return "signed"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32  # whatever the model's: it computes in float32

    @property
    def reordered(self) -> bool:
        """Whether examples were reordered between calls, as beams are."""
        return any(order is not None for order in self._chain.orders[: self._calls])

    @property
    def value_held(self) -> bool:
        return self._chain.calls[0].value is not None

    def tensors(self) -> Sequence[Tensor]:
        calls = self._chain.calls[: self._calls]
        return [*self._alone(), *(tensor for call in calls for tensor in _tensors(call))]

    def own(self) -> Sequence[Tensor]:
        return [*self._alone(), *_tensors(self._chain.calls[self._calls - 1])]

    def _alone(self) -> list[Tensor]:
        return [self._query] if self._memory is None else [self._query, self._memory]

    def protect(self, storage: int) -> None:
        change = copied(storage)
        self._query = change(self._query)
        self._memory = None if self._memory is None else change(self._memory)
        self._versions = versions(self._alone())
        self._chain.protect(self._calls, storage)


class RuleCall(NamedTuple):
    """A finished call of the rule."""

    query: Tensor  # (batch, query, head, width)
    written: StateWrite
    unit_length: bool  # queries and keys are divided by their length
    state: Tensor | None  # before the call, (batch, head, width, value width)
    output: Tensor  # (batch, head, query, value width)
    final: Tensor | None  # the state after the call, where it was asked for

    @property
    def on_heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, value and output, (batch, head, position, width)."""
        assert self.written.value is not None
        return self.query.transpose(1, 2), self.written.value.transpose(1, 2), self.output

    def detached(self) -> RuleCall:
        """The same outside the graph; the output stays in it."""
        return self._replace(
            query=detached(self.query),
            written=_map(self.written, detached),
            state=None if self.state is None else detached(self.state),
        )


class DeltaRules:
    """Calls of the rule in a model: their code, and the last state of each site."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._codes: dict[int, CodeType] = {}  # by id: their own hash is slow
        self._here = threading.local()
        #: The final state of a site's last call, and what was written to it.
        self._last: dict[str, tuple[Tensor, StateWrites]] = {}
        self.adopt(modules)

    def __bool__(self) -> bool:
        """Whether the model may call the rule at all."""
        return bool(self._codes)

    def adopt(self, modules: Iterable[nn.Module]) -> None:
        """Look for the rule beside the classes of modules."""
        for kind in {type(module) for module in modules}:
            self._codes.update((id(code), code) for code in _codes(kind))  # type: ignore[arg-type]

    def inside(self) -> bool:
        """Whether an operator runs inside a call of the rule."""
        running = self._frame() is not None
        if not running:
            self._here.__dict__.clear()  # a call that ended with an error
        return running

    def transposed(self, tensor: Tensor) -> RuleCall | None:
        """A tensor was transposed in a call of the rule: the call, if that ends it."""
        frame = self._frame()
        if frame is None:
            return None
        if tensor is argument(frame, "query"):
            self._here.arguments = {name: argument(frame, name) for name in _ARGUMENTS}
        elif tensor is argument(frame, _OUTPUT):
            arguments = self._here.__dict__.pop("arguments", None)
            if arguments is not None:
                return _call(arguments, tensor, argument(frame, _STATE))
        return None

    def own(self, tensor: Any) -> Recurrent | None:
        """The recipe of ours, if this tensor is what its queries read from memory."""
        frame = self._frame()
        if frame is None or frame.f_code is not _code(read_memory):
            return None
        return argument(frame, "recipe") if tensor is argument(frame, "mixed") else None

    def held(self, site: str, call: RuleCall, values: bool) -> tuple[DeltaCall, bool]:
        """What a record stores of a call, and whether its initial state was not captured."""
        written = call.written if values else call.written._replace(value=None)
        chain, order, memory = StateWrites(), None, None
        left = self._last.pop(site, None)
        if call.state is not None and bool(call.state.any()):
            match = False if left is None else order_of(call.state, left[0].to(call.state))
            if left is None or match is False:
                memory = call.state
            else:
                chain, order = left[1], match
        chain.append(written, order)
        if call.final is not None and memory is None:
            self._last[site] = (call.final.detach().clone(), chain)
        return DeltaCall(call.query, chain, memory, call.unit_length), memory is not None

    def drop(self, site: str) -> None:
        """Forget a site whose last record was dropped."""
        self._last.pop(site, None)

    def clear(self) -> None:
        """The capture ends."""
        self._last.clear()
        self._here = threading.local()

    def _frame(self) -> FrameType | None:
        """The call of the rule that runs an operator; the rule calls no modules."""
        return frame_of(self._codes)


@functools.lru_cache(maxsize=1024)
def _codes(kind: type) -> tuple[CodeType, ...]:
    """The functions of the rule in the module of a class, if readable, and our own."""
    codes: list[CodeType | None] = []
    for base in kind.__mro__:
        if base.__module__ == _OURS:
            codes.append(_code(read_memory))
        module = sys.modules.get(base.__module__)
        if module is None or not base.__module__.startswith(_PACKAGE):
            continue
        for name in _FUNCTIONS:
            code = _code(getattr(module, name, None))
            names = () if code is None else code.co_varnames
            if code is not None and {*_ARGUMENTS, _OUTPUT, _STATE}.issubset(names):
                codes.append(code)
    return tuple(code for code in codes if code is not None)


def _code(function: Any) -> CodeType | None:
    """The code inside a function's decorators."""
    return getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None


def _call(arguments: dict[str, Any], output: Tensor, final: Tensor | None) -> RuleCall:
    written = StateWrite(arguments["key"], arguments["value"], arguments["g"], arguments["beta"])
    return RuleCall(
        arguments["query"],
        written,
        bool(arguments["use_qk_l2norm_in_kernel"]),
        arguments["initial_state"],
        output,
        final,
    )


def _on_heads(tensor: Tensor) -> Tensor:
    """(batch, position, head, …) to (batch, head, position, …)."""
    return tensor.transpose(1, 2).float()


def _picked(order: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor[order]


def _map(written: StateWrite, change: Callable[[Tensor], Tensor]) -> StateWrite:
    changed: list[Any] = [None if tensor is None else change(tensor) for tensor in written]
    return StateWrite(*changed)


def _tensors(written: StateWrite) -> list[Tensor]:
    return [tensor for tensor in written if tensor is not None]
