"""What the formats of other packages can express of a translator, and what they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.blocks import FeedForward, PostNorm, PreNorm, Residual
from regard.blocks.sublayers import Sublayer
from regard.errors import RegardError, UnavailableError
from regard.mechanisms import MultiHead
from regard.translate.checkpoint import Checkpoint
from regard.translate.models.transformer import Transformer

POSITIONS = 1024  #: how many an exported model has sinusoids for; ours has no limit
_ACTIVATIONS = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}
_NORMS = {PreNorm: "pre", PostNorm: "post"}


@dataclass(frozen=True)
class Shape:
    """What a format has to be told of a Transformer besides its weights."""

    n_heads: int
    norm: str
    activation: str


def transformer_of(checkpoint: Checkpoint) -> tuple[Transformer, Shape]:
    """The model and its shape; an error names what the formats do not have."""
    model = checkpoint.model
    if not isinstance(model, Transformer):
        raise UnavailableError(
            f"export: the model is {checkpoint.config.model.name!r}, but CTranslate2 and "
            "transformers' Marian have no recurrent networks: expected model.name 'transformer'"
        )
    sublayers = [module for module in model.modules() if isinstance(module, Sublayer)]
    for sublayer in sublayers:
        _check_plain(sublayer)
    attentions = [each.part for each in sublayers if isinstance(each.part, MultiHead)]
    networks = [each.part for each in sublayers if isinstance(each.part, FeedForward)]
    return model, Shape(
        _same("number of heads", [attention.n_heads for attention in attentions]),
        _same("place of the norm", [_NORMS[type(sublayer)] for sublayer in sublayers]),
        _same("activation", [_ACTIVATIONS[type(network.activation)] for network in networks]),
    )


def _check_plain(sublayer: Sublayer) -> None:
    """Refuse a sub-layer that is not of Vaswani et al. 2017."""
    part = sublayer.part
    plain = {
        type(sublayer): _NORMS,
        type(sublayer.join): {Residual},
        type(sublayer.norm): {nn.LayerNorm},
        type(part): {MultiHead, FeedForward},
    }
    if isinstance(part, FeedForward):
        plain[type(part.activation)] = _ACTIVATIONS
    for kind, known in plain.items():
        if kind not in known:
            names = ", ".join(sorted(each.__name__ for each in known))
            raise UnavailableError(
                f"export: the model has a {kind.__name__}, which CTranslate2 and transformers' "
                f"Marian do not have; expected one of {names}"
            )
    if isinstance(part, MultiHead):
        try:
            part.to_torch()
        except RegardError as error:
            raise UnavailableError(f"export: {error}; nor have the formats of export") from error


def _same(what: str, values: Sequence[Any]) -> Any:
    """What is the same in all layers."""
    if len(set(values)) != 1:
        raise UnavailableError(f"export: {what} differs by layer: {values}, expected all the same")
    return values[0]
