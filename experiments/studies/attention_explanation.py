"""Attention is not explanation, and not not explanation: both sides, on models trained here.

A review is twelve words, one of which says whether it is good. A model reads it with a
bidirectional LSTM, attends from a summary token, and judges.

- Jain and Wallace 2019, "Attention is not Explanation": look for other weights, as different as can
  be, that give the same answer. The LSTM has told every position what all words say, so there are
  some: with it, weights do not determine the answer, nor the answer the weights.
- Wiegreffe and Pinter 2019, "Attention is not not Explanation": ask first whether the task needs
  attention (here a model with uniform weights judges as well). And the weights carry something: a
  model without an encoder that was trained under them judges well by them, and badly by the
  adversary's.
- Where each position knows its own word only, adversaries get less far: both papers find weights
  closer to what matters there. But they are not bound to the answer. A class that the model assumes
  without evidence needs no weight on any word, and words that never had weight in training may
  count as evidence for anything. So that is reported apart, for reviews of the other class.
- The faithfulness table of `regard.explain` asks the third question: does the answer change if the
  words that got most are taken away? It does, whatever the adversary says.

    python experiments/studies/attention_explanation.py [--quick] [--picture FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import explain
from regard.cli.packaged.studies.reader import BAD, GOOD, VOCABULARY, Reader, Recurrent

WORDS, STEPS = 12, 300
FIRST_PLAIN = 1 + len(GOOD) + len(BAD)
EXAMPLES = 100  #: that adversaries are looked for
SMOOTHING = 0.1  #: of the labels, so that an answer is not so sure that nothing changes it
EPSILON = 0.01  #: change of the answer that an adversary may make


def reviews(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Words (review, word) behind the summary token, whether each is good, and where it says so."""
    words = torch.randint(FIRST_PLAIN, len(VOCABULARY), (count, WORDS + 1), generator=generator)
    good = torch.randint(2, (count,), generator=generator)
    which = torch.randint(len(GOOD), (count,), generator=generator)
    places = torch.randint(1, WORDS + 1, (count,), generator=generator)
    words[:, 0] = 0
    words[torch.arange(count), places] = torch.where(good == 1, 1, 1 + len(GOOD)) + which
    return words, good, places


#: Rows of the faithfulness table that are kept.
METHODS = ("attention", "gradient norm", "random", "adversary")

Weighting = Callable[[Tensor], Tensor]


def train(encoder: nn.Module, seed: int, imposed: Weighting | None = None) -> Reader:
    """A reader; its own attention, or weights that are imposed on it, (review, word) by words."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Reader(encoder)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        words, good, _ = reviews(64, generator)
        if imposed is None:
            loss = F.cross_entropy(model(words), good, label_smoothing=SMOOTHING)
        else:
            scores = guided(model, words, imposed).log()
            loss = F.cross_entropy(scores, good, label_smoothing=SMOOTHING)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def guided(model: Reader, words: Tensor, imposed: Weighting) -> Tensor:
    """Probabilities with imposed weights, as the model's own attention would have been used."""
    return model.answer(model.encoder(model.embed(words)), imposed(words)).clamp_min(1e-9)


@torch.no_grad()
def attention_of(model: Reader, words: Tensor) -> Tensor:
    """The summary token's weights, (review, word)."""
    with regard.capture(model) as trace:
        model(words)
    return trace[0].weights()[:, 0, 0]


def adversary_of(model: Reader, words: Tensor, seed: int, restarts: int = 2) -> explain.Adversary:
    with torch.no_grad():
        features = model.encoder(model.embed(words))
    return explain.adversarial(
        attention_of(model, words),
        lambda weights: model.answer(features, weights),
        epsilon=EPSILON,
        restarts=restarts,
        steps=100,
        seed=seed,
    )


def accuracy(probabilities: Tensor, good: Tensor) -> float:
    return (probabilities.argmax(-1) == good).float().mean().item()


def uniform(words: Tensor) -> Tensor:
    return torch.full(words.shape, 1 / words.shape[1])


def shares(adversary: explain.Adversary) -> Tensor:
    """How far the adversary got, of the way there would be if the answer did not matter."""
    return adversary.divergence / adversary.largest


@torch.no_grad()
def assumed_class(model: Reader, words: Tensor, places: Tensor) -> int:
    """What the model answers with equal weights on all words but those that decide."""
    weights = torch.ones(words.shape).scatter(1, places[:, None], 0.0) / WORDS
    return int(model.answer(model.encoder(model.embed(words)), weights).mean(0).argmax())


