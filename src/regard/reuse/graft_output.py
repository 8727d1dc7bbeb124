"""An output attention: a query that looks at a model's hidden states, joined to its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.parts import warn_of_identity
from regard.contract import Mechanism
from regard.errors import RegardError, ShapeError
from regard.masks import Mask, clean
from regard.masks.parts import Padding
from regard.mechanisms.from_recipe import FromRecipe
from regard.reuse.graft_part import Call, Part, check_names
from regard.reuse.graft_passes import Unchanged
from regard.reuse.graft_sites import Place
from regard.types import register_pytree


@dataclass(frozen=True, eq=False, repr=False)
class _Zeroed(Padding):
    """Padding that holds zeros already: a mechanism need not look for NaN there, which costs."""

    def alive(self, queries: int, keys: int, device: torch.device | None = None) -> None:
        return None

    def at(self, batch: int, head: int) -> Mask:
        return _Zeroed(self.keep[batch : batch + 1] if len(self.keep) > 1 else self.keep)


register_pytree(_Zeroed)


class ZeroProjection(nn.Module):
    """Y = X − (C W + b) with W and b zero at the start: then Y is X, bit for bit.

    C W + b is taken away, not added, since −0.0 + 0.0 is 0.0, but −0.0 − 0.0 is −0.0. To training
    it is all the same: W and b have the other sign.

    Args:
        context_width: features of what is joined.
        width: features of what it is joined to.
    """

    def __init__(self, context_width: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(context_width, width)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, state: Tensor, context: Tensor) -> Tensor:
        """State (batch, …, width), context (batch, …, context width)."""
        for which, tensor, width in (
            ("context", context, self.project.in_features),
            ("state", state, self.project.out_features),
        ):
            if tensor.shape[-1] != width:
                raise ShapeError(
                    f"ZeroProjection: {which}: axis width has size {tensor.shape[-1]}, expected "
                    f"{width}"
                )
        context = context.to(self.project.weight.dtype)
        joined: Tensor = state - self.project(context).to(state.dtype)
        return joined


class Latents(nn.Module):
    """Learned queries, the same for every example: they pool the states.

    Args:
        count: how many; their contexts are joined side by side, count · width features.
        width: features of a query.
        everywhere: join the one context to every position of an output (batch, position, width).
            Each position then knows of the whole sequence: not for a model that predicts the next
            word. Without it such an output is refused.
    """

    causal = False

    def __init__(self, count: int, width: int, *, everywhere: bool = False) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, width) * 0.02)
        self.everywhere = everywhere

    def forward(self, state: Tensor) -> Tensor:
        """(batch, latent, width)."""
        return self.latents.expand(state.shape[0], -1, -1)

    def arrange(self, context: Tensor, state: Tensor) -> Tensor:
        """The contexts (batch, latent, width) as they are joined to a state."""
        pooled = context.flatten(1)  # (batch, latent · width)
        if state.dim() == 2:
            return pooled
        if not self.everywhere:
            raise ShapeError(
                f"Latents: the state has 3 axes {tuple(state.shape)}, expected (batch, width): the "
                "context is one for the sequence. Join it after pooling, or say "
                "Latents(..., everywhere=True), or ask from each position: States(causal=...)"
            )
        return pooled[:, None]

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.latents.shape[0]} of width {self.latents.shape[1]}"


class States(nn.Module):
    """The model's own state asks: the output that is joined, position by position.

    Args:
        causal: whether a position sees only those before it, as in a model that predicts the next
            word. There is no default, since to forget it lets the answer leak.
    """

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, state: Tensor) -> Tensor:
        """(batch, position, width)."""
        return state if state.dim() == 3 else state[:, None]

    def arrange(self, context: Tensor, state: Tensor) -> Tensor:
        """The context of each position."""
        return context if state.dim() == 3 else context[:, 0]

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"causal={self.causal}"


class OutputAttention(Part):
    """state − join(attend(query, states of `reads`)), at the output of `into`.

    Args:
        attention: any mechanism; `DotProduct()` on learned queries is the cheapest pooling.
        query: `Latents(count, width)`, or `States(causal=...)`: the state that is joined.
        reads: the place whose output (batch, position, width) is attended to.
        into: the place whose output the context is joined to; "" is the model's own.
        join: `ZeroProjection(context width, width of that output)`.
        mask: the model's input (batch, key) that tells which positions are real, not 0 where
            they are; with "~" before its name, not 0 where they are padding.

    >>> import torch, regard
    >>> from regard.mechanisms import DotProduct
    >>> from regard.reuse import Latents, OutputAttention, ZeroProjection, graft
    >>> class Tagger(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.encode, self.classify = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
    ...     def forward(self, x, mask=None):
    ...         return self.classify(self.encode(x).mean(1))
    >>> model, x = Tagger(), torch.randn(2, 5, 8)
    >>> before = model(x)
    >>> part = OutputAttention(DotProduct(), query=Latents(1, 8), reads="encode",
    ...                        into="classify", join=ZeroProjection(8, 3), mask="mask")
    >>> grafted = graft(model, part)
    >>> torch.equal(model(x), before)
    True
    """

    def __init__(
        self,
        attention: Mechanism,
        *,
        query: Latents | States,
        reads: str,
        into: str,
        join: ZeroProjection,
        mask: str | None = None,
    ) -> None:
        super().__init__()
        for name, given, kinds in (
            ("attention", attention, Mechanism),
            ("query", query, Latents | States),
            ("join", join, ZeroProjection),
        ):
            if not isinstance(given, kinds):
                shown = given.__name__ if isinstance(given, type) else repr(given)
                expected = str(kinds).replace("regard.reuse.graft_output.", "")
                expected = "a Mechanism" if kinds is Mechanism else expected
                expected = "a ZeroProjection" if kinds is ZeroProjection else expected
                raise RegardError(f"OutputAttention: {name}={shown}, expected {expected}")
        check_names("OutputAttention", reads, into, mask)
        self.attention, self.query, self.join = attention, query, join
        self.reads, self.into, self.mask = reads, into, mask
        if reads == into:
            self._warn_of_identity()

    def _warn_of_identity(self) -> None:
        """The states that ask are those that are looked at."""
        if isinstance(self.query, States):
            warn_of_identity(self, self.attention)

    def watch(
        self, place: Place, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Run the module and keep its output."""
        output = call(*args, **kwargs)
        return output, Unchanged(f"the output of '{place}'", place.pick(output))

    def check_widths(self, reads: int | None, into: int | None) -> None:
        """Raise where the features of the two places, as far as they are known, do not fit."""
        if into is not None and into != self.join.project.out_features:
            raise ShapeError(
                f"graft: into='{self.into}' has {into} features, but join is for "
                f"{self.join.project.out_features}: ZeroProjection(context width, {into})"
            )
        asks = self.query.latents.shape[1] if isinstance(self.query, Latents) else into
        if asks is None or not isinstance(self.attention, FromRecipe):
            return
        wanted = self.attention.widths(asks)
        if wanted.query not in (None, asks):
            raise ShapeError(f"graft: {self._misfit(asks, wanted.query)}")
        if reads is not None and wanted.key not in (None, reads):
            raise ShapeError(
                f"graft: reads='{self.reads}' has {reads} features, but "
                f"{type(self.attention).__name__} takes keys of {wanted.key} here"
            )

    def _misfit(self, asks: int, wanted: int) -> str:
        mechanism = type(self.attention).__name__
        if isinstance(self.query, Latents):
            return f"query=Latents(…, {asks}), but {mechanism} takes queries of {wanted} features"
        return (
            f"the output of into='{self.into}' asks, and has {asks} features, but {mechanism} "
            f"takes queries of {wanted}; join where states are that wide, as before a projection "
            f"to the vocabulary, or make the attention for {asks}"
        )

    def forward(self, state: Tensor, seen: Unchanged, mask: Mask | None) -> Tensor:
        """The state with the context joined."""
        states = seen.take()
        if states.dim() != 3:
            raise ShapeError(
                f"OutputAttention: reads='{self.reads}' has 2 axes {tuple(states.shape)}, expected "
                "(batch, position, width)"
            )
        if states is state and self.reads != self.into and not torch.compiler.is_compiling():
            self._warn_of_identity()
        states = states.to(self.join.project.weight.dtype)
        query = self.query(state).to(states.dtype)
        if isinstance(self.query, States) and isinstance(self.attention, FromRecipe):
            wanted = self.attention.widths(query.shape[2]).query
            if wanted is not None and wanted != query.shape[2]:
                raise ShapeError(self._misfit(query.shape[2], wanted))
        if isinstance(mask, Padding):
            states, mask = clean(states, mask.keep[:, None]), _Zeroed(mask.keep)
        attended = self.attention(query, states, mask=mask, causal=self.query.causal)
        joined: Tensor = self.join(state, self.query.arrange(attended.output, state))
        return joined

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        return f"reads '{self.reads}' into '{self.into}'"
