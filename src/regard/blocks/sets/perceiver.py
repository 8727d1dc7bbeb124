"""The Perceiver: a few latents attend to inputs of any length, repeatedly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from regard.blocks.cross_block import CrossBlock
from regard.blocks.encoder_block import EncoderBlock
from regard.blocks.feed_forward import FeedForward
from regard.blocks.inputs import check_features, resolve_mask
from regard.blocks.sets.learned_queries import LearnedQueries
from regard.blocks.sets.set_block import SetBlock
from regard.blocks.stack import Stack
from regard.blocks.sublayers import PreNorm, Residual
from regard.contract import Attended, BlockOutput
from regard.errors import RegardError, ShapeError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.mechanisms import Heads, MultiHead
from regard.types import Shape

Unshared = Literal["first cross", "first repeat", "all"]


class Perceiver(SetBlock):
    """Z ← Z + Attend(norm(Z), norm(X)), Z ← Z + MLP(norm(Z)), then self-attention of Z; repeated.

    Jaegle et al. 2021, "Perceiver: General Perception with Iterative Attention", section 3. Latents
    Z (N × D) attend to inputs X (M × C) in O(M N), and to each other in O(N²): depth does not cost
    M². Z and X are normalised separately. The defaults are the paper's for ImageNet (appendix C):
    `Perceiver(261, 1024, 512)` and a linear layer for 1000 classes on the mean of the latents have
    44.9 million parameters, without shared weights 326.2 million, as in its table 7.

    | here            | paper | meaning                                                         |
    |-----------------|-------|-----------------------------------------------------------------|
    | `n_latents`     | N     | latents; initialised from a truncated normal, σ = 0.02          |
    | `width`         | D     | features of a latent                                            |
    | `inputs`        | C     | features of an input, positions included                        |
    | `n_repeats`     |       | cross-attends, each followed by a latent transformer            |
    | `n_layers`      |       | self-attention layers of each latent transformer                |

    Departures: each of several inputs has a cross-attention of its own, in turn, before the latents
    attend to themselves; the paper (section 4.2) pads modalities to a common width and concatenates
    them. Repeats that share a cross-attention share its projected keys and values too.

    Args:
        inputs: features of the input; or of several inputs by name, as {"image": 261, "audio": 65}.
        width: features of a latent.
        n_latents: how many latents.
        n_repeats: how often the latents attend to the inputs.
        n_layers: self-attention layers after each cross-attention.
        n_heads: of the self-attention.
        cross_heads: of the cross-attention.
        cross_width: features of queries, keys and values of a cross-attention, of all its heads
            together; the smaller of `width` and the input's width when None.
        inner_width: features inside the feed-forward parts; `width` when None.
        unshared: which weights are not shared between repeats: those of the first cross-attention,
            of the whole first repeat, or all.
        dropout: of the weights and of the output of each sub-layer, in training.

    >>> import torch
    >>> from regard.blocks.sets import Perceiver
    >>> model = Perceiver(6, 16, 4, n_repeats=2, n_layers=1, n_heads=2)
    >>> blocked = model(torch.randn(2, 50, 6), weights=True)
    >>> blocked.output.shape, blocked.attentions["1.input.cross"].weights.shape
    (torch.Size([2, 4, 16]), torch.Size([2, 1, 4, 50]))
    """

    def __init__(
        self,
        inputs: int | Mapping[str, int],
        width: int,
        n_latents: int,
        *,
        n_repeats: int = 8,
        n_layers: int = 6,
        n_heads: int = 8,
        cross_heads: int = 1,
        cross_width: int | None = None,
        inner_width: int | None = None,
        unshared: Unshared = "first cross",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_widths = {"input": inputs} if isinstance(inputs, int) else dict(inputs)
        if not self.input_widths or n_repeats < 1 or n_layers < 1:
            raise ShapeError(
                f"Perceiver: inputs={inputs}, n_repeats={n_repeats}, n_layers={n_layers}, expected "
                "at least one of each"
            )
        head_widths = {}
        for name, size in self.input_widths.items():
            query_width = min(width, size) if cross_width is None else cross_width
            if cross_heads < 1 or query_width < cross_heads or query_width % cross_heads:
                raise ShapeError(
                    f"Perceiver: the cross-attention to {name!r} has width {query_width}, expected "
                    f"a multiple of cross_heads {cross_heads}; cross_width= chooses it"
                )
            head_widths[name] = query_width // cross_heads

        def pre_norm(module: nn.Module) -> PreNorm:
            return PreNorm(width, module, join=Residual(dropout))

        def feed_forward() -> PreNorm:
            inner = width if inner_width is None else inner_width
            return pre_norm(FeedForward(width, inner, activation=nn.GELU()))

        def cross(name: str, size: int) -> CrossBlock:
            attention = MultiHead(
                width,
                Heads(cross_heads, head_width=head_widths[name]),
                inputs=(size, size),
                dropout=dropout,
            )
            return CrossBlock(pre_norm(attention), feed_forward(), context_norm=nn.LayerNorm(size))

        def layer() -> EncoderBlock:
            return EncoderBlock(
                pre_norm(MultiHead(width, n_heads, dropout=dropout)), feed_forward()
            )

        self.n_outputs = n_latents
        self.cross_heads = cross_heads
        self.latents = LearnedQueries(n_latents, width)
        self.cross_order, self.layer_order = _orders(n_repeats, unshared)
        self.crosses = nn.ModuleList(
            nn.ModuleDict({name: cross(name, size) for name, size in self.input_widths.items()})
            for _ in set(self.cross_order)
        )
        self.transformers = nn.ModuleList(
            Stack([layer() for _ in range(n_layers)]) for _ in set(self.layer_order)
        )

    def forward(
        self,
        x: Tensor | Mapping[str, Tensor],
        *,
        mask: Mask | Tensor | Mapping[str, Mask | Tensor] | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """Latents (batch, latent, width), and the attentions `0.input.cross`, `0.0.self` …

        Names are those of the repeat and the input, or of the repeat and the layer.

        Args:
            x: (batch, position, input width); several inputs by name, of any lengths.
            mask: which positions of the input may be attended to, by name for several inputs.
            weights: also return the weights of every attention.
            reduce: reducers, answered by every attention in its `reductions`.
        """
        inputs = self._by_name("x", x)
        input_masks = {} if mask is None else self._by_name("mask", mask)
        first = next(iter(inputs.values()))
        for name, features in inputs.items():
            argument = "x" if features is x else f"x[{name!r}]"
            check_features(self, argument, features, self.input_widths[name], first)
        latents = self.latents(first.shape[0])
        sizes = first.shape[0], self.cross_heads, self.latents.n_queries
        for name, input_mask in input_masks.items():
            argument = "mask" if input_mask is mask else f"mask[{name!r}]"
            shape = Shape(*sizes, inputs[name].shape[1])
            input_masks[name] = resolve_mask(self, argument, input_mask, shape)
        requests: dict[str, Any] = {"weights": weights, "reduce": reduce}
        attentions: dict[str, Attended] = {}
        states: dict[tuple[int, str], Any] = {}  # keys are projected once for all their repeats
        for repeat, (number, layers) in enumerate(zip(self.cross_order, self.layer_order)):
            for name in self.input_widths:
                state = states.get((number, name))
                blocked = self.crosses[number][name](  # type: ignore[index]
                    latents,
                    inputs[name] if state is None else None,
                    context_mask=input_masks.get(name),
                    state=True if state is None else state,
                    **requests,
                )
                states[number, name] = blocked.state
                attentions[f"{repeat}.{name}.cross"] = blocked.attentions["cross"]
                latents = blocked.output
            blocked = self.transformers[layers](latents, **requests)
            attentions.update({f"{repeat}.{name}": a for name, a in blocked.attentions.items()})
            latents = blocked.output
        return BlockOutput(latents, attentions)

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"cross_order={list(self.cross_order)}, layer_order={list(self.layer_order)}"

    def _by_name(self, argument: str, value: Any) -> dict[str, Any]:
        """Inputs, all of them, or masks, some of them, by the name of their input."""
        names = list(self.input_widths)
        if not isinstance(value, Mapping):
            if len(names) > 1:
                raise RegardError(
                    f"Perceiver: {argument} is {type(value).__name__}, expected a mapping from the "
                    f"names {names}"
                )
            return {names[0]: value}
        missing = set(names) - set(value) if argument == "x" else set()
        if missing or set(value) - set(names):
            raise RegardError(f"Perceiver: {argument} has {list(value)}, expected {names}")
        return {name: value[name] for name in names if name in value}


def _orders(repeats: int, unshared: Unshared) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which cross-attention and which latent transformer each repeat has."""
    each, first, none = tuple(range(repeats)), (0, *[1] * (repeats - 1)), (0,) * repeats
    orders = {"first cross": (first, none), "first repeat": (first, first), "all": (each, each)}
    if unshared not in orders:
        raise RegardError(f"Perceiver: unshared={unshared!r}, expected one of {list(orders)}")
    return orders[unshared]
