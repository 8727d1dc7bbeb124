"""torch's own encoder, decoder and transformer, written out layer by layer.

In eval and without gradients the encoder runs one fused operator a layer, and with padding it
runs on nested tensors, where padded places do not exist.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import SEED, Case, Target
from .torch_nn import BATCH, HEADS, KEYS, QUERIES, WIDTH, attend

UNNESTED = ("ignore:enable_nested_tensor is True, but self.use_nested_tensor is False:UserWarning",)
NESTED = ("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning",)


class Written:
    """Runs the layers by formulas, and keeps the weights in the order in which they happen."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def attend(self, module: nn.MultiheadAttention, *args: Any, **masks: Any) -> Tensor:
        weights, output = attend(module, *args, **masks)
        self.seen.append(weights)
        return output

    def encoder_layer(self, layer: nn.TransformerEncoderLayer, x: Tensor, **masks: Any) -> Tensor:
        def self_attention(y: Tensor) -> Tensor:
            return layer.dropout1(self.attend(layer.self_attn, y, y, y, **masks))

        def feed_forward(y: Tensor) -> Tensor:
            hidden = layer.dropout(layer.activation(layer.linear1(y)))
            return layer.dropout2(layer.linear2(hidden))

        for norm, block in ((layer.norm1, self_attention), (layer.norm2, feed_forward)):
            x = x + block(norm(x)) if layer.norm_first else norm(x + block(x))
        return x

    def encoder(self, encoder: nn.TransformerEncoder, x: Tensor, **masks: Any) -> Tensor:
        for layer in encoder.layers:
            x = self.encoder_layer(layer, x, **masks)
        return x if encoder.norm is None else encoder.norm(x)

    def decoder_layer(
        self,
        layer: nn.TransformerDecoderLayer,
        x: Tensor,
        memory: Tensor,
        own: dict[str, Any],
        cross: dict[str, Any],
    ) -> Tensor:
        def self_attention(y: Tensor) -> Tensor:
            return layer.dropout1(self.attend(layer.self_attn, y, y, y, **own))

        def cross_attention(y: Tensor) -> Tensor:
            return layer.dropout2(self.attend(layer.multihead_attn, y, memory, memory, **cross))

        def feed_forward(y: Tensor) -> Tensor:
            hidden = layer.dropout(layer.activation(layer.linear1(y)))
            return layer.dropout3(layer.linear2(hidden))

        blocks = (self_attention, cross_attention, feed_forward)
        for norm, block in zip((layer.norm1, layer.norm2, layer.norm3), blocks):
            x = x + block(norm(x)) if layer.norm_first else norm(x + block(x))
        return x

    def decoder(self, decoder: nn.TransformerDecoder, x: Tensor, *rest: Any) -> Tensor:
        for layer in decoder.layers:
            x = self.decoder_layer(layer, x, *rest)
        return x if decoder.norm is None else decoder.norm(x)


