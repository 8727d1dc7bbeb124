"""Attention of a model that is forced to produce given translations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.aggregate import Words
from regard.errors import RegardError, UnavailableError
from regard.progress import progress
from regard.translate.alignment.heads import AllHeads, Head, heads_of
from regard.translate.alignment.matrix import End, Matrix, Reading, word_matrix
from regard.translate.data import padded
from regard.translate.models.contract import TranslationModel, evaluating
from regard.translate.tokens import BEGIN, END
from regard.translate.vocabulary import Vocabulary


@dataclass(frozen=True)
class Sentence:
    """A sentence as token numbers, without its end, and the words over them."""

    numbers: list[int]
    words: Words

    @classmethod
    def spaced(cls, text: str, vocabulary: Vocabulary) -> Sentence:
        """A text whose words are separated by spaces, as in files of links.

        Each word is encoded by itself, so that no token spans two words.
        """
        names = text.split()
        pieces_of_words = [vocabulary.encode(name) for name in names]
        numbers = [number for pieces in pieces_of_words for number in pieces]
        word_indices = [word for word, pieces in enumerate(pieces_of_words) for _ in pieces]
        return cls(numbers, Words(names, list(word_indices), vocabulary.pieces(numbers)))


@dataclass(frozen=True, eq=False)
class ForcedAttention:
    """Sentence pairs, and the attention from target to source.

    `weights` has for each sentence, by site, (head, target + 1, source + 1): both have their end.
    """

    sources: Sequence[Sentence]
    targets: Sequence[Sentence]
    weights: list[dict[str, Tensor]]

    def heads(self, reading: Reading = "output", end: End = "left out") -> AllHeads:
        """The matrices of words of every head, and of the mean of every site's heads."""
        heads: list[Head] = []
        matrices: list[Matrix] = []
        for source, target, weights in zip(self.sources, self.targets, self.weights):
            heads = heads_of({site: len(site_weights) for site, site_weights in weights.items()})
            stacked = torch.stack([head.of(weights) for head in heads])
            matrix = word_matrix(stacked, source.words, target.words, reading=reading, end=end)
            matrices.append(matrix)
        return AllHeads(heads, matrices)


def force(
    model: TranslationModel,
    sources: Sequence[Sentence],
    targets: Sequence[Sentence],
    *,
    batch: int = 32,
) -> ForcedAttention:
    """Run a model with teacher forcing on sentence pairs, and keep its attention.

    Args:
        model: a model with attention from target to source.
        sources: the sources.
        targets: the targets it is forced to produce.
        batch: how many sentences go through it at once, sorted by length.
    """
    if not model.sites:
        raise UnavailableError(
            "the model has no attention from target to source, so nothing to align by"
        )
    if len(sources) != len(targets):
        raise RegardError(f"there are {len(sources)} sources, but {len(targets)} targets")
    _check_lengths(model, sources)
    order = sorted(range(len(sources)), key=lambda i: (_size(sources[i]), _size(targets[i])))
    attention: list[dict[str, Tensor]] = [{} for _ in order]
    with evaluating(model), torch.inference_mode(), progress("aligning", len(order)) as advance:
        for start in range(0, len(order), batch):
            indices = order[start : start + batch]
            batch_weights = _batch_weights(
                model, [sources[i] for i in indices], [targets[i] for i in indices]
            )
            for index, weights in zip(indices, batch_weights):
                attention[index] = weights
            advance(len(indices))
    return ForcedAttention(sources, targets, attention)


def _batch_weights(
    model: TranslationModel, sources: list[Sentence], targets: list[Sentence]
) -> list[dict[str, Tensor]]:
    """One batch's weights, each sentence cut to its own lengths."""
    device = next(model.parameters()).device
    source, mask = padded([[*sentence.numbers, END] for sentence in sources])
    inputs, _ = padded([[BEGIN, *sentence.numbers] for sentence in targets])
    encoded = model.encode(source.to(device), mask.to(device))
    weights = model.decode(encoded, inputs.to(device), weights=True).weights
    cuts = [(_size(target), _size(source)) for source, target in zip(sources, targets)]
    return [
        {
            site: site_weights[i, :, :rows, :columns].float().cpu()
            for site, site_weights in weights.items()
        }
        for i, (rows, columns) in enumerate(cuts)
    ]


def _size(sentence: Sentence) -> int:
    return len(sentence.numbers) + 1


def _check_lengths(model: TranslationModel, sources: Sequence[Sentence]) -> None:
    limit = model.longest_source
    for number, sentence in enumerate(sources, 1):
        if limit is not None and _size(sentence) > limit:
            raise RegardError(
                f"sentence {number}: the source has {_size(sentence)} tokens with its end, "
                f"but the model reads at most {limit}"
            )
