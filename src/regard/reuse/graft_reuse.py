"""A reuse layer in somebody else's model: the weights of one attention feed a later layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.masks import Mask
from regard.reuse.concatenation import Concatenation
from regard.reuse.gated_flow import GatedFlow
from regard.reuse.graft_output import ZeroProjection
from regard.reuse.graft_part import Call, Part, check_names, dtype_of
from regard.reuse.graft_sites import Place
from regard.reuse.graft_weights import Seen, attention_in, seen_in
from regard.reuse.weighted_aggregation import WeightedAggregation


class ReuseLayer(Part):
    """state − join(layer(state, weights of `reads`)), at the output of `into`.

    A `GatedFlow` leaves the state as it is at the start, so it is used without `join`.

    Args:
        layer: `WeightedAggregation`, `GatedFlow` or `Concatenation`; or any module that takes
            features (batch, position, width) and weights, and `mask=`.
        reads: the attention whose weights are used: a module with one attention in it.
        into: the place, later in the pass, whose output (batch, position, width) is changed.
        join: `ZeroProjection(features of the layer, width)`; made for the layer when None.
        mask: the model's input that tells padding, as for `OutputAttention`. What the attention
            itself forbids holds anyway.

    >>> import torch
    >>> from regard.reuse import GatedFlow, ReuseLayer, graft
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    >>> x = torch.randn(2, 5, 8)
    >>> before = model(x)
    >>> part = ReuseLayer(GatedFlow(8, 2), reads="layers.0.self_attn", into="layers.2")
    >>> grafted = graft(model, part)
    >>> torch.equal(model(x), before)
    True
    """

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
        check_names("ReuseLayer", reads, into, mask)
        self.layer = layer
        self.join = join if join is not None else _own_join(layer)
        self.reads, self.into, self.mask = reads, into, mask

    def watched(self, model: nn.Module) -> str:
        """The path of the module that is watched."""
        return attention_in(model, Place.of("reads", self.reads).path)

    def watch(
        self, place: Place, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Run the module and keep what its weights are made from."""
        return seen_in(module, str(place), call, args, kwargs)

    def check_widths(self, reads: int | None, into: int | None) -> None:
        """Raise where the features of `into`, if they are known, do not fit."""
        if into is not None and self.join is not None and into != self.join.project.out_features:
            raise ShapeError(
                f"graft: into='{self.into}' has {into} features, but what is joined has "
                f"{self.join.project.out_features}"
            )

    def forward(self, state: Tensor, seen: Seen, mask: Mask | None) -> Tensor:
        """The state, changed by the layer."""
        if state.dim() != 3:
            raise ShapeError(
                f"ReuseLayer: into='{self.into}' has {state.dim()} axes {tuple(state.shape)}, "
                "expected (batch, position, width)"
            )
        features = state.to(dtype_of(self, state.dtype))
        made: Tensor = self.layer(features, seen(state.shape[0]), mask=mask)
        if self.join is None:
            return made.to(state.dtype)
        joined: Tensor = self.join(state, made)
        return joined

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        return f"weights of '{self.reads}' into '{self.into}'"


def _own_join(layer: nn.Module) -> ZeroProjection | None:
    if isinstance(layer, GatedFlow):
        return None
    if isinstance(layer, WeightedAggregation):
        return ZeroProjection(layer.project.out_features, layer.width)
    if isinstance(layer, Concatenation):
        return ZeroProjection(layer.output_width, layer.width)
    raise RegardError(
        f"ReuseLayer: join=None with a {type(layer).__name__}; expected "
        "join=ZeroProjection(features of the layer, width), so that nothing changes at the start"
    )
