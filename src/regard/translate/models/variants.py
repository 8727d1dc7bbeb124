"""The recurrent models, one short function each: sizes to a model.

luong-dot (there named dot), qkv, encoder-dot, encoder-qkv and tutorial are the five variants of a
well-known figure of sequence-to-sequence attention; the others are Bahdanau's (2015) and Luong's
(2015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from regard.contract import Mechanism
from regard.errors import RegardError
from regard.mechanisms import (
    Additive,
    ConcatScore,
    DotProduct,
    DotScore,
    GeneralScore,
    LocalPredictive,
    LocationScore,
    Luong,
    MultiHead,
)
from regard.translate.models.attentions import LocalSourceAttention, SourceAttention
from regard.translate.models.cells import GRU, LSTM, Cell, CellStack
from regard.translate.models.config import ModelConfig
from regard.translate.models.contract import TranslationModel
from regard.translate.models.decoders import (
    Bridge,
    CurrentState,
    Decoder,
    InputFeeding,
    PlainDecoder,
    PreviousState,
    Readout,
    TutorialWiring,
    Wiring,
)
from regard.translate.models.embeddings import embeddings
from regard.translate.models.encoders import (
    BidirectionalLayer,
    RecurrentEncoder,
    UnidirectionalLayer,
    concatenated,
)
from regard.translate.models.recurrent import RecurrentTranslator


@dataclass(frozen=True)
class Parts:
    """A recurrent translator whose decoder is still to be built."""

    config: ModelConfig
    sizes: tuple[int, int]
    encoder: RecurrentEncoder

    @property
    def features(self) -> int:
        """Input width of the output layer: the embedding's if they are tied."""
        return self.config.hidden if self.config.tie == "none" else self.config.embedding

    def cells(self, width: int) -> CellStack:
        config = self.config
        widths = [width] + [config.hidden] * (config.layers - 1)
        return CellStack([cell(config, width) for width in widths], config.dropout)

    def bridge(self, cells: CellStack) -> Bridge:
        return Bridge(self.encoder.summary_widths, cells)

    def readout(self, width: int) -> Readout:
        return Readout(width, self.features, self.config.dropout)

    def translator(self, decoder: Decoder, slots: int | None = None) -> RecurrentTranslator:
        config = self.config
        ends = embeddings(*self.sizes, config.embedding, features=self.features, tie=config.tie)
        return RecurrentTranslator(
            ends, self.encoder, decoder, dropout=config.dropout, longest_source=slots
        )


def cell(config: ModelConfig, width: int) -> Cell:
    return {"gru": GRU, "lstm": LSTM}[config.cell](width, config.hidden)


def read_by(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    *,
    attention: Mechanism | None = None,
    join: Callable[..., torch.Tensor] = concatenated,
) -> Parts:
    """The encoder; `join` combines the two directions of the last layer."""
    if config.reverse_source and config.bidirectional:
        raise RegardError(
            "model.reverse_source is true and model.bidirectional too, expected one of them: an "
            "encoder that reads both ways has no direction to reverse"
        )
    width = config.embedding * (1 if attention is None else 2)
    layers: list[BidirectionalLayer | UnidirectionalLayer] = []
    for i in range(config.layers):
        if config.bidirectional:
            how = join if i == config.layers - 1 else concatenated
            layers.append(BidirectionalLayer(cell(config, width), cell(config, width), how))
        else:
            layers.append(UnidirectionalLayer(cell(config, width), reverse=config.reverse_source))
        width = layers[-1].width
    encoder = RecurrentEncoder(layers, attention=attention, dropout=config.dropout)
    return Parts(config, (source_size, target_size), encoder)


def _unattended(parts: Parts) -> RecurrentTranslator:
    cells = parts.cells(parts.config.embedding)
    readout = parts.readout(parts.config.hidden)
    return parts.translator(PlainDecoder(cells, parts.bridge(cells), readout))


