"""The recurrent encoder–decoder: an encoder, a decoder and embeddings behind one contract."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.translate.models.contract import (
    DecoderOutput,
    EncoderOutput,
    StepOutput,
    TranslationModel,
)
from regard.translate.models.decoders import Decoder, stacked
from regard.translate.models.embeddings import Embeddings
from regard.translate.models.encoders import RecurrentEncoder


class RecurrentTranslator(TranslationModel):
    """A recurrent encoder and a recurrent decoder; what attention there is, is theirs.

    Teacher forcing: `decode(forcing=p)` gives each sentence at each step the target's token with
    probability p, drawn by torch's generator of the device, and otherwise the model's own best
    guess of the step before. The first token is always the target's.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        encoder: RecurrentEncoder,
        decoder: Decoder,
        *,
        dropout: float = 0.0,
        longest_source: int | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.encoder = encoder
        self.decoder = decoder
        self.dropout = dropout
        self.longest_source = longest_source
        self.sites = dict.fromkeys(decoder.attentions, 1)
        self.kind = decoder.kind

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        mask: Bool[Tensor, "batch source"],
        *,
        weights: bool = False,
    ) -> EncoderOutput:
        if source.shape[1] == 0:
            raise ShapeError(
                "encode: axis source has size 0, expected at least 1: the end of a sentence is a "
                "token too"
            )
        if self.longest_source is not None and source.shape[1] > self.longest_source:
            raise ShapeError(
                f"encode: axis source has size {source.shape[1]}, expected at most "
                f"{self.longest_source}: this model reads no more"
            )
        embedded = self._dropped(self.embeddings.source(source))
        annotations, summaries, inner_weights = self.encoder(embedded, mask, weights=weights)
        return EncoderOutput(mask, self.decoder.fix(annotations, summaries, mask), inner_weights)

    def start(self, encoded: EncoderOutput, beams: int = 1) -> Any:
        return self.decoder.start(encoded, beams)

    def step(
        self,
        encoded: EncoderOutput,
        state: Any,
        tokens: Int[Tensor, " row"],
        *,
        weights: bool = False,
    ) -> StepOutput:
        embedded = self._dropped(self.embeddings.target(tokens))
        advanced = self.decoder.step(encoded, state, embedded, weights=weights)
        return StepOutput(self.logits(advanced.features), advanced.state, advanced.weights)

    def decode(
        self,
        encoded: EncoderOutput,
        target: Int[Tensor, "batch target"],
        *,
        weights: bool | str = False,
        forcing: float = 1.0,
    ) -> DecoderOutput:
        if not 0.0 <= forcing <= 1.0:
            raise RegardError(f"decode: forcing={forcing}, expected a probability from 0 to 1")
        if target.shape[1] == 0:
            raise ShapeError("decode: axis target has size 0, expected at least 1, as BEGIN")
        if forcing < 1.0:
            return self._guided(encoded, target, bool(weights), forcing)
        embedded = self._dropped(self.embeddings.target(target))
        advanced = self.decoder.over(encoded, embedded, weights=bool(weights))
        return DecoderOutput(advanced.features, advanced.weights)

    def logits(
        self, features: Float[Tensor, "*position width"]
    ) -> Float[Tensor, "*position vocabulary"]:
        return self.embeddings.logits(features)

    def _guided(
        self, encoded: EncoderOutput, target: Tensor, weights: bool, forcing: float
    ) -> DecoderOutput:
        """Decode with the model's own guesses among the tokens it is given."""
        state = self.start(encoded)
        features: list[Tensor] = []
        step_weights: list[dict[str, Tensor]] = []
        for tokens in target.unbind(1):
            inputs = tokens
            if features:
                with torch.no_grad():
                    guesses = self.logits(features[-1]).argmax(-1)
                forced = torch.rand(tokens.shape, device=tokens.device) < forcing
                inputs = torch.where(forced, tokens, guesses)
            embedded = self._dropped(self.embeddings.target(inputs))
            advanced = self.decoder.step(encoded, state, embedded, weights=weights)
            state = advanced.state
            features.append(advanced.features)
            step_weights.append(advanced.weights)
        return DecoderOutput(torch.stack(features, 1), stacked(step_weights))

    def _dropped(self, embedded: Tensor) -> Tensor:
        return F.dropout(embedded, self.dropout, self.training)
