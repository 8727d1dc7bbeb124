"""What a model looked at, where a search does not keep it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.translate.data import padded
from regard.translate.models.contract import Encoded, TranslationModel
from regard.translate.models.modes import evaluating
from regard.translate.tokens import BEGIN, END

Rows = Float[Tensor, "head query key"]


class SecondLook:
    """Some sources, read once more where a search does not say all.

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
    def _encoded(self) -> Encoded:
        with evaluating(self.model), torch.no_grad():
            return self.model.encode(self.source, self.mask, weights=not self.model.sites)

    def inside(self, sentence: int) -> dict[str, Rows]:
        """The attentions inside the encoder, of a model that has no others."""
        if self.model.sites:
            return {}
        size = self.sizes[sentence]
        return {
            site: weights[sentence, :, :size, :size].float().cpu()
            for site, weights in self._encoded.weights.items()
        }

    def last_rows(
        self, sentences: Sequence[int], said: Sequence[Sequence[int]]
    ) -> list[dict[str, Rows]]:
        """For each text that was not ended, the row of the step that is given its last token.

        No search makes that step. The rows are (head, 1, source), padding among the columns.

        Args:
            sentences: of which sentence each text is a translation.
            said: the tokens of the texts.
        """
        if not sentences:
            return []
        device = self.source.device
        given, _ = padded([[BEGIN, *tokens] for tokens in said])
        encoded = self._encoded.select(torch.tensor(sentences, device=device))
        with evaluating(self.model), torch.no_grad():
            weights = self.model.decode(encoded, given.to(device), weights=True).weights
        return [
            {site: one[place, :, len(tokens), None] for site, one in weights.items()}
            for place, tokens in enumerate(said)
        ]


def inner_sites(model: TranslationModel) -> list[str]:
    """The names of the attentions inside the encoder of a model that has no others."""
    end = torch.full((1, 1), END, device=next(model.parameters()).device)
    return list(SecondLook(model, end, end == END).inside(0))
