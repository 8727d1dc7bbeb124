"""The Transformer, put together from the blocks, as a translation model."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.blocks import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    PostNorm,
    PreNorm,
    Residual,
    Stack,
    Sublayer,
)
from regard.contract import State
from regard.errors import RegardError
from regard.mechanisms import MultiHead
from regard.translate.models.config import ModelConfig
from regard.translate.models.contract import (
    DecoderOutput,
    EncoderOutput,
    StepOutput,
    TranslationModel,
)
from regard.translate.models.embeddings import Embeddings, embeddings
from regard.types import Features


def sinusoids(start: int, length: int, width: int) -> Float[Tensor, "position width"]:
    """sin(p · rᵢ) in the first half of the features, cos(p · rᵢ) in the second, in float64.

    Vaswani et al. 2017, section 3.5, with rᵢ = 10000^(−2i/width). There sine and cosine take turns;
    here they stand in halves, as in Marian: the same features in another order.
    """
    half = (width + 1) // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) * 2 / width)
    angles = torch.arange(start, start + length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


class Positions(nn.Module):
    """dropout(√width · features + sinusoids), of features that are vectors of tokens.

    Vaswani et al. 2017, sections 3.4, 3.5 and 5.4.

    Args:
        width: features a position.
        dropout: in training.
        ready: positions computed once; later ones are computed when they come.
    """

    def __init__(self, width: int, *, dropout: float = 0.0, ready: int = 128) -> None:
        super().__init__()
        self.width = width
        self.dropout = nn.Dropout(dropout)
        # No buffer: `module.double()` would keep what float32 had rounded.
        self._table = sinusoids(0, ready, width).to(torch.get_default_dtype())

    def forward(self, features: Features, start: int = 0) -> Features:
        """(row, position, width) in and out; the first position is `start`."""
        sinusoid = self._sinusoids(start, features)
        sums: Tensor = self.dropout(torch.add(sinusoid, features, alpha=self.width**0.5))
        return sums

    def _sinusoids(self, start: int, features: Features) -> Float[Tensor, "position width"]:
        """The sinusoids of these positions, rounded once to the features' precision."""
        table, end = self._table, start + features.shape[1]
        if end > len(table):
            return sinusoids(start, features.shape[1], self.width).to(features)
        if table.dtype != features.dtype or table.device != features.device:
            self._table = table = sinusoids(0, len(table), self.width).to(features)
        return table[start:end]