def _stirred(model: nn.Module) -> nn.Module:
    """Biases that are not zero, layers that are not copies of each other."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _padding(length: int) -> Tensor:
    hidden = torch.zeros(BATCH, length, dtype=torch.bool)
    hidden[1, length - 2 :] = True
    return hidden


def _causal(length: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def _layer(kind: Any = nn.TransformerEncoderLayer, **parts: Any) -> Any:
    parts = {"batch_first": True, "dropout": 0.2, **parts}
    return kind(WIDTH, HEADS, dim_feedforward=24, **parts)


def _encoder_layer(train: bool = False, **parts: Any) -> Case:
    model = _stirred(_layer(**parts)).train(train)
    x = torch.randn(BATCH, QUERIES, WIDTH)
    written = Written()
    with torch.no_grad():
        torch.manual_seed(SEED)
        expected = written.encoder_layer(model, x)
    return Case(model, (x,), {}, written.seen, expected)


def _encoder(
    train: bool = False,
    padding: bool = False,
    mask: bool = False,
    nested: bool = False,
    norm: bool = False,
    **parts: Any,
) -> Case:
    last = nn.LayerNorm(WIDTH) if norm else None
    model = nn.TransformerEncoder(_layer(**parts), 3, last, enable_nested_tensor=nested)
    model = _stirred(model).train(train)
    x = torch.randn(BATCH, QUERIES, WIDTH)
    hidden = _padding(QUERIES) if padding else None
    pairs = _causal(QUERIES) if mask else None
    written = Written()
    with torch.no_grad():
        torch.manual_seed(SEED)
        expected = written.encoder(model, x, key_padding_mask=hidden, attn_mask=pairs)
    if nested:  # padded queries do not exist: NaN means that anything may stand there
        expected = expected.masked_fill(hidden[..., None], 0.0)
        for weights in written.seen:
            weights.masked_fill_(hidden[:, None, :, None], torch.nan)
    if padding and mask:  # torch wants both of one type
        hidden = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    call = {"src_key_padding_mask": hidden, "mask": pairs}
    return Case(model, (x,), call, written.seen, expected)


def _decoder(train: bool = False, **parts: Any) -> Case:
    layer = _layer(nn.TransformerDecoderLayer, **parts)
    model = _stirred(nn.TransformerDecoder(layer, 2)).train(train)
    x, memory = torch.randn(BATCH, QUERIES, WIDTH), torch.randn(BATCH, KEYS, WIDTH)
    hidden, pairs = _padding(KEYS), _causal(QUERIES)
    written = Written()
    with torch.no_grad():
        torch.manual_seed(SEED)
        cross = {"key_padding_mask": hidden}
        expected = written.decoder(model, x, memory, {"attn_mask": pairs}, cross)
    call = {"tgt_mask": pairs, "memory_key_padding_mask": hidden, "tgt_is_causal": True}
    return Case(model, (x, memory), call, written.seen, expected)


def _transformer(train: bool = False, batch_first: bool = True, padding: bool = False) -> Case:
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 24, dropout=0.2, batch_first=batch_first)
    model = _stirred(model).train(train)
    source, target = torch.randn(BATCH, KEYS, WIDTH), torch.randn(BATCH, QUERIES, WIDTH)
    pairs, hidden = _causal(QUERIES), _padding(KEYS) if padding else None
    written = Written()
    with torch.no_grad():
        torch.manual_seed(SEED)
        cross = {"key_padding_mask": hidden}
        memory = written.encoder(model.encoder, source, **cross)
        expected = written.decoder(model.decoder, target, memory, {"attn_mask": pairs}, cross)
    call = {"tgt_mask": pairs}
    if padding:
        call |= {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    if not batch_first:
        source, target, expected = (x.transpose(0, 1) for x in (source, target, expected))
    return Case(model, (source, target), call, written.seen, expected)


def _nested_inputs(padding: bool) -> Case:
    """The whole transformer on the fast path: memory comes from nested tensors."""
    case = _transformer(padding=padding)
    for weights in case.truth[:2]:
        weights.masked_fill_(_padding(KEYS)[:, None, :, None], torch.nan)
    return case


def _pair(name: str, build: Any, **options: Any) -> list[Target]:
    """With gradients, and without: the second is where torch takes its fast path."""
    return [
        Target(name, "torch_transformers", build, **options),
        Target(f"{name}_no_grad", "torch_transformers", build, around=torch.no_grad, **options),
    ]


TARGETS = [
    *_pair("encoder_layer", _encoder_layer),
    *_pair("encoder_layer_norm_first", partial(_encoder_layer, norm_first=True)),
    *_pair("encoder_layer_gelu", partial(_encoder_layer, activation="gelu")),
    Target("encoder_layer_train", "torch_transformers", partial(_encoder_layer, train=True)),
    *_pair("encoder", partial(_encoder, norm=True)),
    *_pair("encoder_norm_first", partial(_encoder, norm_first=True)),
    *_pair("encoder_mask", partial(_encoder, mask=True)),
    *_pair("encoder_padding", partial(_encoder, padding=True)),
    *_pair("encoder_padding_and_mask", partial(_encoder, padding=True, mask=True)),
    Target(
        "encoder_nested",
        "torch_transformers",
        partial(_encoder, padding=True, nested=True),
        around=torch.no_grad,
        warns=NESTED,
    ),
    Target("encoder_train", "torch_transformers", partial(_encoder, train=True)),
    Target(
        "encoder_train_padding", "torch_transformers", partial(_encoder, train=True, padding=True)
    ),
    *_pair("decoder", _decoder),
    *_pair("decoder_norm_first", partial(_decoder, norm_first=True)),
    Target("decoder_train", "torch_transformers", partial(_decoder, train=True)),
    *_pair("transformer", _transformer),
    Target("transformer_padding", "torch_transformers", partial(_transformer, padding=True)),
    Target(
        "transformer_padding_no_grad",
        "torch_transformers",
        partial(_nested_inputs, padding=True),
        around=torch.no_grad,
        warns=NESTED,
    ),
    *_pair("transformer_seq_first", partial(_transformer, batch_first=False), warns=UNNESTED),
    Target("transformer_train", "torch_transformers", partial(_transformer, train=True)),
]
