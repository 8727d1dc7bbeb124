"""Word vectors of two languages in one space, from nothing but the sentence pairs to be trained on.

    python experiments/translate/bilingual_vectors.py SOURCE TARGET OUT [--width 256]

Words that stand in each other's sentences more often than chance would have it get like vectors:
the singular value decomposition of how strongly each source word and each target word go together
in the sentence pairs. A translator that begins with them (`[vectors]`) knows a dictionary of sorts
before its first step; where to look it still has to learn. Words are what stands between spaces.
Writes OUT/source.txt and OUT/target.txt in GloVe's form.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from regard.files import write_text
from regard.translate.data import read_pairs


def most_frequent(sentences: Sequence[list[str]], words: int) -> list[str]:
    """The words by how often they come, the most frequent first."""
    counted = Counter(word for sentence in sentences for word in sentence)
    return [word for word, _ in counted.most_common(words)]


def occurrences(sentences: Sequence[list[str]], words: Sequence[str]) -> csr_matrix:
    """(word, sentence): 1 where the word is in the sentence."""
    places = {word: place for place, word in enumerate(words)}
    found = [
        (places[word], number)
        for number, sentence in enumerate(sentences)
        for word in sorted(set(sentence))
        if word in places
    ]
    rows, columns = zip(*found)
    ones = np.ones(len(found), dtype=np.float32)
    return csr_matrix((ones, (rows, columns)), shape=(len(words), len(sentences)))


def association(source: csr_matrix, target: csr_matrix) -> csr_matrix:
    """(source word, target word): how much oftener they meet than chance has it, in its errors.

    The square root of (n - e) / √e, with n sentence pairs that have both and e expected; 0 below.
    """
    together = (source @ target.T).tocoo()
    alone = [np.asarray(side.sum(1)).ravel() for side in (source, target)]
    expected = alone[0][together.row] * alone[1][together.col] / source.shape[1]
    found = np.sqrt(np.maximum(together.data - expected, 0) / np.sqrt(expected))
    return csr_matrix((found, (together.row, together.col)), shape=together.shape)


def vectors(bound: csr_matrix, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Of the words of either side, each of length 1."""
    generator = np.random.default_rng(0)
    left, sizes, right = svds(bound, k=width, v0=generator.standard_normal(min(bound.shape)))
    both = left * np.sqrt(sizes), right.T * np.sqrt(sizes)
    lengths = [np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-6) for side in both]
    source, target = (side / length for side, length in zip(both, lengths))
    return source, target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path, help="a folder")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--words", type=int, default=10_000, help="of each language, at most")
    given = parser.parse_args()
    pairs = read_pairs(given.source, given.target)
    sides = [[pair.source.split() for pair in pairs], [pair.target.split() for pair in pairs]]
    words = [most_frequent(side, given.words) for side in sides]
    bound = association(*(occurrences(side, known) for side, known in zip(sides, words)))
    found = vectors(bound, given.width)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, known, rows in zip(("source", "target"), words, found):
        lines = (f"{word} {' '.join(f'{x:.5f}' for x in row)}\n" for word, row in zip(known, rows))
        write_text(given.out / f"{name}.txt", "".join(lines))
    nearest = (found[0][:200] @ found[1].T).argmax(1)
    shown = ", ".join(f"{words[0][place]} {words[1][nearest[place]]}" for place in range(100, 112))
    print(f"{len(pairs):,} pairs; {len(words[0]):,} and {len(words[1]):,} words; nearest: {shown}")


if __name__ == "__main__":
    main()
