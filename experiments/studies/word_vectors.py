"""Word vectors factor pointwise mutual information, and attention over them gives back the text.

Skip-gram with k negative samples has its optimum, where the rank allows, at w·c = PMI(w, c) − log k
(Levy and Goldberg 2014, "Neural word embedding as implicit matrix factorization"). Queries w and
keys c then have a score that says how much more often two words meet than by chance. A softmax of
these scores, with log P(c) as a bias, is P(c | w): attention from a word to the words around it.

The words are the most frequent ones of Python's own documentation, those of them that all meet
within five words. The expected loss over all pairs is minimised, so that no sampling blurs it.

    python experiments/studies/word_vectors.py [--quick] [--picture FILE]
"""

from __future__ import annotations

import pydoc_data.topics
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main
from torch import Tensor
from torch.nn import functional as F

import regard

WORDS, REACH, NEGATIVES = 12, 5, 5


def co_occurrence() -> tuple[list[str], Tensor]:
    """Frequent words, and how often each pair stands within `REACH` words of the text."""
    topics = pydoc_data.topics.topics
    text = [re.findall(r"[a-z]+", topics[name].lower()) for name in sorted(topics)]
    frequent = [word for word, _ in Counter(w for words in text for w in words).most_common(60)]
    numbers = {word: number for number, word in enumerate(frequent)}
    counts = torch.zeros(len(frequent), len(frequent), dtype=torch.float64)
    for words in text:
        codes = [numbers.get(word, -1) for word in words]
        for gap in range(1, REACH + 1):
            for first, second in zip(codes, codes[gap:]):
                if first >= 0 and second >= 0:
                    counts[first, second] += 1
                    counts[second, first] += 1
    kept: list[int] = []  # a pair that never meets has a PMI of minus infinity
    for word in range(len(frequent)):
        if len(kept) < WORDS and (counts[word, [*kept, word]] > 0).all():
            kept.append(word)
    return [frequent[word] for word in kept], counts[kept][:, kept]


def mutual_information(counts: Tensor) -> Tensor:
    """log P(w, c) / (P(w) P(c)), (word, word)."""
    joint = counts / counts.sum()
    return (joint / (joint.sum(1, keepdim=True) * joint.sum(0))).log()


def train(counts: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of words and of contexts, (word, rank), at the minimum of the expected loss."""
    generator = torch.Generator().manual_seed(seed)
    words, contexts = (
        (
            0.1 * torch.randn(len(counts), rank, generator=generator, dtype=torch.float64)
        ).requires_grad_()
        for _ in range(2)
    )
    joint = counts / counts.sum()
    chance = NEGATIVES * joint.sum(1, keepdim=True) * joint.sum(0)

    def loss() -> Tensor:
        scores = words @ contexts.T
        return -(joint * F.logsigmoid(scores) + chance * F.logsigmoid(-scores)).sum()

    optimiser = torch.optim.LBFGS(
        [words, contexts],
        max_iter=5_000,
        max_eval=10_000,
        tolerance_grad=1e-12,
        tolerance_change=0,
        history_size=100,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
    return words.detach(), contexts.detach()


@dataclass(frozen=True)
class Shown:
    """Words, the scores that were trained, what they should be, and the attention they make."""

    words: list[str]
    scores: Tensor
    target: Tensor
    weights: Tensor


def study(quick: bool, seed: int) -> Outcome:
    words, counts = co_occurrence()
    target = mutual_information(counts) - torch.tensor(NEGATIVES).log()
    queries, keys = train(counts, len(words), seed)
    scores = queries @ keys.T
    joint = counts / counts.sum()
    attended = regard.attend(
        queries[None, None],
        keys[None, None],
        keys[None, None],
        bias=joint.sum(0).log()[None, None, None],
        scale=1.0,
        weights=True,
    )
    weights = attended.weights[0, 0]
    conditional = joint / joint.sum(1, keepdim=True)
    figures = [
        Figure(
            "largest |w·c − (PMI − log k)|",
            0.0,
            (scores - target).abs().max().item(),
            1e-3,
            "Levy & Goldberg, eq. 11",
        ),
        Figure(
            "largest |attention − P(c | w)|",
            0.0,
            (weights - conditional).abs().max().item(),
            1e-4,
            "softmax(PMI + log P(c))",
        ),
    ]
    return Outcome(figures, Shown(words, scores, target, weights))


def draw(outcome: Outcome, figure: Any) -> None:
    """Scores over PMI − log k, and the attention between the words."""
    shown = outcome.shown
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    left.plot(
        shown.target.flatten().numpy(),
        shown.scores.flatten().numpy(),
        ".",
        markersize=3,
        color="C0",
    )
    left.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    left.set(xlabel="PMI(w, c) − log k, counted", ylabel="w · c, trained")
    numbers = range(len(shown.words))
    image = right.imshow(shown.weights.numpy(), cmap="viridis", vmin=0)
    right.set_xticks(numbers, shown.words, rotation=90)
    right.set_yticks(numbers, shown.words)
    right.set_ylabel("word")
    right.spines[:].set_visible(False)
    figure.colorbar(image, ax=right, label="attention, P(c | w)")


if __name__ == "__main__":
    main(__doc__, study, draw)
