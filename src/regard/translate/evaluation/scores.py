"""BLEU and chrF of translations by sacrebleu, with signatures; of all sentences and by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from regard.errors import MissingExtraError, RegardError

Tokenizer = Literal["13a", "intl", "char", "zh", "none"]
TOKENIZERS: tuple[Tokenizer, ...] = get_args(Tokenizer)


@dataclass(frozen=True)
class EvaluationOptions:
    """How translations are scored.

    | field       | meaning                                                                     |
    |-------------|-----------------------------------------------------------------------------|
    | `lower`     | ignore case                                                                 |
    | `tokenizer` | sacrebleu's tokeniser for BLEU: "13a" (the standard), "intl", "char", "zh", |
    |             | or "none" for tokenised text; chrF counts characters and needs none         |
    | `edges`     | lengths in words at which a new bucket begins, rising; none for no buckets  |
    | `resamples` | number of bootstrap resamples                                               |
    | `examples`  | how many sentences to return on which two systems differ most               |
    """

    lower: bool = False
    tokenizer: Tokenizer = "13a"
    edges: tuple[int, ...] = (10, 20, 30, 40, 50)
    resamples: int = 1000
    examples: int = 5

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise RegardError(
                f"tokenizer={self.tokenizer!r}, expected one of {', '.join(TOKENIZERS)}"
            )
        if not all(low < high for low, high in pairwise((0, *self.edges))):
            raise RegardError(f"edges={self.edges}, expected rising numbers above 0")
        if self.resamples < 1:
            raise RegardError(f"resamples={self.resamples}, expected 1 or more")
        if self.examples < 0:
            raise RegardError(f"examples={self.examples}, expected 0 or more")


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


def chrf_of_each(texts: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each text against its reference, from 0 to 1."""
    metric = metrics()["chrF"]
    pairs = zip(texts, references, strict=True)
    return [metric.sentence_score(text, [reference]).score / 100 for text, reference in pairs]


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


@dataclass(frozen=True)
class Bucket:
    """Scores of the sentences in a range of lengths.

    | field  | meaning                                                                        |
    |--------|--------------------------------------------------------------------------------|
    | `low`  | minimum length in words                                                        |
    | `high` | maximum length plus one; None for no limit                                     |
    | `bleu` | None if the bucket is empty, or no reference has the four tokens that BLEU     |
    |        | needs: even a perfect translation would have 0                                 |
    | `chrf` | None if the bucket is empty                                                    |
    """

    low: int
    high: int | None
    sentences: int
    bleu: Score | None
    chrf: Score | None

    @property
    def name(self) -> str:
        """The range of lengths in words, as text."""
        if self.high is None:
            return f"{self.low} and more"
        return f"{self.low} to {self.high - 1}" if self.high - self.low > 1 else str(self.low)


def buckets(
    hypotheses: Sequence[str],
    references: Sequence[str],
    options: EvaluationOptions | None = None,
    *,
    sources: Sequence[str] | None = None,
) -> list[Bucket]:
    """Scores by sentence length, in words separated by spaces.

    >>> options = EvaluationOptions(edges=(3,))
    >>> by_length = buckets(["a b", "a b c d"], ["a b", "a b x d"], options)
    >>> [(bucket.name, bucket.sentences) for bucket in by_length]
    [('0 to 2', 1), ('3 and more', 1)]

    Args:
        hypotheses: the translations.
        references: a reference translation for each.
        options: `edges`, case and tokeniser; the defaults of `EvaluationOptions` when None.
        sources: the source sentences; lengths are then theirs, else those of the references.
    """
    options = EvaluationOptions() if options is None else options
    measured = references if sources is None else sources
    side = "references" if sources is None else "sources"
    check_parallel(**{"hypotheses": hypotheses, "references": references, side: measured})
    lengths = [len(text.split()) for text in measured]
    by_length = []
    for low, high in zip((0, *options.edges), (*options.edges, None)):
        chosen = [i for i, n in enumerate(lengths) if n >= low and (high is None or n < high)]
        outputs, targets = ([texts[i] for i in chosen] for texts in (hypotheses, references))
        scores = score(outputs, targets, options) if chosen else None
        bleu = scores.bleu if scores and has_bleu(targets, options) else None
        by_length.append(Bucket(low, high, len(chosen), bleu, scores.chrf if scores else None))
    return by_length