@dataclass(frozen=True)
class Shown:
    """A review with its weights and the adversary's, how far adversaries got, and the table."""

    words: list[str]
    own: Tensor
    other: Tensor
    shares: dict[str, Tensor]
    comprehensive: dict[str, float]


def study(quick: bool, seed: int) -> Outcome:
    with_lstm = train(Recurrent(), seed)
    without = train(nn.Identity(), seed)
    words, good, places = reviews(EXAMPLES, torch.Generator().manual_seed(1000 + seed))
    of_lstm, of_words = (adversary_of(model, words, seed) for model in (with_lstm, without))

    against_lstm, against_words = shares(of_lstm), shares(of_words)
    evident = good != assumed_class(without, words, places)  # reviews that need their evidence

    guide = train(nn.Identity(), seed, lambda words: attention_of(with_lstm, words))
    blind = train(nn.Identity(), seed, uniform)
    own = attention_of(with_lstm, words)
    with torch.no_grad():
        right = accuracy(with_lstm(words).softmax(-1), good)
        by_own = accuracy(guided(guide, words, lambda _: own), good)
        by_other = accuracy(guided(guide, words, lambda _: of_lstm.weights), good)
        by_none = accuracy(guided(blind, words, uniform), good)
    faithfulness = explain.evaluate(
        with_lstm,
        {"words": words},
        {"attention": own, "adversary": of_lstm.weights},
        special=[0],
        bins=[1 / WORDS],
        replacements=[explain.MeanEmbedding()],
    )
    comprehensive = {
        name: faithfulness.interval(name, "comprehensiveness").mean for name in METHODS
    }
    figures = [
        Figure("accuracy, LSTM and attention", 1.0, right, 0.03, "the task"),
        Figure("adversary with LSTM, of the way", 0.5, against_lstm.mean().item(), 0, "J. & W.",
               "at least"),
        Figure("largest change of its answer", EPSILON, of_lstm.change.max().item(), 1e-6, "bound",
               "at most"),
        Figure("adversary without LSTM, of the way", against_lstm.mean().item(),
               against_words.mean().item(), 0, "less than with", "at most"),
        Figure("the same, class not assumed", 0.4, against_words[evident].mean().item(), 0,
               "our guess", "at most", asserted=False),
        Figure("accuracy guided by its attention", 0.9, by_own, 0, "W. & P.", "at least"),
        Figure("the same, by the adversary's", by_own - 0.1, by_other, 0, "W. & P.", "at most"),
        Figure("trained with uniform weights", 1.0, by_none, 0.03, "needs no attention"),
        Figure("comprehensiveness, attention", 2 * comprehensive["random"],
               comprehensive["attention"], 0, "twice random", "at least"),
        Figure("comprehensiveness, the adversary's", comprehensive["attention"] / 2,
               comprehensive["adversary"], 0, "half of attention", "at most"),
    ]  # fmt: skip
    example = int(own[:, 1:].max(-1).values.argmax())
    shown = Shown(
        [VOCABULARY[word] for word in words[example].tolist()],
        own[example],
        of_lstm.weights[example],
        {"all words": against_lstm, "its own": against_words},
        comprehensive,
    )
    return Outcome(figures, shown, with_lstm)


def draw(outcome: Outcome, figure: Any) -> None:
    """One review with two explanations, how far adversaries got, and what the words are worth."""
    shown = outcome.shown
    review, shares, worth = figure.subplots(1, 3, width_ratios=[1.3, 1, 1.1])
    rows = torch.arange(len(shown.words))
    review.barh(rows - 0.2, shown.own, 0.4, color="C0", label="its own")
    review.barh(
        rows + 0.2,
        shown.other,
        0.4,
        color="white",
        edgecolor="C1",
        hatch="////",
        label="the adversary's",
    )
    review.set_yticks(rows, shown.words)
    review.invert_yaxis()
    review.set(xlabel="weight")
    review.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    shares.boxplot(list(shown.shares.values()), tick_labels=list(shown.shares), widths=0.5)
    shares.set(
        ylabel="divergence reached, of the largest", ylim=(0, 1.04), xlabel="a position knows"
    )
    worth.barh(list(shown.comprehensive), list(shown.comprehensive.values()), color="0.5")
    worth.invert_yaxis()
    worth.set(xlabel="comprehensiveness")


if __name__ == "__main__":
    main(__doc__, study, draw)
