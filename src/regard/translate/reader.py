"""From hypotheses of a search to translations: words, matrices, records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from regard.aggregate import Words
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
from regard.translate.models.contract import TranslationModel
from regard.translate.search import Hypothesis
from regard.translate.source_batch import HeadWeights, SourceBatch
from regard.translate.tokens import END
from regard.translate.translation import Translation
from regard.types import Kind


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
    ) -> list[list[Translation]]:
        """Translations of the hypotheses of some texts, with attention if `weights`."""
        last = self._last_rows(hypotheses, batch) if weights else {}
        return [
            [
                self._translation(
                    text,
                    _cut(hypothesis, batch.sizes[sentence]),
                    last.get((sentence, rank), {}),
                    batch.inside(sentence) if weights else {},
                )
                for rank, hypothesis in enumerate(of_text)
            ]
            for sentence, (text, of_text) in enumerate(zip(texts, hypotheses))
        ]

    def between_spaces(self, translation: Translation) -> Matrix:
        """The matrix between words separated by spaces."""
        source = spaced_words(translation.source, self.checkpoint.source)
        target = spaced_words_of(translation.hypothesis.tokens, self.checkpoint.target)
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
        trace = Trace(records)
        return Translation(
            text, decoded, score, hypothesis, words, matrix, trace, self.head, inner, self.reading
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
