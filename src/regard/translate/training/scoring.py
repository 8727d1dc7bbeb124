"""Scores of a model on held-out pairs: loss and accuracy, BLEU and chrF of its translations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import torch

from regard.translate.checkpoint import Checkpoint
from regard.translate.confidence import Confidence
from regard.translate.config import TrainingConfig
from regard.translate.data import Examples, Pair, batches, collate, padded
from regard.translate.evaluation import EvaluationOptions, Score, Scores, score
from regard.translate.evaluation.scores import chrf_of_each
from regard.translate.models.contract import TranslationModel
from regard.translate.search import Hypothesis, SearchOptions, beam_search
from regard.translate.tokens import END
from regard.translate.training.loss import cross_entropy
from regard.translate.vocabulary import Vocabulary, tidy, tokenise

_SENTENCES = 64  # translated at once
_CALIBRATED = 400  # pairs, about, by which confidence is calibrated


@torch.inference_mode()
def loss_and_accuracy(
    model: TranslationModel, examples: Examples, config: TrainingConfig, device: torch.device
) -> tuple[float, float]:
    """Teacher-forced loss in nats per target token, without smoothing, and token accuracy."""
    tokens = max(config.batch_tokens, max(map(len, examples.target), default=1))
    total = torch.zeros(2, dtype=torch.float64)
    for numbers in batches(examples, tokens=tokens, seed=0, epoch=0, shuffle=False):
        batch = collate(examples, numbers).to(device)
        logits = model(batch.source, batch.source_mask, batch.target_in, batch.target_mask)
        target = batch.target_out[batch.target_mask]
        right = (logits.argmax(-1) == target).sum()
        total += torch.stack([cross_entropy(logits, target).double(), right.double()]).cpu()
    loss, right = (total / sum(map(len, examples.target))).tolist()
    return loss, right


def translate_texts(
    checkpoint: Checkpoint, texts: Sequence[str], options: SearchOptions, device: torch.device
) -> list[str]:
    """The best translation of each text."""
    best = _best_of_each(checkpoint, texts, options, device)
    return [checkpoint.target.decode(hypothesis.tokens) for hypothesis in best]


def calibrated(
    checkpoint: Checkpoint, pairs: Sequence[Pair], options: SearchOptions, device: torch.device
) -> Confidence:
    """How the log-probability of translations tells their chrF, by some hundred pairs."""
    pairs = spread(pairs, _CALIBRATED)
    best = _best_of_each(checkpoint, [pair.source for pair in pairs], options, device)
    texts = [checkpoint.target.decode(hypothesis.tokens) for hypothesis in best]
    means = [each.log_probability / max(1, len(each.tokens)) for each in best]
    return Confidence.fitted(means, chrf_of_each(texts, [pair.target for pair in pairs]))


def spread(pairs: Sequence[Pair], count: int) -> Sequence[Pair]:
    """About so many of the pairs, or all, at even distances."""
    return pairs[:: max(1, len(pairs) // count)]


def translations_at_the_end(valid: Sequence[Pair], test: Sequence[Pair]) -> int:
    """How many sentences are translated for the final scores of both translators."""
    return 2 * (len(valid) + len(test) + len(spread(valid, _CALIBRATED)))


@torch.inference_mode()
def _best_of_each(
    checkpoint: Checkpoint, texts: Sequence[str], options: SearchOptions, device: torch.device
) -> list[Hypothesis]:
    """The best hypothesis of each text, in batches of similar length, the longest first."""
    model = checkpoint.model
    sentences = [_numbers(checkpoint.source, text, model.longest_source) for text in texts]
    remaining = iter(sorted(range(len(texts)), key=lambda index: -len(sentences[index])))
    by_text: dict[int, Hypothesis] = {}
    while indices := list(islice(remaining, _SENTENCES)):
        tokens, mask = padded([sentences[index] for index in indices])
        hypotheses = beam_search(model, tokens.to(device), mask.to(device), options, weights=False)
        by_text |= {index: best for index, (best, *_) in zip(indices, hypotheses)}
    return [by_text[index] for index in range(len(texts))]


def score_pairs(
    checkpoint: Checkpoint, pairs: Sequence[Pair], options: SearchOptions, device: torch.device
) -> Scores:
    """BLEU and chrF of translated pairs; case-insensitive if the vocabulary is lower-case."""
    texts = translate_texts(checkpoint, [pair.source for pair in pairs], options, device)
    references = [pair.target for pair in pairs]
    return score(texts, references, EvaluationOptions(lower=checkpoint.target.lower))


def _numbers(vocabulary: Vocabulary, text: str, longest: int | None) -> list[int]:
    """A source as numbers, truncated to the longest that the model reads."""
    numbers = vocabulary.encode(text)
    return [*(numbers if longest is None else numbers[: longest - 1]), END]


@dataclass(frozen=True)
class FinalScores:
    """Scores of a translator on some pairs.

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | `bleu`       | sacreBLEU of natural text, cut by 13a; lower case where the vocabulary is  |
    | `chrf`       | chrF of natural text, likewise                                             |
    | `words_bleu` | BLEU of lower-cased words, as public notebooks on Multi30k count           |
    | `sentences`  | how many pairs                                                             |

    For `words_bleu` translations and references are put in lower case and cut into words by
    `regard.translate.vocabulary.tokenise`; sacrebleu then cuts no more (`tok:none`).
    """

    bleu: Score
    chrf: Score
    words_bleu: Score
    sentences: int


Scored = Mapping[tuple[str, str], FinalScores]  #: by translator and part


def final_scores(
    checkpoint: Checkpoint, pairs: Sequence[Pair], options: SearchOptions, device: torch.device
) -> FinalScores:
    """Translate the sources of pairs and score the translations."""
    texts = translate_texts(checkpoint, [pair.source for pair in pairs], options, device)
    references = [pair.target for pair in pairs]
    natural = score(texts, references, EvaluationOptions(lower=checkpoint.target.lower))
    words = score(
        list(map(lower_words, texts)),
        list(map(lower_words, references)),
        EvaluationOptions(lower=True, tokenizer="none"),
    )
    return FinalScores(natural.bleu, natural.chrf, words.bleu, len(pairs))


def lower_words(text: str) -> str:
    """A text in lower case with a space between all words.

    >>> lower_words("Je t'aime, Marie.")
    "je t' aime , marie ."
    """
    return " ".join(tokenise(tidy(text.lower())))


def as_json(scores: Scored, search: SearchOptions) -> str:
    """All scores with their signatures, and the search options."""
    by_translator: dict[str, dict[str, object]] = {}
    for (translator, split), split_scores in scores.items():
        by_translator.setdefault(translator, {})[split] = asdict(split_scores)
    return json.dumps({"scores": by_translator, "search": asdict(search)}, indent=1) + "\n"
