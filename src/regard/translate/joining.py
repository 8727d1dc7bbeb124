"""Translations of the sentences of a text as one: attention stays inside each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate import Words
from regard.recipe import Given
from regard.record import Record, Trace
from regard.record.stored_attention import StoredRecipe
from regard.translate.alignment import Matrix
from regard.translate.alignment.matrix import with_end, without_end
from regard.translate.search import Hypothesis
from regard.translate.tokens import END
from regard.translate.translation import Translation

Heads = Float[Tensor, "head _ _"]  #: (head, target, source), of sentences that differ in size


def joined(source: str, parts: Sequence[Translation]) -> Translation:
    """The translation of a text, from those of its sentences, in their order.

    Matrices and traces are block-diagonal. What attended to the end of a sentence attends to the
    end of the text. `parts` of the result are the sentences.
    """
    if len(parts) == 1:
        return replace(parts[0], source=source)
    sources, targets = ([part.words[side] for part in parts] for side in (0, 1))
    # A part that was copied has no end; the source keeps the one that the other parts attended to.
    words = (_words(sources, max(map(_ends, sources))), _words(targets, _ends(targets[-1])))
    return replace(
        parts[0],
        source=source,
        text=" ".join(part.text for part in parts if part.text),
        score=sum(part.score for part in parts) / len(parts),
        hypothesis=_hypothesis([part.hypothesis for part in parts]),
        words=words,
        matrix=_matrix([part.matrix for part in parts]),
        inside=_matrix([part.inside for part in parts]),
        trace=_trace(parts, words),
        parts=tuple(parts),
        confidence=_confidence(parts),
        read_as=None,
    )


def block_matrix(matrices: Sequence[Matrix]) -> Matrix:
    """Matrices of one head as one; the words of both sides follow each other."""
    return Matrix(
        torch.block_diag(*(matrix.weights for matrix in matrices)),
        [name for matrix in matrices for name in matrix.source],
        [name for matrix in matrices for name in matrix.target],
    )


def _confidence(parts: Sequence[Translation]) -> float | None:
    """The mean over the tokens; what was copied has none."""
    sizes = [(part.confidence, len(part.hypothesis.tokens)) for part in parts]
    rated = [(confidence, size) for confidence, size in sizes if confidence is not None and size]
    total = sum(size for _, size in rated)
    return sum(confidence * size for confidence, size in rated) / total if total else None


def _matrix(matrices: Sequence[Matrix | None]) -> Matrix | None:
    present = [matrix for matrix in matrices if matrix is not None]
    return block_matrix(present) if len(present) == len(matrices) else None


def _ends(words: Words) -> int:
    """How many of the positions are the end of a sentence: one or none."""
    return len(words.pieces) - len(without_end(words).pieces)


def _words(words: Sequence[Words], ends: int) -> Words:
    """The words of sentences in turn, with an end behind them or none."""
    bare = [without_end(each) for each in words]
    names: list[str] = []
    pieces: list[int | None] = []
    special: set[int] = set()
    for each in bare:
        pieces += [None if word is None else word + len(names) for word in each.pieces]
        special |= {word + len(names) for word in each.special}
        names += each.names
    tokens = [token for each in bare for token in each.tokens]
    whole = Words(names, pieces, tokens, frozenset(special))
    return with_end(whole, len(pieces) + ends, "text")


def _hypothesis(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Their tokens in turn; their weights are in the trace."""
    tokens = [token for each in hypotheses for token in each.tokens if token != END]
    tokens += [END] * (END in hypotheses[-1].tokens)
    return Hypothesis(
        tokens,
        sum(each.score for each in hypotheses) / len(hypotheses),
        sum(each.log_probability for each in hypotheses),
    )


def _trace(parts: Sequence[Translation], words: tuple[Words, Words]) -> Trace:
    records = []
    for record in parts[0].trace:
        crossed = record.attends == "cross"
        sizes = [
            tuple(len(without_end(side).pieces) for side in (part.words[crossed], part.words[0]))
            for part in parts
        ]
        blocks = [part.trace[record.name].weights()[0] for part in parts]
        queries, keys = words[crossed], words[0]
        weights = _block(blocks, sizes, len(queries.pieces), len(keys.pieces))
        recipe = Given(weights[None], None, record.kind)
        records.append(
            Record(
                record.site,
                StoredRecipe(recipe),
                shape=recipe.shape,
                kind=recipe.kind,
                dtype=recipe.dtype,
                query_tokens=queries.tokens[: weights.shape[1]],
                key_tokens=keys.tokens,
            )
        )
    return Trace(records)


def _block(
    blocks: Sequence[Heads], sizes: Sequence[tuple[int, ...]], rows: int, columns: int
) -> Heads:
    """Blocks of sentences, (head, target, source) with the end last, as those of a text."""
    last = blocks[-1]
    targets = sum(length for length, _ in sizes)
    whole = last.new_zeros(len(last), min(rows, targets + 1), columns)
    row = column = 0
    for block, (length, width) in zip(blocks, sizes):
        whole[:, row : row + length, column : column + width] = block[:, :length, :width]
        if block.shape[2] > width:
            whole[:, row : row + length, -1] += block[:, :length, width]
        row, column = row + length, column + width
    if whole.shape[1] > targets and last.shape[1] > sizes[-1][0]:
        length, width = sizes[-1]
        whole[:, -1, column - width : column] = last[:, length, :width]
        whole[:, -1, -1] = last[:, length, -1]
    return whole
