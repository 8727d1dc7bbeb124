"""A module under check: built anew for each law, with inputs that fit it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.blocks.sets import SetBlock
from regard.contract import Attended, BlockOutput, Mechanism, State, Traits
from regard.kernel.reducers import Entropy, ReceivedAttention
from regard.kernel.reducers.base import Reducer
from regard.testing.assertions import Unchecked
from regard.types import Kind

Result = Attended | BlockOutput


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
    """A module under check; each family says what its inputs and results are."""

    build: Callable[[], nn.Module]
    sizes: Sizes

    #: How close bfloat16 comes to float64.
    coarse: ClassVar[float] = 6e-2

    @property
    def fine(self) -> float:
        """How close two ways to the same number come."""
        return 1e-9

    def sample(
        self, dtype: torch.dtype = torch.float64, *, small: bool = False, seed: int = 1
    ) -> tuple[Tensor, ...]:
        """Random positional arguments of a plain call; small ones for numerical gradients."""
        raise NotImplementedError

    def run(self, module: nn.Module, *inputs: Tensor, **options: Any) -> Result:
        """Call a module and check the type of its result."""
        raise NotImplementedError

    def module(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        """A fresh module in eval mode, its parameters away from special starting values."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build().to(torch.float64).eval()
            for parameter in module.parameters():
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        return module.to(dtype)

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

    @property
    def reducer(self) -> Reducer:
        """A reducer that these weights permit: signed weights and gates have no entropy."""
        return ReceivedAttention() if self.kind in ("signed", "gate") else Entropy()

    def takes(self, argument: str) -> None:
        """Raise `Unchecked` where the module's forward has no such argument."""
        _check_taken(self.build(), argument)

    @property
    def reduces(self) -> bool:
        """Whether the module's forward takes reducers."""
        return _takes(self.build(), "reduce")


