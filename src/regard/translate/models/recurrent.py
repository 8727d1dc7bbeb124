"""The recurrent encoder–decoder: an encoder, a decoder and embeddings behind one contract."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.translate.models.contract import Decoded, Encoded, Stepped, TranslationModel
from regard.translate.models.decoders import SITE, Decoder
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
        self.sites = {} if decoder.look is None else {SITE: 1}
        self.kind = decoder.kind

    def encode(
        self,
        source: Int[Tensor, "batch source"],
        mask: Bool[Tensor, "batch source"],
        *,
        weights: bool = False,
    ) -> Encoded:
        if source.shape[1] == 0:
            raise ShapeError(
                "encode: axis source has size 0, expected at least 1: the end of a sentence is a "
                "token too"
            )
        if self.longest_source is not None and source.shape[1] > self.longest_source:
            raise ShapeError(
                f"encode: axis source has size {source.shape[1]}, expected at most "
                f"{self.longest_source}: this model has no more places"
            )
        embedded = self._dropped(self.embeddings.source(source))
        annotations, summaries, made = self.encoder(embedded, mask, weights=weights)
        return Encoded(mask, self.decoder.fix(annotations, summaries, mask), made)

    def start(self, encoded: Encoded, beams: int = 1) -> Any:
        return self.decoder.start(encoded.memory, encoded.mask, beams)

    def step(
        self, encoded: Encoded, state: Any, tokens: Int[Tensor, " row"], *, weights: bool = False
    ) -> Stepped:
        embedded = self._dropped(self.embeddings.target(tokens))
        advanced = self.decoder.step(encoded.memory, encoded.mask, state, embedded, weights=weights)
        made = {} if advanced.weights is None else {SITE: advanced.weights}
        return Stepped(self.logits(advanced.features), advanced.state, made)

    def decode(
        self,
        encoded: Encoded,
        target: Int[Tensor, "batch target"],
        *,
        weights: bool = False,
        forcing: float = 1.0,
    ) -> Decoded:
        if not 0.0 <= forcing <= 1.0:
            raise RegardError(f"decode: forcing={forcing}, expected a probability from 0 to 1")
        if target.shape[1] == 0:
            raise ShapeError("decode: axis target has size 0, expected at least 1, as BEGIN")
        if forcing < 1.0:
            return self._guided(encoded, target, weights, forcing)
        embedded = self._dropped(self.embeddings.target(target))
        advanced = self.decoder.over(encoded.memory, encoded.mask, embedded, weights=weights)
        made = {} if advanced.weights is None else {SITE: advanced.weights}
        return Decoded(advanced.features, made)

    def logits(self, features: Float[Tensor, "*place width"]) -> Float[Tensor, "*place vocabulary"]:
        return self.embeddings.logits(features)

    def _guided(self, encoded: Encoded, target: Tensor, weights: bool, forcing: float) -> Decoded:
        """Decode with the model's own guesses among the tokens it is given."""
        state = self.start(encoded)
        features: list[Tensor] = []
        made: list[Tensor] = []
        for told in target.unbind(1):
            given = told
            if features:
                with torch.no_grad():
                    guessed = self.logits(features[-1]).argmax(-1)
                taught = torch.rand(told.shape, device=told.device) < forcing
                given = torch.where(taught, told, guessed)
            embedded = self._dropped(self.embeddings.target(given))
            advanced = self.decoder.step(
                encoded.memory, encoded.mask, state, embedded, weights=weights
            )
            state = advanced.state
            features.append(advanced.features)
            if advanced.weights is not None:
                made.append(advanced.weights)
        return Decoded(torch.stack(features, 1), {SITE: torch.stack(made, 2)} if made else {})

    def _dropped(self, embedded: Tensor) -> Tensor:
        return F.dropout(embedded, self.dropout, self.training)