class Transformer(TranslationModel):
    """Encoder and decoder of Vaswani et al. 2017, "Attention is all you need".

    Keys and values of the cross-attentions (`EncoderOutput.memory`) are projected once per source,
    as one fixed `State` per layer and sentence. In a step, the hypotheses of a sentence are several
    queries of that state. The target so far is one growing `State` per layer.

    Args:
        embeddings: vectors of the tokens, and the output layer.
        positions: adds positions to the vectors of either language.
        encoder: a stack of `EncoderBlock`s.
        decoder: a stack of `DecoderBlock`s.
    """

    reading = "input"  # the state in which a word is the input knows which word it is

    def __init__(
        self, embeddings: Embeddings, positions: Positions, encoder: Stack, decoder: Stack
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.positions = positions
        self.encoder = encoder
        self.decoder = decoder
        self.sites = {
            f"{layer}.cross": int(getattr(block.cross_attention.mechanism, "n_heads", 1))
            for layer, block in enumerate(self.decoder_blocks)
        }

    @property
    def encoder_blocks(self) -> list[EncoderBlock]:
        """The block of each layer."""
        return self.encoder.layers  # type: ignore[return-value]

    @property
    def decoder_blocks(self) -> list[DecoderBlock]:
        """The block of each layer."""
        return self.decoder.layers  # type: ignore[return-value]

    def encode(self, source: Tensor, mask: Tensor, *, weights: bool = False) -> EncoderOutput:
        """Read the sources; `memory` holds the keys and values of every cross-attention."""
        x = self.positions(self.embeddings.source(source))
        bias, by_site = _padding_bias(mask, x), {}
        for layer, block in enumerate(self.encoder_blocks):
            x, attended = block.self_attention(x, bias=bias, weights=weights)
            x, _ = block.feed_forward(x)
            if weights:
                by_site[f"{layer}.self"] = attended.weights
        x = self.encoder.norm(x)
        memory = tuple(block.cross_attention.mechanism.fix(x) for block in self.decoder_blocks)
        return EncoderOutput(mask, memory, by_site)

    def start(self, encoded: EncoderOutput, beams: int = 1) -> tuple[State, ...]:
        """For each layer a growing state without keys."""
        rows = len(encoded.mask) * beams
        features = self.embeddings.target.weight.new_empty(rows, 0, self.positions.width)
        return tuple(
            block.self_attention.mechanism.begin(features) for block in self.decoder_blocks
        )

    def step(
        self, encoded: EncoderOutput, state: Any, tokens: Tensor, *, weights: bool = False
    ) -> StepOutput:
        """One position further; the rows of a sentence are queries of its one memory."""
        sentences, rows = len(encoded.mask), len(tokens)
        x = self.embeddings.target(tokens[:, None])  # (row, 1, width)
        x = self.positions(x, start=state[0].keys)
        bias = _padding_bias(encoded.mask, x)
        states, by_site = [], {}
        for layer, block in enumerate(self.decoder_blocks):
            x, attended = block.self_attention(x, state=state[layer])
            states.append(attended.state)
            x = x.view(sentences, rows // max(1, sentences), x.shape[2])  # (sentence, beam, width)
            memory = encoded.memory[layer]
            x, cross = block.cross_attention(x, bias=bias, state=memory, weights=weights)
            x, _ = block.feed_forward(x)
            x = x.view(rows, 1, x.shape[2])  # (row, 1, width)
            if weights:  # (sentence, head, beam, source) to (row, head, source)
                by_site[f"{layer}.cross"] = cross.weights.transpose(1, 2).flatten(0, 1)
        return StepOutput(self.logits(self.decoder.norm(x)[:, 0]), tuple(states), by_site)

    def decode(
        self,
        encoded: EncoderOutput,
        target: Tensor,
        *,
        weights: bool | str = False,
        forcing: float = 1.0,
    ) -> DecoderOutput:
        """All positions at once; `forcing` below 1 is refused, as it would take a pass a token."""
        if forcing != 1.0:
            raise RegardError(
                f"Transformer: forcing is {forcing}, expected 1: a Transformer decodes all "
                "positions at once, each given the target's own tokens"
            )
        x = self.positions(self.embeddings.target(target))
        bias, by_site = _padding_bias(encoded.mask, x), {}
        for layer, block in enumerate(self.decoder_blocks):
            memory, site = encoded.memory[layer], f"{layer}.cross"
            wanted = weights is True or weights == site
            x, _ = block.self_attention(x, causal=True)
            x, cross = block.cross_attention(x, bias=bias, state=memory, weights=wanted)
            x, _ = block.feed_forward(x)
            if wanted:
                by_site[site] = cross.weights
        return DecoderOutput(self.decoder.norm(x), by_site)

    def logits(self, features: Tensor) -> Tensor:
        """The output layer, over the target vocabulary."""
        return self.embeddings.logits(features)


def _padding_bias(mask: Tensor, features: Tensor) -> Tensor:
    """A bias for the scores of source tokens: -inf at padding, (sentence, 1, 1, source).

    A mask would clean the keys of NaN at every call. A sentence of nothing but padding gets no
    bias, so that nothing becomes NaN.
    """
    allowed = mask | ~mask.any(1, keepdim=True)
    return torch.where(allowed, features.new_zeros(()), -torch.inf)[:, None, None]


def build_transformer(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """A new Transformer for two vocabularies of these sizes.

    `hidden` is the width of everything, the embeddings too. Dropout acts on the embeddings and on
    the answer of every part (Vaswani et al. 2017, section 5.4), not on the weights.
    """
    width, layers = config.hidden, range(config.layers)
    if config.embedding not in (width, ModelConfig.embedding):
        raise RegardError(
            f"model.embedding is {config.embedding} with model.name {config.name!r}, expected "
            f"{width}, as model.hidden: a Transformer is as wide everywhere"
        )
    encoder = [EncoderBlock(_attention(config), _feed_forward(config)) for _ in layers]
    decoder = [
        DecoderBlock(_attention(config), _attention(config), _feed_forward(config)) for _ in layers
    ]
    return Transformer(
        embeddings(source_size, target_size, width, features=width, tie=config.tie),
        Positions(width, dropout=config.dropout),
        Stack(encoder, norm=_last_norm(config)),
        Stack(decoder, norm=_last_norm(config)),
    )


def _attention(config: ModelConfig) -> Sublayer:
    return _sublayer(config, MultiHead(config.hidden, config.heads))


def _feed_forward(config: ModelConfig) -> Sublayer:
    feed_forward = FeedForward(config.hidden, config.feed_forward)
    for linear in (feed_forward.widen, feed_forward.narrow):
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
    return _sublayer(config, feed_forward)


def _sublayer(config: ModelConfig, part: nn.Module) -> Sublayer:
    kinds: dict[str, type[Sublayer]] = {"pre": PreNorm, "post": PostNorm}
    return kinds[config.norm](config.hidden, part, join=Residual(config.dropout))


def _last_norm(config: ModelConfig) -> nn.Module | None:
    """Pre-norm leaves the stream as it is, so it is normed once at the end."""
    return nn.LayerNorm(config.hidden) if config.norm == "pre" else None
