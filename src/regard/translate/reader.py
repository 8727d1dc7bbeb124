"""From hypotheses of a search to translations: words, matrices, records.

`SourceBatch` adds attention that a search does not return.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.aggregate import Words
from regard.anatomy.modes import evaluation_mode
from regard.recipe import Given
from regard.record import Record, Trace
from regard.record.site import Attends, Site
from regard.record.stored_attention import StoredRecipe
from regard.translate.alignment import (
    End,
    Head,
    Matrix,
    Reading,
    heads_of,
    read_rows,
    spaced_words,
    spaced_words_of,
    usual_head,
    word_matrix,
)
from regard.translate.alignment.matrix import with_end, without_end
from regard.translate.checkpoint import Checkpoint
from regard.translate.confidence import Confidence, confidence_of
from regard.translate.copying import copies, needs_copies, with_copies
from regard.translate.data import padded
from regard.translate.joining import block_matrix
from regard.translate.models.contract import EncoderOutput, TranslationModel
from regard.translate.search import Hypothesis
from regard.translate.tokens import BEGIN, END
from regard.translate.translation import Translation
from regard.types import Kind

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


@dataclass(frozen=True, eq=False)
class Reader:
    """Builds translations; the fields are the arguments of `Translator`."""

    checkpoint: Checkpoint
    head: Head | None
    reading: Reading
    end: End

    def read(
        self,
        texts: list[str],
        hypotheses: list[list[Hypothesis]],
        batch: SourceBatch,
        weights: bool,
        copy: bool = False,
    ) -> list[list[Translation]]:
        """Translations of the hypotheses of some texts, with attention if `weights`.

        With `copy`, unknown words and wrong numbers are replaced by those of the source.
        """
        last = self._last_rows(hypotheses, batch) if weights else {}
        return [
            [
                self._translation(
                    text,
                    _cut(hypothesis, batch.sizes[sentence]),
                    last.get((sentence, rank), {}),
                    batch.inside(sentence) if weights else {},
                    copy,
                )
                for rank, hypothesis in enumerate(of_text)
            ]
            for sentence, (text, of_text) in enumerate(zip(texts, hypotheses))
        ]

    def copied(self, word: str) -> Translation:
        """A word that no model reads, as its own translation: nothing attends to it."""
        words = Words.each([word])
        nothing = {site: torch.zeros(heads, 1, 1) for site, heads in self._sites.items()}
        matrix = Matrix(torch.zeros(1, 1), [word], [word])
        model, tokens = self.checkpoint.model, ([word], [word])
        attends: Attends = "cross" if model.sites else "self"
        return Translation(
            word,
            word,
            0.0,
            Hypothesis([], 0.0, 0.0),
            (words, words),
            None if self.head is None else matrix,
            Trace([_record(model, s, w, tokens, attends, "partial") for s, w in nothing.items()]),
            self.head,
            matrix if self.head is None and nothing else None,
            self.reading,
        )

    @functools.cached_property
    def _confidence(self) -> Confidence | None:
        return confidence_of(self.checkpoint.extra)

    @functools.cached_property
    def _sites(self) -> dict[str, int]:
        """All sites that translations show, with their heads."""
        model = self.checkpoint.model
        return model.sites or dict.fromkeys(inner_sites(model), 1)

    def between_spaces(self, translation: Translation) -> Matrix:
        """The matrix between words separated by spaces."""
        if translation.parts:
            return block_matrix([self.between_spaces(part) for part in translation.parts])
        if not translation.hypothesis.tokens:  # a word that was copied
            return block_matrix([] if translation.matrix is None else [translation.matrix])
        read = translation.source if translation.read_as is None else translation.read_as
        source = spaced_words(read, self.checkpoint.source)
        source = replace(source, names=translation.source.split())
        target = spaced_words_of(translation.hypothesis.tokens, self.checkpoint.target)
        target = replace(target, names=translation.text.split())  # with what was copied
        return word_matrix(translation.rows, source, target)  # which are as they are read

    def _last_rows(
        self, hypotheses: list[list[Hypothesis]], batch: SourceBatch
    ) -> dict[tuple[int, int], dict[str, HeadWeights]]:
        """The rows that the search did not make: of last tokens that were not an input yet."""
        if self.head is None or self.reading == "output":
            return {}
        unfinished = [
            (sentence, rank)
            for sentence, of_text in enumerate(hypotheses)
            for rank, hypothesis in enumerate(of_text)
            if END not in hypothesis.tokens
        ]
        targets = [hypotheses[sentence][rank].tokens for sentence, rank in unfinished]
        return dict(
            zip(unfinished, batch.last_rows([sentence for sentence, _ in unfinished], targets))
        )

    def _translation(
        self,
        text: str,
        hypothesis: Hypothesis,
        last: dict[str, HeadWeights],
        inside: dict[str, HeadWeights],
        copy: bool,
    ) -> Translation:
        source = self.checkpoint.source.words(text)
        target = self.checkpoint.target.words_of(hypothesis.tokens)
        rows = {
            site: torch.cat([weights, last[site][..., : weights.shape[2]]], 1) if last else weights
            for site, weights in hypothesis.weights.items()
        }
        rows = {site: site_weights.float().cpu() for site, site_weights in rows.items()}
        matrix = inner = None
        if self.head is not None and rows:
            matrix = word_matrix(
                self.head.of(rows), source, target, reading=self.reading, end=self.end
            )
        if inside:
            chosen = usual_head(
                heads_of({site: len(site_weights) for site, site_weights in inside.items()})
            )
            inner = word_matrix(chosen.of(inside), source, source, end=self.end)
        if self.reading == "input":  # which has no row for the end
            target = without_end(target)
        words = (with_end(source, len(source.pieces) + 1, "source"), target)
        records = [*self._records(rows, words), *self._inner_records(inside, words[0])]
        decoded, score = self.checkpoint.target.decode(hypothesis.tokens), hypothesis.score
        if copy and matrix is not None and needs_copies(text, decoded):
            decoded, matrix, words = _copied(decoded, matrix, words)
        trace = Trace(records)
        mean = hypothesis.log_probability / max(1, len(hypothesis.tokens))
        return Translation(
            text,
            decoded,
            score,
            hypothesis,
            words,
            matrix,
            trace,
            self.head,
            inner,
            self.reading,
            confidence=None if self._confidence is None else self._confidence.of(mean),
        )

    def _records(self, weights: dict[str, HeadWeights], words: tuple[Words, Words]) -> list[Record]:
        """The attention from target to source of every site, rows as the reading has them."""
        source, target = words
        model = self.checkpoint.model
        pieces = sum(piece not in target.special for piece in target.pieces)
        tokens = target.tokens, source.tokens
        return [
            _record(
                model,
                site,
                read_rows(site_weights, pieces, self.reading),
                tokens,
                "cross",
                model.kind,
            )
            for site, site_weights in weights.items()
        ]

    def _inner_records(self, weights: dict[str, HeadWeights], source: Words) -> list[Record]:
        """The attention inside the encoder of every site."""
        model, tokens = self.checkpoint.model, (source.tokens, source.tokens)
        return [
            _record(model, site, site_weights, tokens, "self", "distribution")
            for site, site_weights in weights.items()
        ]


def _copied(
    text: str, matrix: Matrix, words: tuple[Words, Words]
) -> tuple[str, Matrix, tuple[Words, Words]]:
    """A translation whose unknown words and wrong numbers are those of the source."""
    sources = len(words[0].without_special().names)
    names = words[1].without_special().names
    replaced = copies(names, matrix.source[:sources], matrix.weights[:, :sources])
    text = with_copies(text, names, replaced)
    target = replace(
        words[1], names=[replaced.get(place, name) for place, name in enumerate(words[1].names)]
    )
    shown = [replaced.get(place, name) for place, name in enumerate(matrix.target)]
    return text, Matrix(matrix.weights, matrix.source, shown), (words[0], target)


def _cut(hypothesis: Hypothesis, size: int) -> Hypothesis:
    """A hypothesis whose weights have no column for padding."""
    weights = {site: site_weights[..., :size] for site, site_weights in hypothesis.weights.items()}
    return replace(hypothesis, weights=weights)


def _record(
    model: TranslationModel,
    site: str,
    rows: HeadWeights,
    tokens: tuple[list[str], list[str]],
    attends: Attends,
    kind: Kind,
) -> Record:
    """The attention of one site as a record; `tokens` are those that look, and those looked at."""
    recipe = Given(rows[None], None, kind)
    return Record(
        Site(site, type(model).__name__, "", "given", attends=attends),
        StoredRecipe(recipe),
        shape=recipe.shape,
        kind=recipe.kind,
        dtype=recipe.dtype,
        query_tokens=tokens[0][: rows.shape[1]],
        key_tokens=tokens[1],
    )
