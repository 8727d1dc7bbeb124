"""A batch of sources, encoded a second time for attention that a search does not return."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.anatomy.modes import evaluation_mode
from regard.translate.data import padded
from regard.translate.models.contract import EncoderOutput, TranslationModel
from regard.translate.tokens import BEGIN, END

HeadWeights = Float[Tensor, "head query key"]


class SourceBatch:
    """Tokenised sources, and attention over them that a search does not return.

    The sources are encoded again only if such attention is asked for.

    Args:
        model: the model.
        source: tokens of the sentences, each with its end, padded on the right.
        mask: True at tokens.
    """

    def __init__(
        self,
        model: TranslationModel,
        source: Int[Tensor, "sentence source"],
        mask: Bool[Tensor, "sentence source"],
    ) -> None:
        self.model = model
        self.source = source
        self.mask = mask
        self.sizes: list[int] = mask.sum(1).tolist()

    @functools.cached_property
    def _encoded(self) -> EncoderOutput:
        with evaluation_mode(self.model), torch.no_grad():
            return self.model.encode(self.source, self.mask, weights=not self.model.sites)

    def inside(self, sentence: int) -> dict[str, HeadWeights]:
        """Self-attention of the encoder, for a model without cross-attention; else empty."""
        if self.model.sites:
            return {}
        size = self.sizes[sentence]
        return {
            site: weights[sentence, :, :size, :size].float().cpu()
            for site, weights in self._encoded.weights.items()
        }

    def last_rows(
        self, sentences: Sequence[int], targets: Sequence[Sequence[int]]
    ) -> list[dict[str, HeadWeights]]:
        """For each unfinished target, the attention of the step whose input is its last token.

        No search makes that step. Weights are (head, 1, source), columns of padding included.

        Args:
            sentences: the sentence that each target translates.
            targets: the tokens of the targets.
        """
        if not sentences:
            return []
        device = self.source.device
        inputs, _ = padded([[BEGIN, *tokens] for tokens in targets])
        encoded = self._encoded.select(torch.tensor(sentences, device=device))
        with evaluation_mode(self.model), torch.no_grad():
            weights = self.model.decode(encoded, inputs.to(device), weights=True).weights
        return [
            {site: heads[row, :, len(tokens), None] for site, heads in weights.items()}
            for row, tokens in enumerate(targets)
        ]


def inner_sites(model: TranslationModel) -> list[str]:
    """The sites of encoder self-attention of a model without cross-attention."""
    end = torch.full((1, 1), END, device=next(model.parameters()).device)
    return list(SourceBatch(model, end, end == END).inside(0))
