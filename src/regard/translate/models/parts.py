"""Parts of the recurrent models: encoder, cells, readout, in the configured sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from regard.contract import Mechanism
from regard.errors import RegardError
from regard.translate.models.cells import GRU, LSTM, Cell, CellStack
from regard.translate.models.config import ModelConfig
from regard.translate.models.decoders import Bridge, Decoder, Readout
from regard.translate.models.embeddings import embeddings
from regard.translate.models.encoders import (
    BidirectionalLayer,
    RecurrentEncoder,
    UnidirectionalLayer,
    beside,
)
from regard.translate.models.recurrent import RecurrentTranslator


@dataclass(frozen=True)
class Parts:
    """A recurrent translator while its decoder is being made."""

    config: ModelConfig
    sizes: tuple[int, int]
    encoder: RecurrentEncoder

    @property
    def features(self) -> int:
        """Width of what the output layer takes: the embedding's where they are one."""
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
    join: Callable[..., torch.Tensor] = beside,
) -> Parts:
    """The encoder; `join` says how the last layer's two directions become one."""
    if config.reverse_source and config.bidirectional:
        raise RegardError(
            "model.reverse_source is true and model.bidirectional too, expected one of them: an "
            "encoder that reads both ways has no direction to reverse"
        )
    width = config.embedding * (1 if attention is None else 2)
    layers: list[BidirectionalLayer | UnidirectionalLayer] = []
    for i in range(config.layers):
        if config.bidirectional:
            how = join if i == config.layers - 1 else beside
            layers.append(BidirectionalLayer(cell(config, width), cell(config, width), how))
        else:
            layers.append(UnidirectionalLayer(cell(config, width), reverse=config.reverse_source))
        width = layers[-1].width
    encoder = RecurrentEncoder(layers, attention=attention, dropout=config.dropout)
    return Parts(config, (source_size, target_size), encoder)
