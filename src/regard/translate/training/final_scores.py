"""What the translators of a finished run score, counted in two ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from regard.translate.checkpoint import Checkpoint
from regard.translate.config import SearchConfig
from regard.translate.data import Pair
from regard.translate.evaluation import Score, score
from regard.translate.training.validation import translate_texts
from regard.translate.vocabulary import tidy, tokenise


@dataclass(frozen=True)
class FinalScores:
    """What a translator scores on some pairs.

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
    checkpoint: Checkpoint, pairs: Sequence[Pair], config: SearchConfig, device: torch.device
) -> FinalScores:
    """Translate some pairs' sources and score what came of it."""
    texts = translate_texts(checkpoint, [pair.source for pair in pairs], config, device)
    references = [pair.target for pair in pairs]
    natural = score(texts, references, lower=checkpoint.target.lower)
    words = score(
        list(map(lower_words, texts)),
        list(map(lower_words, references)),
        lower=True,
        tokenizer="none",
    )
    return FinalScores(natural.bleu, natural.chrf, words.bleu, len(pairs))


def lower_words(text: str) -> str:
    """A text in lower case with a space between all words.

    >>> lower_words("Je t'aime, Marie.")
    "je t' aime , marie ."
    """
    return " ".join(tokenise(tidy(text.lower())))


def as_json(scores: Scored, search: SearchConfig) -> str:
    """All scores with their signatures, and the search that found the translations."""
    found: dict[str, dict[str, object]] = {}
    for (translator, part), one in scores.items():
        found.setdefault(translator, {})[part] = asdict(one)
    return json.dumps({"scores": found, "search": asdict(search)}, indent=1) + "\n"
