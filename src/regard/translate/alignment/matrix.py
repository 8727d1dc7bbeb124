"""From attention between pieces to attention between words: the matrix that people read.

A decoder that is given `<s> je t' aime` says `je t' aime </s>`, so its attention has four rows and
there are two ways to read them:

| reading  | the row of a word is the one …                                                       |
|----------|--------------------------------------------------------------------------------------|
| "output" | that *says* it, row t for word t: for recurrent decoders, which look, then speak     |
| "input"  | that is *given* it, row t + 1 for word t: for Transformers, whose state knows a word |
|          | only once it is the input (Chen et al., 2020, "Accurate word alignment induction     |
|          | from neural machine translation")                                                    |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from regard.aggregate import Words
from regard.errors import RegardError, ShapeError
from regard.translate.alignment.links import Links, Rule, links_of, strongest
from regard.translate.tokens import END, NAMES

Reading = Literal["output", "input"]
End = Literal["left out", "renormalised", "kept"]


@dataclass(frozen=True, eq=False, repr=False)
class Matrix:
    """Weights between words. Printed, those of one head are a table, in percent.

    >>> import torch
    >>> print(Matrix(torch.tensor([[0.9, 0.1], [0.0, 0.7]]), ["I", "sleep"], ["je", "dors"]))
            I  sleep
    je     90     10
    dors    0     70

    | field     | meaning                                                       |
    |-----------|---------------------------------------------------------------|
    | `weights` | (*rest, target word, source word); `rest` may be heads        |
    | `source`  | the words of the source                                       |
    | `target`  | the words of the target                                       |
    """

    weights: Float[Tensor, "*rest target source"]
    source: list[str]
    target: list[str]

    def links(self, rule: Rule = strongest) -> Links:
        """The links of a matrix of one head; by default the strongest word of each row."""
        if self.weights.dim() != 2:
            shape = tuple(self.weights.shape)
            raise ShapeError(f"links: weights are {shape}, expected (target, source): one head")
        return links_of(rule(self.weights))

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.weights.shape))
        target, source = (" ".join(words) for words in (self.target, self.source))
        return f"Matrix({shape}: {target!r:.60} looks at {source!r:.60})"

    def __str__(self) -> str:
        if self.weights.dim() != 2:
            return repr(self)
        side = max(map(len, self.target), default=0)
        widths = [max(3, len(word)) for word in self.source]
        lines = [["", *self.source]]
        for word, row in zip(self.target, self.weights.tolist()):
            lines.append([word, *(f"{100 * value:.0f}" for value in row)])
        return "\n".join(
            "  ".join([line[0].ljust(side), *map(str.rjust, line[1:], widths)]) for line in lines
        )


def word_matrix(
    weights: Float[Tensor, "*rest target_piece source_piece"],
    source: Words,
    target: Words,
    *,
    reading: Reading = "output",
    end: End = "left out",
) -> Matrix:
    """Attention from target to source, word by word.

    Attention to a word is the sum over its pieces, attention from a word the mean over its pieces.

    >>> import torch
    >>> weights = torch.tensor([[0.6, 0.2, 0.2], [0.1, 0.5, 0.4], [0.0, 0.1, 0.9]])
    >>> matrix = word_matrix(weights, Words.each(["I", "sleep"]), Words.each(["je", "dors"]))
    >>> matrix.weights
    tensor([[0.6000, 0.2000],
            [0.1000, 0.5000]])

    Args:
        weights: the rows of all steps, the one that says the end of the sentence last, and the
            columns of all source pieces, the end of the sentence last. Either may lack the end;
            the "input" reading needs its row, in which the last word is the input.
        source: the words of the source, over its pieces; its end may be among them, as a special
            one, or not.
        target: the words of the target likewise.
        reading: which row is a word's.
        end: what becomes of attention to the end of the source. "left out": its column goes, and
            what a row gave it is missing there; "renormalised": the rest of the row sums to 1;
            "kept": it is the last word of both sides (of the source alone in the "input" reading,
            which has no row for it).
    """
    check_end(end)
    source, target = without_end(source), without_end(target)
    weights = read_rows(weights, len(target.pieces), reading)
    target = with_end(target, weights.shape[-2], "target")
    source = with_end(source, weights.shape[-1], "source")
    if end != "kept":
        source, target = source.without_special(), target.without_special()
    merged = target.merge(weights, source, renormalise=end == "renormalised")
    return Matrix(merged, source.names, target.names)


def read_rows(
    weights: Float[Tensor, "*rest step source_piece"], pieces: int, reading: Reading
) -> Float[Tensor, "*rest target_piece source_piece"]:
    """The rows of the target's pieces: as they are, or one further down.

    Args:
        weights: the rows of all steps.
        pieces: how many pieces the target has, the end not counted.
        reading: which row is a piece's.
    """
    check_reading(reading)
    if reading == "output":
        return weights
    if weights.shape[-2] != pieces + 1:
        raise ShapeError(
            f"reading='input': weights have {weights.shape[-2]} rows, expected {pieces + 1}: one "
            "for each of the target's pieces and one for the end of the sentence"
        )
    return weights[..., 1:, :]


def check_reading(reading: str) -> None:
    """Refuse what is no reading."""
    if reading not in get_args(Reading):
        raise RegardError(f"reading={reading!r}, expected 'output' or 'input'")


def check_end(end: str) -> None:
    """Refuse what cannot become of the end."""
    if end not in get_args(End):
        raise RegardError(f"end={end!r}, expected 'left out', 'renormalised' or 'kept'")


def without_end(words: Words) -> Words:
    """The words without a special one at their end."""
    if not words.pieces or words.pieces[-1] not in words.special:
        return words
    end = words.pieces[-1]
    return replace(
        words,
        names=[name for number, name in enumerate(words.names) if number != end],
        pieces=words.pieces[:-1],
        tokens=words.tokens[:-1],
        special=words.special - {end},
    )


def with_end(words: Words, size: int, side: str) -> Words:
    """The words, and the end of the sentence as a special one where the weights have it."""
    pieces = len(words.pieces)
    if size == pieces:
        return words
    if size != pieces + 1:
        raise ShapeError(
            f"weights have {size} {side} pieces, but the {side} has {pieces}, "
            f"or {pieces + 1} with the end of the sentence"
        )
    end, name = len(words.names), NAMES[END]
    return replace(
        words,
        names=[*words.names, name],
        pieces=[*words.pieces, end],
        tokens=[*words.tokens, name],
        special=words.special | {end},
    )
