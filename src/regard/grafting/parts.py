"""The parts that can be grafted: what each reads, and how it changes an output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.sublayers import warn_of_identity
from regard.contract import Mechanism
from regard.errors import RegardError, ShapeError
from regard.grafting.sites import Site, VersionedTensor
from regard.grafting.weights import Attention, attention_path, run_attention
from regard.masks import Mask
from regard.mechanisms.from_recipe import FromRecipe
from regard.reuse import Concatenation, GatedFlow, WeightedAggregation

Call = Callable[..., Any]


class GraftWarning(UserWarning):
    """Something about a graft is likely a mistake."""


class Part(nn.Module, ABC):
    """What can be grafted: it reads at one site and changes the output of another.

    | attribute | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `reads`   | the site that is read                                                       |
    | `into`    | the site whose output is changed                                            |
    | `mask`    | the model's padding mask, by name; "~" before it where True is padding      |
    """

    reads: str
    into: str
    mask: str | None = None
    default_name = "part"  #: of a graft that was given none
    reads_states = True  #: whether the output of `reads` must be (batch, position, width)
    takes_images = False  #: whether the output of `into` is (batch, channel, height, width)

    def _set_sites(self, reads: Any, into: Any, mask: Any) -> None:
        """Check and hold the names of sites and mask."""
        owner = type(self).__name__
        Site.parse(f"{owner}: reads", reads)
        Site.parse(f"{owner}: into", into)
        if mask is not None and not isinstance(mask, str):
            shown = f"a tensor {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise RegardError(
                f"{owner}: mask is {shown}, expected the name of the model's padding mask, as "
                "'attention_mask'"
            )
        self.reads, self.into, self.mask = reads, into, mask

    @property
    def mask_input(self) -> str | None:
        """The name of the model's input that is the mask."""
        return None if self.mask is None else self.mask.removeprefix("~")

    def read_path(self, model: nn.Module) -> str:
        """The path of the module whose calls are read."""
        return Site.parse("reads", self.reads).path

    @abstractmethod
    def read(
        self, site: Site, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Run `module` at `reads`; return its output and what `forward` needs of it."""

    def check_widths(self, reads: int | None, into: int | None) -> None:
        """Raise where the widths of the two sites, as far as known, do not fit."""

    @abstractmethod
    def forward(self, state: Tensor, reading: Any, mask: Mask | None) -> Tensor:
        """The output of `into` with this part, from its output without."""

    def extra_repr(self) -> str:
        """The sites, for `print(module)`."""
        return f"reads '{self.reads}' into '{self.into}'"


class ZeroProjection(nn.Module):
    """Y = X − (C W + b) with W and b zero at the start: then Y is X, bit for bit.

    C W + b is subtracted, since −0.0 + 0.0 is 0.0, but −0.0 − 0.0 is −0.0. Training is the same up
    to the sign of W and b.

    Args:
        context_width: features of C, what is joined.
        width: features of X, what it is joined to.
    """

    def __init__(self, context_width: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(context_width, width)
        nn.init.zeros_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, state: Tensor, context: Tensor) -> Tensor:
        """State (batch, …, width), context (batch, …, context width)."""
        for argument, tensor, width in (
            ("context", context, self.project.in_features),
            ("state", state, self.project.out_features),
        ):
            if tensor.shape[-1] != width:
                raise ShapeError(
                    f"ZeroProjection: {argument}: axis width has size {tensor.shape[-1]}, expected "
                    f"{width}"
                )
        context = context.to(self.project.weight.dtype)
        joined: Tensor = state - self.project(context).to(state.dtype)
        return joined


class Latents(nn.Module):
    """Learned queries, the same for every example: they pool the states.

    Args:
        count: how many; their contexts are concatenated, count · width features.
        width: features of a query.
        everywhere: join the context to every position of an output (batch, position, width). Each
            position then sees the whole sequence: not for a model that predicts the next token.
            Without it such an output is refused.
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
        """The contexts (batch, latent, width), shaped to be joined to a state."""
        pooled = context.flatten(1)  # (batch, latent · width)
        if state.dim() == 2:
            return pooled
        if not self.everywhere:
            raise ShapeError(
                f"Latents: the state has 3 axes {tuple(state.shape)}, expected (batch, width): "
                "there is one context a sequence. Join it after pooling, or pass "
                "Latents(..., everywhere=True), or query from each position: States(causal=...)"
            )
        return pooled[:, None]

    def extra_repr(self) -> str:
        """Sizes, for `print(module)`."""
        return f"{self.latents.shape[0]} of width {self.latents.shape[1]}"


class States(nn.Module):
    """Queries from the model's own states: the output of `into`, position by position.

    Args:
        causal: whether a position attends only to earlier ones, as in a model that predicts the
            next token. There is no default: a forgotten one would leak the answer.
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
        """Settings, for `print(module)`."""
        return f"causal={self.causal}"


class OutputAttention(Part):
    """state − join(attend(query, states of `reads`)), at the output of `into`.

    Args:
        attention: any mechanism; `DotProduct()` on learned queries is the cheapest pooling.
        query: `Latents(count, width)`, or `States(causal=...)`: the output of `into` itself.
        reads: the site whose output (batch, position, width) is attended to.
        into: the site whose output the context is joined to; "" is the model's own.
        join: `ZeroProjection(context width, width of that output)`.
        mask: the model's padding mask (batch, key), by the name of the input: nonzero where a
            position is real; with "~" before the name, nonzero where it is padding.

    >>> import torch, regard
    >>> from regard.mechanisms import DotProduct
    >>> from regard.grafting import Latents, OutputAttention, ZeroProjection, graft
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
    >>> handle = graft(model, part)
    >>> torch.equal(model(x), before)
    True
    """

    default_name = "output"

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
        for name, module, kind, expected in (
            ("attention", attention, Mechanism, "a Mechanism"),
            ("query", query, Latents | States, "Latents | States"),
            ("join", join, ZeroProjection, "a ZeroProjection"),
        ):
            if not isinstance(module, kind):
                shown = module.__name__ if isinstance(module, type) else repr(module)
                raise RegardError(f"OutputAttention: {name}={shown}, expected {expected}")
        self._set_sites(reads, into, mask)
        self.attention, self.query, self.join = attention, query, join
        if reads == into:
            self._warn_of_identity()

    def _warn_of_identity(self) -> None:
        if isinstance(self.query, States):  # queries and keys are the same states
            warn_of_identity(self, self.attention)

    def read(
        self, site: Site, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, VersionedTensor]:
        """Run the module and keep its output."""
        output = call(*args, **kwargs)
        return output, VersionedTensor(f"the output of '{site}'", site.pick(output))

    def check_widths(self, reads: int | None, into: int | None) -> None:
        """Raise where the widths of the two sites, as far as known, do not fit."""
        if into is not None and into != self.join.project.out_features:
            raise ShapeError(
                f"graft: into='{self.into}' has {into} features, but join is for "
                f"{self.join.project.out_features}: ZeroProjection(context width, {into})"
            )
        width = self.query.latents.shape[1] if isinstance(self.query, Latents) else into
        if width is None or not isinstance(self.attention, FromRecipe):
            return
        expected = self.attention.widths(width)
        if expected.query not in (None, width):
            raise ShapeError(f"graft: {self._query_misfit(width, expected.query)}")
        if reads is not None and expected.key not in (None, reads):
            raise ShapeError(
                f"graft: reads='{self.reads}' has {reads} features, but "
                f"{type(self.attention).__name__} takes keys of {expected.key} here"
            )

    def _query_misfit(self, width: int, expected: int) -> str:
        mechanism = type(self.attention).__name__
        if isinstance(self.query, Latents):
            return (
                f"query=Latents(…, {width}), but {mechanism} takes queries of {expected} features"
            )
        return (
            f"the output of into='{self.into}' is the query, and has {width} features, but "
            f"{mechanism} takes queries of {expected}; join where states are that wide, as before "
            f"a projection to the vocabulary, or build the attention for {width}"
        )

    def forward(self, state: Tensor, reading: VersionedTensor, mask: Mask | None) -> Tensor:
        """The state with the context joined."""
        states = reading.take()
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
            expected = self.attention.widths(query.shape[2]).query
            if expected is not None and expected != query.shape[2]:
                raise ShapeError(self._query_misfit(query.shape[2], expected))
        attended = self.attention(query, states, mask=mask, causal=self.query.causal)
        joined: Tensor = self.join(state, self.query.arrange(attended.output, state))
        return joined


class ReuseLayer(Part):
    """state − join(layer(state, weights of `reads`)), at the output of `into`.

    A `GatedFlow` starts as the identity, so it needs no `join`.

    Args:
        layer: `WeightedAggregation`, `GatedFlow` or `Concatenation`; or any module that takes
            features (batch, position, width) and weights, and `mask=`.
        reads: the attention whose weights are used: a module with one attention in it.
        into: the site, later in the pass, whose output (batch, position, width) is changed.
        join: `ZeroProjection(features of the layer, width)`; built for the layer when None.
        mask: the model's padding mask, as for `OutputAttention`. The attention's own mask applies
            anyway.

    >>> import torch
    >>> from regard.grafting import ReuseLayer, graft
    >>> from regard.reuse import GatedFlow
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    >>> x = torch.randn(2, 5, 8)
    >>> before = model(x)
    >>> part = ReuseLayer(GatedFlow(8, 2), reads="layers.0.self_attn", into="layers.2")
    >>> handle = graft(model, part)
    >>> torch.equal(model(x), before)
    True
    """

    default_name = "reuse"
    reads_states = False

    def __init__(
        self,
        layer: nn.Module,
        *,
        reads: str,
        into: str,
        join: ZeroProjection | None = None,
        mask: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(layer, nn.Module):
            raise RegardError(f"ReuseLayer: layer={layer!r}, expected a module")
        self._set_sites(reads, into, mask)
        self.layer = layer
        self.join = _default_join(layer) if join is None else join

    def read_path(self, model: nn.Module) -> str:
        """The path of the module whose calls are read."""
        return attention_path(model, super().read_path(model))

    def read(
        self, site: Site, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, Attention]:
        """Run the module and keep what its weights are made from."""
        return run_attention(module, str(site), call, args, kwargs)

    def check_widths(self, reads: int | None, into: int | None) -> None:
        """Raise where the width of `into`, if known, does not fit."""
        if into is not None and self.join is not None and into != self.join.project.out_features:
            raise ShapeError(
                f"graft: into='{self.into}' has {into} features, but what is joined has "
                f"{self.join.project.out_features}"
            )

    def forward(self, state: Tensor, reading: Attention, mask: Mask | None) -> Tensor:
        """The state, changed by the layer."""
        if state.dim() != 3:
            raise ShapeError(
                f"ReuseLayer: into='{self.into}' has {state.dim()} axes {tuple(state.shape)}, "
                "expected (batch, position, width)"
            )
        features = state.to(_dtype(self, state.dtype))
        output: Tensor = self.layer(features, reading(state.shape[0]), mask=mask)
        if self.join is None:
            return output.to(state.dtype)
        joined: Tensor = self.join(state, output)
        return joined


def _default_join(layer: nn.Module) -> ZeroProjection | None:
    if isinstance(layer, GatedFlow):
        return None
    if isinstance(layer, WeightedAggregation):
        return ZeroProjection(layer.project.out_features, layer.width)
    if isinstance(layer, Concatenation):
        return ZeroProjection(layer.output_width, layer.width)
    raise RegardError(
        f"ReuseLayer: join=None with a {type(layer).__name__}; expected "
        "join=ZeroProjection(features of the layer, width), so that outputs start unchanged"
    )


class GateLayer(Part):
    """x + γ · (gate · x − x), at the output of `into`, with one number γ that starts at 0.

    Then the output is x, bit for bit: what is computed is x − γ · (x − gate · x), since −0.0 + 0.0
    is 0.0, but −0.0 − 0.0 is −0.0. Where x or the gate is infinite or NaN the difference is taken
    as 0, so that 0 · ∞ is not NaN: x stays as it is there, also after training.

    At γ = 0 the gate itself has no gradient: the first step of training moves γ alone.

    Args:
        gate: a gate of `regard.vision`, as `SqueezeExcitation` or `CBAM`; or any module of kind
            "gate" whose output is the image times numbers in [0, 1].
        into: the site whose output (batch, channel, height, width) is gated.

    >>> import torch
    >>> from regard.grafting import GateLayer, graft
    >>> from regard.vision import SqueezeExcitation
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU()).eval()
    >>> x = torch.randn(2, 3, 9, 7)
    >>> before = model(x)
    >>> handle = graft(model, GateLayer(SqueezeExcitation(16), into="0"))
    >>> torch.equal(model(x), before)
    True
    """

    default_name = "gate"
    reads_states = False
    takes_images = True

    def __init__(self, gate: nn.Module, *, into: str) -> None:
        super().__init__()
        if not isinstance(gate, nn.Module) or getattr(gate, "kind", None) != "gate":
            shown = gate.__name__ if isinstance(gate, type) else type(gate).__name__
            raise RegardError(
                f"GateLayer: gate is {shown}, expected a gate of regard.vision, as "
                "SqueezeExcitation(channels) or CBAM(channels)"
            )
        self._set_sites(into, into, None)
        self.gate = gate
        self.gamma = nn.Parameter(torch.zeros(()))

    def read(
        self, site: Site, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, None]:
        """Run the module; its output is all that is needed."""
        return call(*args, **kwargs), None

    def forward(self, state: Tensor, reading: None, mask: Mask | None) -> Tensor:
        """The image (batch, channel, height, width), gated in proportion to γ."""
        image = state.to(_dtype(self.gate, state.dtype))
        gated: Tensor = self.gate(image).output
        difference = torch.nan_to_num(image - gated, nan=0.0, posinf=0.0, neginf=0.0)
        return state - (self.gamma * difference).to(state.dtype)


def _dtype(module: nn.Module, default: torch.dtype) -> torch.dtype:
    """The dtype that a module computes in."""
    floats = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return next(floats, default)
