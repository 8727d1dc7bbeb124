"""What is being checked: a module that is built anew for each law, and inputs that fit it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.contract import Attended, State, Traits
from regard.kernel.reduce import Reducer
from regard.kernel.reducers import Entropy, ReceivedAttention
from regard.types import Kind


class Unchecked(Exception):
    """A law that cannot be seen on this module, with the reason."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the inputs; widths of key and value default to the query's."""

    width: int = 16
    key_width: int | None = None
    value_width: int | None = None
    batch: int = 2
    queries: int = 5
    keys: int = 7


@dataclass(frozen=True)
class Subject:
    """A module under check."""

    build: Callable[[], nn.Module]
    sizes: Sizes

    def module(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        """A fresh module in eval mode, its parameters away from special starting values."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build().to(torch.float64).eval()
            for parameter in module.parameters():
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        return module.to(dtype)

    def inputs(
        self,
        dtype: torch.dtype = torch.float64,
        *,
        queries: int | None = None,
        keys: int | None = None,
        seed: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A query, key and value of random numbers; the same tensor thrice for self-attention."""
        sizes, random = self.sizes, torch.Generator().manual_seed(seed)

        def draw(length: int, width: int) -> Tensor:
            numbers = torch.randn(sizes.batch, length, width, generator=random, dtype=torch.float64)
            return numbers.to(dtype)

        query = draw(sizes.queries if queries is None else queries, sizes.width)
        if self.traits.self_only:
            return query, query, query
        length = sizes.keys if keys is None else keys
        key = draw(length, sizes.key_width or sizes.width)
        value = draw(length, sizes.value_width) if sizes.value_width else key
        return query, key, value

    def own(self, dtype: torch.dtype = torch.float64, *, length: int | None = None) -> Tensor:
        """One sequence that attends to itself."""
        sizes = self.sizes
        if (sizes.key_width or sizes.width) != sizes.width or sizes.value_width is not None:
            raise Unchecked("queries and keys have different widths: no self-attention")
        for name, parameter in inspect.signature(self.build().forward).parameters.items():
            if name in ("key", "value") and parameter.default is parameter.empty:
                raise Unchecked(f"forward must be given `{name}`: no self-attention by itself")
        return self.inputs(dtype, queries=length)[0]

    @property
    def traits(self) -> Traits:
        """What the module declares; for a stranger, the mildest assumption."""
        module = self.build()
        alone = not any(_takes(module, other) for other in ("key", "context"))  # a block's keys
        stranger = Traits(keeps_state=False, self_only=alone)
        traits: Traits = getattr(module, "traits", stranger)
        return traits

    @property
    def kind(self) -> Kind:
        kind: Kind = getattr(self.build(), "kind", "distribution")
        return kind

    @cached_property
    def fine(self) -> float:
        """How near to each other two ways to the same number come: as near as float64 allows, or
        float32 where the weights are float32 numbers (a softmax that is always taken so)."""
        with contextlib.suppress(Unchecked):
            weights = weights_of(call(self.module(), *self.inputs(), weights=True))
            if torch.equal(weights.float().to(weights.dtype), weights):
                return 1e-5
        return 1e-9

    @property
    def reducer(self) -> Reducer:
        """One that these weights have an answer for: signed weights and gates have no entropy."""
        return ReceivedAttention() if self.kind in ("signed", "gate") else Entropy()

    def takes(self, argument: str) -> None:
        """Raise `Unchecked` where the module's forward has no such argument."""
        _check_taken(self.build(), argument)

    @property
    def takes_value(self) -> bool:
        """Whether values may be other than the keys."""
        return _takes(self.build(), "value")

    def arguments(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Inputs as positional arguments, without values where the module takes none."""
        return (query, key, value) if self.takes_value else (query, key)

    @property
    def reduces(self) -> bool:
        """Whether the module's forward takes reducers."""
        return _takes(self.build(), "reduce")


def _check_taken(module: nn.Module, argument: str) -> None:
    if not _takes(module, argument):
        raise Unchecked(f"forward takes no `{argument}`")


def _takes(module: nn.Module, argument: str) -> bool:
    if argument == "value" and not getattr(module, "traits", Traits()).takes_value:
        return False
    parameters = inspect.signature(module.forward).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return anything or argument in parameters


def call(module: nn.Module, *inputs: Tensor, **options: Any) -> Attended:
    """Call a module and make sure that it returned an `Attended`.

    Raises `Unchecked` where its forward has no such argument: a stranger need not know all. A key
    that is the query, or a value that is the key, is left out where forward does not take it.
    """
    for argument in options:
        _check_taken(module, argument)
    for argument in reversed(("key", "value")[: len(inputs) - 1]):
        if not _takes(module, argument):
            inputs, left_out = inputs[:-1], inputs[-1]
            if left_out is not inputs[-1] and not torch.equal(left_out, inputs[-1]):
                raise Unchecked(f"forward takes no `{argument}`")
    attended = module(*inputs, **options)
    assert isinstance(attended, Attended), (
        f"forward returned {type(attended).__name__}, expected regard.Attended"
    )
    return attended


def weights_of(attended: Attended) -> Tensor:
    """The weights, which must be there because they were asked for."""
    assert attended.weights is not None, "weights=True was asked and weights is None"
    return attended.weights


def over_the_text(weights: Tensor, state: Any) -> Tensor:
    """Weights of a call over all keys of the text: 0 for those that its state has dropped."""
    if not isinstance(state, State) or not state.dropped:
        return weights
    whole = weights.new_zeros(*weights.shape[:3], state.length)
    return whole.index_copy(3, state.positions(weights.shape[3]), weights)


def largest(tensor: Tensor) -> float:
    """The largest absolute value, 0 for an empty tensor."""
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def close(got: Tensor, want: Tensor, tolerance: float, what: str) -> None:
    """Fail with the largest difference where two tensors are not close."""
    assert got.shape == want.shape, (
        f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    )
    got, want = got.detach().double(), want.detach().double()
    assert not got.isnan().any(), f"{what}: NaN"
    apart, scale = largest(got - want), max(1.0, largest(want))
    assert apart <= tolerance * scale, (
        f"{what}: apart by {apart:.3g}, allowed {tolerance * scale:.3g}"
    )
