"""Gradient-weighted relevance: attention, weighted by its effect on one output.

R starts as the identity, and each layer adds R ← R + E_h[(∇A ∘ A)⁺] · R, with the gradient of the
target's logit, cut at 0 before the mean over heads (Chefer, Gur and Wolf, 2021). Capture with
`grad=True` and call backward on the target before asking.

>>> import torch, regard
>>> from torch import nn
>>> layer = nn.TransformerEncoderLayer(16, 2, batch_first=True, dropout=0.0)
>>> model, head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)
>>> with regard.capture(model, grad=True) as trace:
...     logits = head(model(torch.randn(1, 5, 16))[:, 0])
>>> logits[0, 1].backward()
>>> regard.relevance(trace, token=0).shape
torch.Size([1, 5])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.aggregate.combine_heads import head_weights
from regard.aggregate.layers import chain
from regard.aggregate.layers.mean import mean_or_stack
from regard.aggregate.sources import (
    Layer,
    arranged,
    check_layers,
    has_both,
    layer_of,
    layers_of,
    outside_graph_and_autocast,
    single,
    stack_of,
    token_positions,
)
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.record import Trace, forms
from regard.types import Kind


class CrossRelevance(NamedTuple):
    """Relevance in an encoder–decoder model for positions of the decoder."""

    decoder: Tensor  #: of the decoder's own positions, (batch, query, query)
    encoder: Tensor  #: of the encoder's positions, (batch, query, key)


@outside_graph_and_autocast
def relevance(
    attention: Any,
    token: int | Sequence[int] | None = None,
    *,
    gradients: Sequence[Tensor] | None = None,
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> Any:
    """How relevant each position is for the target, through all layers.

    For some tokens of self-attention this is one pass of vectors over the layers, in tiles, and
    the gradient with respect to the weights is never materialised. For an encoder–decoder model (a
    trace with cross-attention and no `part`) every layer's map is.

    Args:
        attention: a Trace captured with `grad=True` after backward; or a list of tensors
            (batch, head, query, key), lowest layer first, with `gradients`.
        token: position or positions of the last layer whose relevance is asked, as that of the
            class token; None means all.
        gradients: for tensors, the gradient of each, of the same shape.
        part: of an encoder–decoder model, "encoder" or "decoder" alone.
        axes: the order of the axes of tensors and their gradients.
        kind: what the rows of tensors are, as for `combine_heads`.

    Returns:
        (batch, key) for one token, (batch, token, key) for several, (batch, query, key) for all;
        for an encoder–decoder model a `CrossRelevance` of such.
    """
    if isinstance(attention, Trace) and part is None and has_both(attention):
        return _rows_of(_encoder_decoder(attention), token)
    layers = stack_of(attention, part=part, axes=axes, kind=kind)
    pairs = with_gradients(layers, gradients, axes)
    positions = token_positions(token, layers[0].recipe.shape.queries)
    if positions is None:
        return _self_map(pairs)
    rows = chain.start(positions, layers[-1].recipe)
    for layer, gradient in reversed(pairs):
        rows = rows.to(layer.recipe.device, layer.recipe.dtype)
        rows = rows + chain.gradient_received(rows, layer.recipe, *gradient()).mean(1)
    return rows[:, 0] if single(token) else rows


@outside_graph_and_autocast
def gradient_attention(
    attention: Any,
    token: int | Sequence[int] | None = None,
    *,
    gradients: Sequence[Tensor] | None = None,
    positive: bool = False,
    layers: str = "mean",
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> Tensor:
    """Gradient times attention: Σₕ Σᵢ (∇A ∘ A)ᵢⱼ, the effect of attention to each position.

    Args:
        attention, gradients, part, axes, kind: as for `relevance`.
        token: the queries i that count; all of them when None, since the gradient already says
            how much each one matters.
        positive: whether negative products count as 0.
        layers: "mean" over the layers, "last", or "each" for (layer, batch, …).

    Returns:
        (batch, key) for one token or for all of them together, (batch, token, key) for several.
    """
    check_layers("gradient_attention", layers)
    stack = layers_of(attention, part=part, axes=axes, kind=kind)
    pairs = with_gradients(stack, gradients, axes)

    def maps() -> Iterator[tuple[Layer, Tensor]]:
        for layer, gradient in pairs[-1:] if layers == "last" else pairs:
            positions = token_positions(token, layer.recipe.shape.queries)
            rows = chain.start([0] if positions is None else positions, layer.recipe)
            if positions is None:
                rows.fill_(1.0)
            received = chain.gradient_received(rows, layer.recipe, *gradient(), positive=positive)
            product = received.sum(1)
            yield layer, product[:, 0] if positions is None or single(token) else product

    return mean_or_stack(maps(), stack, each=layers == "each")


#: A layer, and how to get the gradient by its weights: as it is, or two factors of it.
LayerGradient = tuple[Layer, Callable[[], tuple[Tensor, Tensor | None]]]


def with_gradients(
    layers: Sequence[Layer], gradients: Sequence[Tensor] | None, axes: str | None = None
) -> list[LayerGradient]:
    """Layers with the gradient by their weights, computed when it is called."""
    if gradients is None:
        if any(layer.record is None for layer in layers):
            raise RegardError(
                "plain tensors carry no gradient: give gradients=, one of the same shape for each, "
                "or a Trace captured with grad=True"
            )
        return [(layer, layer.record.gradient_parts) for layer in layers if layer.record]
    tensors = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    if axes is not None:
        tensors = [tensor for gradient in tensors for tensor in arranged(gradient, axes)]
    if len(tensors) != len(layers):
        raise ShapeError(f"gradients: {len(tensors)} tensors for {len(layers)} layers")
    for layer, gradient in zip(layers, tensors):
        if tuple(gradient.shape) != tuple(layer.recipe.shape):
            raise ShapeError(
                f"{layer.name}: the gradient is {tuple(gradient.shape)}, "
                f"expected {tuple(layer.recipe.shape)}"
            )
    return [(layer, partial(_whole, gradient)) for layer, gradient in zip(layers, tensors)]


def _whole(gradient: Tensor) -> tuple[Tensor, None]:
    return gradient, None


def _mean_map(pair: LayerGradient) -> Tensor:
    """E_h[(∇A ∘ A)⁺] whole, (batch, query, key), a head at a time."""
    layer, (gradient, value) = pair[0], pair[1]()
    heads = layer.recipe.shape.heads
    total: Tensor | None = None
    for head in range(heads):
        by_weight = gradient[:, head].to(layer.recipe.dtype)
        if value is not None:
            by_weight = by_weight @ value[:, head].to(layer.recipe.dtype).mT
        product = (by_weight * head_weights(layer.recipe, head)).clamp_min_(0.0)
        total = product if total is None else total.add_(product)
    assert total is not None
    return total / heads


def _self_map(pairs: Sequence[LayerGradient]) -> Tensor:
    """R of a stack of self-attention."""
    relevant: Tensor | None = None
    for pair in pairs:
        step = _mean_map(pair)
        if relevant is None:
            relevant = _identity(step)
        relevant = relevant.to(step) + step @ relevant.to(step)
    assert relevant is not None
    return relevant


def _identity(like: Tensor) -> Tensor:
    eye = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return eye.expand(like.shape[0], -1, -1)


def _encoder_decoder(trace: Trace) -> CrossRelevance:
    """Self-attention updates both maps of the decoder; cross-attention brings the encoder in."""
    records = list(trace)
    for name in ("encoder", "decoder"):
        if not forms.PARTS[name](records):
            raise UnavailableError(
                f"relevance: the trace has cross-attention, and no self-attention in its {name}; "
                f"say which attention to follow: {forms.parts(records)}"
            )
    try:
        encoder = _self_map(with_gradients(stack_of(trace, part="encoder"), None))
        by_name = {layer.name: layer for layer in stack_of(trace, part="decoder")}
    except ShapeError as error:
        raise ShapeError(f"{error}; or say what to follow: {forms.parts(records)}") from None
    own: Tensor | None = None
    across: Tensor | None = None
    for record in trace:
        if record.name not in by_name and record.attends != "cross":
            continue
        step = _mean_map((layer_of(record), record.gradient_parts))
        if own is None:
            own = _identity(step.mT)
            across = step.new_zeros(*step.shape[:2], encoder.shape[1])
        assert across is not None
        if record.attends == "cross":
            across = across + _normalised(own).mT @ step @ _normalised(encoder)
        else:
            own, across = own + step @ own, across + step @ across
    assert own is not None and across is not None
    return CrossRelevance(own, across)


def _normalised(relevant: Tensor) -> Tensor:
    """What was gathered beyond the identity, each row summing to 1, and the identity."""
    gathered = relevant - _identity(relevant)
    total = gathered.sum(-1, keepdim=True)
    alive = total > 0
    return torch.where(alive, gathered / torch.where(alive, total, 1.0), 0.0) + _identity(relevant)


def _rows_of(relevant: CrossRelevance, token: int | Sequence[int] | None) -> CrossRelevance:
    positions = token_positions(token, relevant.decoder.shape[1])
    if positions is None:
        return relevant
    rows = CrossRelevance(*(side[:, positions] for side in relevant))
    return CrossRelevance(*(side[:, 0] for side in rows)) if single(token) else rows
