"""BLEU and chrF of translations, as sacrebleu counts them, with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import MissingExtraError, RegardError
from regard.translate.evaluation.options import EvaluationOptions


@dataclass(frozen=True)
class Score:
    """A score from 0 to 100, with sacrebleu's signature."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of a set of translations."""

    bleu: Score
    chrf: Score
    sentences: int

    def __str__(self) -> str:
        return f"{self.bleu}\n{self.chrf}"


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    options: EvaluationOptions | None = None,
) -> Scores:
    """BLEU (Papineni et al., 2002) and chrF (Popović, 2015), computed by sacrebleu (Post, 2018).

    >>> scores = score(["the cat sat on the mat"], ["the cat sat on a mat"])
    >>> round(scores.bleu.value, 1)
    53.7
    >>> scores.bleu.signature  # doctest: +ELLIPSIS
    'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...'

    Args:
        hypotheses: the translations, as natural text.
        references: a reference translation for each.
        options: case and tokeniser; the defaults of `EvaluationOptions` when None.
    """
    check_parallel(hypotheses=hypotheses, references=references)
    scores = []
    for metric in metrics(options).values():
        result = metric.corpus_score(list(hypotheses), [list(references)])
        scores.append(Score(result.name, float(result.score), str(metric.get_signature())))
    bleu, chrf = scores
    return Scores(bleu, chrf, len(hypotheses))


def metrics(options: EvaluationOptions | None = None) -> dict[str, Any]:
    """Sacrebleu's metrics, by name."""
    options = EvaluationOptions() if options is None else options
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "translate") from error
    # `force` only silences a warning that text looks tokenised; it changes no score.
    bleu = BLEU(lowercase=options.lower, tokenize=options.tokenizer, force=True)
    return {"BLEU": bleu, "chrF": CHRF(lowercase=options.lower)}


def has_bleu(references: Sequence[str], options: EvaluationOptions) -> bool:
    """Whether any reference has the four tokens that BLEU needs."""
    bleu = metrics(options)["BLEU"]
    tokenised = (bleu.tokenizer(text.rstrip()).split() for text in references)
    return any(len(words) >= bleu.max_ngram_order for words in tokenised)


def check_parallel(**texts: Sequence[str]) -> None:
    """Refuse empty lists of sentences, and lists of different lengths."""
    sizes = {name: len(sentences) for name, sentences in texts.items()}
    for name, sentences in texts.items():
        if isinstance(sentences, str):
            raise RegardError(f"{name}={sentences!r:.40}, expected a list of sentences")
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{size} {name}" for name, size in sizes.items())
        raise RegardError(f"there are {counts}; expected as many of each")
    if not all(sizes.values()):
        raise RegardError(f"there are no {next(iter(sizes))}: nothing can be scored")
