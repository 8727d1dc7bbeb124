"""Subword regularisation (Kudo, 2018; Provilkov et al., 2020, for BPE): other pieces each epoch.

The pieces of an epoch are drawn anew from the seed and its number, so a resumed run draws the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from regard.errors import RegardError
from regard.translate.config import TrainingConfig
from regard.translate.data import Examples
from regard.translate.tokens import END, UNKNOWN
from regard.translate.training.corpus import Vocabularies
from regard.translate.vocabulary import PieceVocabulary, Vocabulary


def check_piece_sampling(config: TrainingConfig, vocabularies: Vocabularies) -> None:
    """Refuse to sample what has no pieces, and pieces that guidance has aligned."""
    if not config.sample_pieces:
        return
    for side in ("source", "target"):
        if not isinstance(getattr(vocabularies, side), PieceVocabulary):
            raise RegardError(
                f"training.sample_pieces is {config.sample_pieces}, but the {side} vocabulary has "
                "whole words: expected vocabulary.kind = 'pieces'"
            )
    if config.guidance.weight:
        raise RegardError(
            f"training.sample_pieces is {config.sample_pieces} and training.guidance.weight "
            f"{config.guidance.weight}: links of guidance are between pieces that do not change; "
            "expected one of them"
        )


def sampled_examples(
    examples: Examples,
    vocabularies: Vocabularies,
    config: TrainingConfig,
    epoch: int,
    longest_source: int | None = None,
) -> Examples:
    """The examples in other pieces, those of an epoch.

    Args:
        examples: the examples, in their most probable pieces.
        vocabularies: what they are numbers of.
        config: the seed, and α in `sample_pieces`.
        epoch: which epoch.
        longest_source: how many tokens the model reads at most; longer sources keep their pieces.
    """

    def sampled(side: str, sentences: list[list[int]], longest: int | None) -> list[list[int]]:
        digest = hashlib.blake2b(f"{config.seed} {epoch} {side}".encode(), digest_size=4).digest()
        seed = int.from_bytes(digest, "big")
        others = _sampled(getattr(vocabularies, side), sentences, config.sample_pieces, seed)
        fits = [longest is None or len(other) <= longest for other in others]
        return [other if fit else own for own, other, fit in zip(sentences, others, fits)]

    return Examples(
        sampled("source", examples.source, longest_source),
        sampled("target", examples.target, None),
    )


def _sampled(
    vocabulary: Vocabulary, sentences: Sequence[list[int]], alpha: float, seed: int
) -> list[list[int]]:
    """Sentences with their ends in other pieces; one with an unknown token stays as it is."""
    assert isinstance(vocabulary, PieceVocabulary)  # `check_piece_sampling` refuses others
    texts = [vocabulary.decode(tokens) for tokens in sentences]
    others = vocabulary.sampled(texts, alpha=alpha, seed=seed)
    return [own if UNKNOWN in own else [*other, END] for own, other in zip(sentences, others)]
