"""BLEU and chrF of translations, as sacrebleu counts them, with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from regard.errors import MissingExtraError, RegardError

Tokenizer = Literal["13a", "intl", "char", "zh", "none"]
TOKENIZERS: tuple[Tokenizer, ...] = get_args(Tokenizer)


@dataclass(frozen=True)
class Score:
    """One figure, from 0 to 100, and the signature that says how it was counted."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


@dataclass(frozen=True)
class Scores:
    """What a set of translations scores."""

    bleu: Score
    chrf: Score
    sentences: int

    def __str__(self) -> str:
        return f"{self.bleu}\n{self.chrf}"


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lower: bool = False,
    tokenizer: Tokenizer = "13a",
) -> Scores:
    """BLEU (Papineni et al., 2002) and chrF (Popović, 2015) of translations.

    Sacrebleu (Post, 2018) counts them.

    >>> found = score(["the cat sat on the mat"], ["the cat sat on a mat"])
    >>> round(found.bleu.value, 1)
    53.7
    >>> found.bleu.signature  # doctest: +ELLIPSIS
    'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...'

    Args:
        hypotheses: the translations, as natural text.
        references: what each of them should have been.
        lower: count in lower case.
        tokenizer: how BLEU cuts text into words: "13a" (the standard), "intl", "char", "zh", or
            "none" for text that has been cut already. chrF counts letters and needs none.
    """
    check_parallel(hypotheses=hypotheses, references=references)
    found = []
    for metric in metrics(lower, tokenizer).values():
        made = metric.corpus_score(list(hypotheses), [list(references)])
        found.append(Score(made.name, float(made.score), str(metric.get_signature())))
    bleu, chrf = found
    return Scores(bleu, chrf, len(hypotheses))


def metrics(lower: bool, tokenizer: Tokenizer) -> dict[str, Any]:
    """Sacrebleu's counters, by name."""
    if tokenizer not in TOKENIZERS:
        raise RegardError(f"tokenizer={tokenizer!r}, expected one of {', '.join(TOKENIZERS)}")
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise MissingExtraError("sacrebleu", "translate") from error
    # `force` only silences a warning that text looks tokenised; it changes no figure.
    bleu = BLEU(lowercase=lower, tokenize=tokenizer, force=True)
    return {"BLEU": bleu, "chrF": CHRF(lowercase=lower)}


def has_bleu(references: Sequence[str], tokenizer: Tokenizer) -> bool:
    """Whether any of these is long enough, as BLEU cuts it, to have a group of four words."""
    bleu = metrics(False, tokenizer)["BLEU"]
    cut = (bleu.tokenizer(text.rstrip()).split() for text in references)
    return any(len(words) >= bleu.max_ngram_order for words in cut)


def check_parallel(**texts: Sequence[str]) -> None:
    """Refuse texts that have no sentences, or not as many as each other."""
    sizes = {name: len(sentences) for name, sentences in texts.items()}
    for name, sentences in texts.items():
        if isinstance(sentences, str):
            raise RegardError(f"{name}={sentences!r:.40}, expected a list of sentences")
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{size} {name}" for name, size in sizes.items())
        raise RegardError(f"there are {said}; expected as many of each")
    if not all(sizes.values()):
        raise RegardError(f"there are no {next(iter(sizes))}: nothing can be scored")