@dataclass(frozen=True)
class MechanismSubject(Subject):
    """A mechanism: query, key and value in, an `Attended` out."""

    @cached_property
    def fine(self) -> float:
        """As close as float64 allows, or float32 where the weights are float32 numbers (a softmax
        that is always computed so)."""
        with contextlib.suppress(Unchecked):
            weights = weights_of(call(self.module(), *self.inputs(), weights=True))
            if torch.equal(weights.float().to(weights.dtype), weights):
                return 1e-5
        return 1e-9

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
        query_length = sizes.queries if queries is None else queries
        query = _draw(random, dtype, sizes.batch, query_length, sizes.width)
        if self.traits.self_only:
            return query, query, query
        length = sizes.keys if keys is None else keys
        key = _draw(random, dtype, sizes.batch, length, sizes.key_width or sizes.width)
        if not sizes.value_width:
            return query, key, key
        return query, key, _draw(random, dtype, sizes.batch, length, sizes.value_width)

    def sample(
        self, dtype: torch.dtype = torch.float64, *, small: bool = False, seed: int = 1
    ) -> tuple[Tensor, ...]:
        lengths = {"queries": 3, "keys": 4} if small else {}
        inputs = self.inputs(dtype, seed=seed, **lengths)
        return inputs[:1] if self.traits.self_only else self.arguments(*inputs)

    def run(self, module: nn.Module, *inputs: Tensor, **options: Any) -> Attended:
        return call(module, *inputs, **options)

    def own(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """One sequence that attends to itself."""
        sizes = self.sizes
        if (sizes.key_width or sizes.width) != sizes.width or sizes.value_width is not None:
            raise Unchecked("queries and keys have different widths: no self-attention")
        for name, parameter in inspect.signature(self.build().forward).parameters.items():
            if name in ("key", "value") and parameter.default is parameter.empty:
                raise Unchecked(f"forward requires `{name}`: no self-attention by itself")
        return self.inputs(dtype)[0]

    @property
    def takes_value(self) -> bool:
        """Whether values may differ from the keys."""
        return _takes(self.build(), "value")

    def arguments(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Inputs as positional arguments, without values where the module takes none."""
        return (query, key, value) if self.takes_value else (query, key)

    def needs_context(self) -> None:
        """Raise `Unchecked` where keys are always the queries."""
        if self.traits.self_only:
            raise Unchecked("the module attends to itself only")


@dataclass(frozen=True)
class BlockSubject(Subject):
    """A block: x and perhaps a context in, a `BlockOutput` out."""

    coarse: ClassVar[float] = 8e-2

    @property
    def reducer(self) -> Reducer:
        return ReceivedAttention()  # mechanisms inside may be of any kind

    def sides(
        self,
        dtype: torch.dtype = torch.float64,
        *,
        length: int | None = None,
        context_length: int | None = None,
        seed: int = 1,
    ) -> tuple[Tensor, ...]:
        """x, and a context where the block attends to one."""
        sizes, random = self.sizes, torch.Generator().manual_seed(seed)
        length = sizes.queries if length is None else length
        x = _draw(random, dtype, sizes.batch, length, sizes.width)
        if not self.takes_context:
            return (x,)
        length = sizes.keys if context_length is None else context_length
        return x, _draw(random, dtype, sizes.batch, length, sizes.key_width or sizes.width)

    def sample(
        self, dtype: torch.dtype = torch.float64, *, small: bool = False, seed: int = 1
    ) -> tuple[Tensor, ...]:
        lengths = {"length": 3, "context_length": 4} if small else {}
        return self.sides(dtype, seed=seed, **lengths)

    def run(self, module: nn.Module, *inputs: Tensor, **options: Any) -> BlockOutput:
        result = module(*inputs, **options)
        assert isinstance(result, BlockOutput), (
            f"forward returned {type(result).__name__}, expected regard.blocks.BlockOutput"
        )
        return result

    @property
    def takes_context(self) -> bool:
        """Whether the block attends to a context: it says so, or a width was given for one."""
        needs = getattr(self.build(), "needs_context", None)
        return self.sizes.key_width is not None if needs is None else bool(needs)

    @property
    def takes_sets(self) -> bool:
        """Whether it is a module on sets, whose output may have another length than x."""
        return isinstance(self.build(), SetBlock)

    @property
    def attends_itself(self) -> bool:
        """Whether positions of x see each other through an attention `self`."""
        return not self.takes_sets and getattr(self.build(), "attends_itself", True)

    def needs_context(self) -> None:
        """Raise `Unchecked` where the block attends to itself only."""
        if not self.takes_context:
            raise Unchecked("the block attends to no context")

    def needs_self(self) -> None:
        """Raise `Unchecked` where the block has no self-attention."""
        if not self.attends_itself:
            raise Unchecked("the block has no attention named self")

    def needs_scores(self, reason: str) -> None:
        """Raise `Unchecked` where a mechanism inside has a memory in place of scores."""
        mechanisms = [child for child in self.build().modules() if isinstance(child, Mechanism)]
        if not all(mechanism.traits.scored for mechanism in mechanisms):
            raise Unchecked(f"a mechanism inside has a memory in place of scores: {reason}")


@dataclass(frozen=True)
class ImageSubject(Subject):
    """An image mechanism: an image in, an `Attended` or a `BlockOutput` of several out."""

    height: int = 6
    width: int = 5

    def image(
        self,
        dtype: torch.dtype = torch.float64,
        *,
        height: int | None = None,
        width: int | None = None,
        batch: int | None = None,
        seed: int = 1,
    ) -> Tensor:
        """An image of random numbers, (batch, channel, height, width)."""
        return _draw(
            torch.Generator().manual_seed(seed),
            dtype,
            self.sizes.batch if batch is None else batch,
            self.sizes.width,
            self.height if height is None else height,
            self.width if width is None else width,
        )

    def sample(
        self, dtype: torch.dtype = torch.float64, *, small: bool = False, seed: int = 1
    ) -> tuple[Tensor, ...]:
        if not small:
            return (self.image(dtype, seed=seed),)
        rows, columns = self.smallest
        return (self.image(dtype, height=max(3, rows), width=max(2, columns), batch=1, seed=seed),)

    @property
    def smallest(self) -> tuple[int, int]:
        """The smallest height and width that the module takes."""
        smallest: tuple[int, int] = getattr(self.build(), "smallest", (1, 1))
        return smallest

    def run(self, module: nn.Module, *inputs: Tensor, **options: Any) -> Result:
        result = module(*inputs, **options)
        assert isinstance(result, Attended | BlockOutput), (
            f"forward returned {type(result).__name__}, expected regard.Attended, or regard.blocks."
            "BlockOutput of several"
        )
        return result


def _draw(random: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)


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
    """Call a mechanism and check that it returned an `Attended`.

    Raises `Unchecked` where its forward lacks an argument: a stranger need not take all. A key
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


def attentions(result: Result) -> dict[str, Attended]:
    """The attentions of a result by what a failure calls their weights."""
    if isinstance(result, Attended):
        return {"weights": result}
    assert result.attentions, "there is no attention named self, cross or another name"
    return {f"weights of {name}": attended for name, attended in result.attentions.items()}


def attentions_named(result: BlockOutput, name: str) -> dict[str, Attended]:
    """Those named `self` or `cross`, alone or behind the name of their layer."""
    matching = {
        label: attended
        for label, attended in attentions(result).items()
        if last_name(label) == name
    }
    assert matching, f"there is no attention named {name}"
    return matching


def last_name(label: str) -> str:
    """`self` of `weights of 3.self`."""
    return label.removeprefix("weights of ").split(".")[-1]


def all_weights(result: Result, name: str | None = None) -> dict[str, Tensor]:
    """The weights, which must be there because they were asked for."""
    if name is None:
        chosen = attentions(result)
    else:
        assert isinstance(result, BlockOutput)
        chosen = attentions_named(result, name)
    return {label: weights_of(attended, label) for label, attended in chosen.items()}


def weights_of(attended: Attended, label: str = "weights") -> Tensor:
    """The weights, which must be there because they were asked for."""
    assert attended.weights is not None, f"weights=True was asked and {label} is None"
    return attended.weights


def over_the_text(weights: Tensor, state: Any) -> Tensor:
    """Weights of a call over all keys of the text: 0 for those that its state has dropped."""
    if not isinstance(state, State) or not state.dropped:
        return weights
    whole = weights.new_zeros(*weights.shape[:3], state.length)
    return whole.index_copy(3, state.positions(weights.shape[3]), weights)