def none(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """No attention: the decoder starts from the encoder's last states."""
    return _unattended(read_by(config, source_size, target_size))


def encoder_dot(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Attention inside the encoder, x_i · x_j; the decoder has none."""
    attention = DotProduct(scale=1.0)
    return _unattended(read_by(config, source_size, target_size, attention=attention))


def encoder_qkv(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Attention inside the encoder, (W_K x_i) · (W_Q x_j) / √d; the decoder has none."""
    attention = MultiHead(config.embedding, 1, bias=False)
    return _unattended(read_by(config, source_size, target_size, attention=attention))


def _current(parts: Parts, look: SourceAttention) -> RecurrentTranslator:
    """Luong's decoder, with or without input feeding and an aligner."""
    config, width = parts.config, parts.encoder.width
    aligner = None
    if config.aligner:
        aligner = SourceAttention(Luong(GeneralScore(config.hidden, width)), width)
    readout = parts.readout(look.width + (aligner.width if aligner else 0) + config.hidden)
    fed = parts.features if config.input_feeding else 0
    cells = parts.cells(config.embedding + fed)
    kind = InputFeeding if config.input_feeding else CurrentState
    return parts.translator(kind(cells, parts.bridge(cells), look, readout, aligner))


def qkv(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """(W_K h_i) · (W_Q s_j) / √d, with values W_V h and an output projection."""
    parts = read_by(config, source_size, target_size)
    inputs = (parts.encoder.width,) * 2
    mechanism = MultiHead(config.hidden, 1, inputs=inputs, bias=False)
    return _current(parts, SourceAttention(mechanism, config.hidden))


def luong_dot(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Luong's dot score, h_t · h_s, which is also the figure's h_i · s_j.

    The encoder's two directions are added, so that both sides have the same width.
    """
    parts = read_by(config, source_size, target_size, join=torch.add)
    return _current(parts, SourceAttention(Luong(DotScore()), parts.encoder.width))


def luong_general(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Luong's general score, h_tᵀ W h_s."""
    parts = read_by(config, source_size, target_size)
    width = parts.encoder.width
    return _current(parts, SourceAttention(Luong(GeneralScore(config.hidden, width)), width))


def luong_concat(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Luong's concat score, vᵀ tanh(W [h_t; h_s])."""
    parts = read_by(config, source_size, target_size)
    width = parts.encoder.width
    score = ConcatScore(config.hidden, width, width=config.hidden)
    return _current(parts, SourceAttention(Luong(score), width))


def local_m(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Luong's general score within ten positions of the step."""
    parts = read_by(config, source_size, target_size)
    width = parts.encoder.width
    return _current(parts, LocalSourceAttention(Luong(GeneralScore(config.hidden, width)), width))


def local_p(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Luong's general score around a predicted position, times a Gaussian."""
    parts = read_by(config, source_size, target_size)
    width = parts.encoder.width
    score = GeneralScore(config.hidden, width)
    return _current(
        parts, SourceAttention(Luong(score, window=LocalPredictive(config.hidden)), width)
    )


def _previous(
    parts: Parts, look: SourceAttention, wiring: Wiring, widths: tuple[int, int]
) -> Decoder:
    """A decoder whose previous state is the query; `widths` of the inputs of cell and readout."""
    cells = parts.cells(widths[0])
    return PreviousState(cells, parts.bridge(cells), look, parts.readout(widths[1]), wiring)


def bahdanau(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Additive attention of the previous state."""
    parts = read_by(config, source_size, target_size)
    width = parts.encoder.width
    look = SourceAttention(Additive(config.hidden, width, width=config.hidden), width)
    entry = config.embedding + width
    decoder = _previous(parts, look, Wiring(), (entry, config.hidden + entry))
    return parts.translator(decoder)


def tutorial(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """The old PyTorch tutorial's fully connected coefficients: softmax(W [embedded; state]).

    **It never sees the keys.** A weight belongs to a position, whatever word is there: the decoder
    can learn "third word, third position", never "this word goes with that one". Unlike the
    original, which gives weight to padding, it is masked to the true length; like the original, it
    reads at most `longest` words and the end.
    """
    parts = read_by(config, source_size, target_size)
    width = parts.encoder.width
    slots = config.longest + 1
    look = SourceAttention(
        Luong(LocationScore(config.embedding + config.hidden, longest=slots)), width
    )
    wiring = TutorialWiring(config.embedding, width)
    decoder = _previous(parts, look, wiring, (config.embedding, config.hidden))
    return parts.translator(decoder, slots)
