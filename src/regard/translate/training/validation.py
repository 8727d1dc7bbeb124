"""How a model does on pairs it does not learn from: loss, accuracy, and scores of translations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from regard.translate.checkpoint import Checkpoint
from regard.translate.config import SearchConfig, TrainingConfig
from regard.translate.data import Examples, Pair, batches, collate, padded
from regard.translate.evaluation import Scores, score
from regard.translate.models.contract import TranslationModel
from regard.translate.search import search
from regard.translate.tokens import END
from regard.translate.training.loss import cross_entropy
from regard.translate.vocabulary import Vocabulary

_SENTENCES = 64  # translated at once


@torch.inference_mode()
def loss_and_accuracy(
    model: TranslationModel, examples: Examples, config: TrainingConfig, device: torch.device
) -> tuple[float, float]:
    """Nats a target token, without smoothing, and the share of tokens that are the model's first
    choice, each with the true tokens before it given."""
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


@torch.inference_mode()
def translate_texts(
    checkpoint: Checkpoint, texts: Sequence[str], config: SearchConfig, device: torch.device
) -> list[str]:
    """The best translation of each text; the longest sentences first, in batches of like length."""
    model = checkpoint.model
    sentences = [_numbers(checkpoint.source, text, model.longest_source) for text in texts]
    remaining = iter(sorted(range(len(texts)), key=lambda place: -len(sentences[place])))
    found = [""] * len(texts)
    while places := list(islice(remaining, _SENTENCES)):
        tokens, mask = padded([sentences[place] for place in places])
        hypotheses = search(
            model,
            tokens.to(device),
            mask.to(device),
            beam=config.beam,
            length_penalty=config.length_penalty,
            coverage_penalty=config.coverage_penalty,
            longest=config.longest or None,
            unknown=config.unknown,
            weights=False,
        )
        for place, (best, *_) in zip(places, hypotheses):
            found[place] = checkpoint.target.decode(best.tokens)
    return found


def score_pairs(
    checkpoint: Checkpoint, pairs: Sequence[Pair], config: SearchConfig, device: torch.device
) -> Scores:
    """BLEU and chrF of the translations of pairs; in lower case where the vocabulary is."""
    texts = translate_texts(checkpoint, [pair.source for pair in pairs], config, device)
    return score(texts, [pair.target for pair in pairs], lower=checkpoint.target.lower)


def _numbers(vocabulary: Vocabulary, text: str, longest: int | None) -> list[int]:
    """A source as numbers; cut at its end where the model has no place for more."""
    numbers = vocabulary.encode(text)
    return [*(numbers if longest is None else numbers[: longest - 1]), END]
