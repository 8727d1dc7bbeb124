"""A trained translator: text in, translation and alignment out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import RegardError
from regard.progress import progress
from regard.record import Trace
from regard.translate.alignment import (
    End,
    Head,
    Matrix,
    Reading,
    head_named,
    heads_of,
)
from regard.translate.alignment.heads import shown_head
from regard.translate.alignment.matrix import check_end, check_reading
from regard.translate.capitals import as_sentence, in_capitals, with_capitals
from regard.translate.checkpoint import Checkpoint, load_checkpoint
from regard.translate.confidence import familiarity_of, unsure
from regard.translate.copying import missing_addresses, missing_numbers, needs_copies
from regard.translate.data import padded
from regard.translate.data.sentences import cut_in_parts, has_words, split_sentences
from regard.translate.ensembles import ensemble
from regard.translate.joining import joined
from regard.translate.models.layout import lay_out_for_search
from regard.translate.reader import Reader, SourceBatch, inner_sites
from regard.translate.search import Hypothesis, SearchOptions, beam_search, beam_search_steps
from regard.translate.shipped import SHIPPED
from regard.translate.tokens import END, UNKNOWN
from regard.translate.translation import Translation
from regard.translate.vocabulary.contract import unknown_words

__all__ = ["Translation", "Translator"]

_CELLS = 1 << 18  # source tokens × source tokens of a batch: attention takes so much of each head
_TOKENS = 4  # tokens for each of the words that a model learned from at most
_CHARACTERS = 40  # characters for each of them: what is longer need not be tokenised


class Translator:
    """Translates text, and shows which source word each target word attends to.

    A model without attention from target to source has no `head`; `inside` then names the sites of
    its encoder's self-attention, if any.

    Args:
        checkpoint: a trained model with its vocabularies.
        head: the head whose attention matrices show, as a `Head` or by name: "3.cross:5", or
            "3.cross" for the mean of its heads. By default the checkpoint's preferred head, else
            the mean of the heads of the last layer but one (or of the only layer).
        reading: which row belongs to a word: "output" or "input". By default the one stored with
            the preferred head, else the model's own.
        end: what becomes of attention to the end of the source, as in `alignment.word_matrix`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        head: Head | str | None = None,
        reading: Reading | None = None,
        end: End = "left out",
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise RegardError(
                f"checkpoint is {checkpoint!r:.60}, expected a Checkpoint; Translator.load(path) "
                "reads one from a file"
            )
        self.checkpoint = checkpoint
        self.model = checkpoint.model
        shown, own_reading = shown_head(self.model, checkpoint.extra)
        chosen = shown if head is None else head
        self.head = None if chosen is None else _known_head(chosen, self.model.sites)
        if reading is None:
            reading = own_reading if self.head == shown else self.model.reading
        self.reading: Reading = reading
        self.end: End = end
        check_reading(self.reading)
        check_end(end)
        self.inside = [] if self.model.sites else inner_sites(self.model)
        self._familiarity = familiarity_of(checkpoint.extra)
        self._reader = Reader(checkpoint, self.head, self.reading, end)

    @classmethod
    def load(
        cls,
        path: str | Path | Sequence[str | Path] | None = None,
        *,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> Translator:
        """The translator of a checkpoint, or one that ships: `english-french`, `french-english`.

        Without a path: `english-french`. Several paths are an ensemble, of the same vocabularies.
        """
        path = SHIPPED[0] if path is None else path
        paths = [path] if isinstance(path, str | Path) else list(path)
        checkpoints = [load_checkpoint(each, device) for each in paths]
        for checkpoint in checkpoints:
            lay_out_for_search(checkpoint.model)
        if len(checkpoints) == 1:
            return cls(checkpoints[0], **options)
        return cls(ensemble(checkpoints), **options)

    def __repr__(self) -> str:
        looks = "no attention to the source" if self.head is None else f"reads {self.head}"
        return f"Translator({self.checkpoint.config.model.name}, {looks})"

    def __call__(self, text: str, *, prefix: str | None = None, **options: Any) -> Translation:
        """The best translation of one text; options as for `translate`."""
        if options.get("n_best", 1) != 1:
            raise RegardError(
                "a call gives the best translation; .translate([text], n_best=…) more"
            )
        if not isinstance(text, str) and isinstance(text, Iterable):
            raise RegardError("text is a list, expected one text; .translate(texts) takes several")
        prefixes = None if prefix is None else [_one_text("prefix", prefix)]
        return self.translate([text], prefix=prefixes, **options)[0][0]

    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int = 1,
        batch: int = 64,
        prefix: Sequence[str] | None = None,
        weights: bool = True,
        empty: bool = False,
        split: bool = True,
        copy: bool = True,
        show: bool | None = False,
        **search: Any,
    ) -> list[list[Translation]]:
        """The best translations of each text, best first: one list per text.

        Args:
            texts: the texts.
            n_best: maximum number of translations per text, at most the beam width. All are
                different; there may be fewer, as two hypotheses can decode to the same text. Those
                of a text of several sentences have the n-th of each, or its last. With `sample` so
                many samples, equal ones too.
            batch: maximum number of sentences that go through the model at once, sorted by length;
                long ones go in smaller batches, so that memory stays bounded.
            prefix: for each text, what its translation must begin with. A model of subwords may
                continue the last word of it.
            weights: whether to keep attention; without it, translations have no matrix.
            empty: whether to accept empty texts, which have no translations; an error otherwise.
            split: whether to translate sentence by sentence, and what is longer than the pairs that
                the model learned from in parts (`limit`). Otherwise a text is one sentence.
            copy: whether to replace unknown words, and numbers that the source has not got, by the
                source words they attend to.
            show: whether to draw a progress bar; on a terminal when None.
            search: fields of `SearchOptions`, such as `beam=1`; the checkpoint's by default.
        """
        self._search_options("translate", search, copy)
        if not isinstance(texts, str) and isinstance(texts, Iterable):
            texts = list(texts)
            for number, text in enumerate(texts, 1):
                self._check_text(text, number, empty)
            _check_count(prefix, len(texts))
        return list(
            self.stream(
                texts,
                window=None,
                n_best=n_best,
                batch=batch,
                prefix=prefix,
                weights=weights,
                empty=empty,
                split=split,
                copy=copy,
                show=show,
                **search,
            )
        )

    def stream(
        self,
        texts: Iterable[str],
        *,
        window: int | None = 1024,
        n_best: int = 1,
        batch: int = 64,
        prefix: Iterable[str] | None = None,
        weights: bool = True,
        empty: bool = False,
        split: bool = True,
        copy: bool = True,
        show: bool | None = False,
        **search: Any,
    ) -> Iterator[list[Translation]]:
        """The results of `translate` one after the other; texts are read as they are needed.

        Args:
            texts: as for `translate`, and so are the other arguments; `prefix` may go on for ever.
            window: how many texts are sorted by length together, and held; all when None.
        """
        if isinstance(texts, str):
            raise RegardError("texts is one text, expected a list of them; call the translator")
        if not isinstance(texts, Iterable):
            raise RegardError(f"texts is {texts!r:.40}, expected a list of texts")
        for name, size in (("batch", batch), ("window", window)):
            if size is not None and size < 1:
                raise RegardError(f"{name} is {size}, expected at least 1")
        if isinstance(prefix, str):
            raise RegardError(f"prefix is one text, {prefix!r:.40}, expected a list: one a text")
        options = self._search_options("stream", search, copy)
        settings = _Settings(options, n_best, batch, weights, split, copy)
        total = len(texts) if isinstance(texts, Sized) else None

        def translated() -> Iterator[list[Translation]]:
            lines, prefixes = enumerate(texts, 1), None if prefix is None else iter(prefix)
            with progress("translating", total, show) as advance:
                while numbered := list(islice(lines, window)):
                    chosen = [text for _, text in numbered]
                    for number, text in numbered:
                        self._check_text(text, number, empty)
                    begins = None
                    if prefixes is not None:
                        own = enumerate(islice(prefixes, len(chosen)), numbered[0][0])
                        begins = [self._prefix_tokens(prefix, number) for number, prefix in own]
                        _check_count(begins, len(chosen))
                    yield from self._window(chosen, begins, settings)
                    advance(len(chosen))

        return translated()

    def _window(
        self, texts: list[str], prefixes: list[list[int]] | None, settings: _Settings
    ) -> Iterator[list[Translation]]:
        """The translations of some texts, whose sentences are sorted by length together."""
        plans = [self._plan(text, settings.split) for text in texts]
        parts = [
            _Part(text, place, part, self._encoded(part))
            for text, plan in enumerate(plans)
            for place, part in enumerate(plan.parts)
            if place not in plan.copied
        ]
        results: dict[tuple[int, int], list[Translation]] = {}
        samples = settings.n_best if settings.options.sample else 1
        for chunk in _batches(parts, max(1, settings.batch // samples)):
            forced = None
            if prefixes is not None:
                forced = [
                    prefixes[part.text] if part.place == plans[part.text].first else []
                    for part in chunk
                ]
            translations = self._batch(chunk, forced, settings)
            results |= zip([(part.text, part.place) for part in chunk], translations)
        for number, (text, plan) in enumerate(zip(texts, plans)):
            of_parts = [
                self._as_typed(plan, place, results.get((number, place), []), settings.weights)
                for place in range(len(plan.parts))
            ]
            yield self._joined(text, of_parts, plan.remarks)

    def _as_typed(
        self, plan: _Plan, place: int, translations: list[Translation], weights: bool
    ) -> list[Translation]:
        """The translations of a part, in capitals as it is; what was copied is its own."""
        if place in plan.copied:
            copied = self._reader.copied(plan.parts[place])
            return [copied if weights else _without_weights(copied)]
        typed = plan.capitals.get(place)
        if typed is None:
            return translations
        return [with_capitals(translation, typed) for translation in translations]

    def _joined(
        self, text: str, of_parts: list[list[Translation]], remarks: tuple[str, ...]
    ) -> list[Translation]:
        """The translations of a text: the n-th has the n-th of each part, or its last."""
        translations = []
        for rank in range(max(map(len, of_parts), default=0)):
            parts = [ranked[min(rank, len(ranked) - 1)] for ranked in of_parts]
            whole = joined(text, parts)
            lost = missing_numbers(text, whole.text) + missing_addresses(text, whole.text)
            lacks = [f"the translation lacks {_listed(lost)} of the source"] * bool(lost)
            own = (*remarks, *lacks, *_doubts(whole))
            translations.append(replace(whole, remarks=own))
        return translations

    @property
    def limit(self) -> int:
        """Maximum words of a sentence that is translated in one part: as the model learned from."""
        return self.checkpoint.config.data.longest

    def _plan(self, text: str, split: bool) -> _Plan:
        """The parts of a text that are translated one by one."""
        if not split:
            return _Plan([text.strip()] if self.checkpoint.source.encode(text) else [])
        parts: list[str] = []
        remarks: list[str] = []
        for sentence in split_sentences(text):
            cut = cut_in_parts(sentence, self._fits)
            if len(cut) > 1 and all(map(self._fits, cut)):
                remarks.append(
                    f"a sentence of {len(sentence.split()):,} words was translated in {len(cut)} "
                    f"parts, as the model learned from at most {self.limit}: {sentence:.30}…"
                )
            parts += [part for part in cut if self.checkpoint.source.encode(part[:_CHARACTERS])]
        capitals = {place: part for place, part in enumerate(parts) if self._strange_capitals(part)}
        parts = [as_sentence(part) if n in capitals else part for n, part in enumerate(parts)]
        strange = [part for part in parts if has_words(part) and self._unlike(part)]
        if strange:
            remarks.append(
                "unlike what the model learned from (another language, perhaps), so the "
                f"translation may be wrong: {_beginning(strange[0])}"
            )
        long = [place for place, part in enumerate(parts) if not self._fits(part)]
        remarks += [
            f"a word of {len(parts[place]):,} characters was copied: {parts[place]:.30}…"
            for place in long
        ]
        marks = [place for place, part in enumerate(parts) if not has_words(part)]
        return _Plan(parts, frozenset(long + marks), tuple(remarks), capitals)

    def _unlike(self, sentence: str) -> bool:
        """Whether a sentence is unlike those that the model learned from."""
        if self._familiarity is None or not self._fits(sentence):
            return False
        return self._familiarity.unlike(self._encoded(sentence))

    def _strange_capitals(self, sentence: str) -> bool:
        """Whether the model has fewer and better known pieces for a sentence in small letters."""
        if not in_capitals(sentence) or not self._fits(sentence):
            return False
        typed, small = (
            (tokens.count(UNKNOWN), len(tokens))
            for tokens in map(self._encoded, (sentence, as_sentence(sentence)))
        )
        return small < typed

    def _fits(self, sentence: str) -> bool:
        """Whether a sentence is as short as those that the model learned from."""
        if len(sentence) > _CHARACTERS * self.limit or len(sentence.split()) > self.limit:
            return False
        tokens = len(self.checkpoint.source.encode(sentence)) + 1
        most = self.model.longest_source
        return tokens <= min(_TOKENS * self.limit, math.inf if most is None else most)

    def _batch(
        self, parts: Sequence[_Part], prefixes: list[list[int]] | None, settings: _Settings
    ) -> list[list[Translation]]:
        """The translations of some sentences, all at once.

        For several per text, the whole beam is searched for, as two hypotheses may read the same.
        """
        batch = self._source_batch([part.tokens for part in parts])
        n_best, options = settings.n_best, settings.options
        hypotheses = beam_search(
            self.model,
            batch.source,
            batch.mask,
            options,
            n_best=n_best if n_best == 1 or options.sample else max(n_best, options.beam),
            prefix=prefixes,
            weights=settings.weights,
        )
        if not options.sample:
            hypotheses = [self._distinct(of_text)[:n_best] for of_text in hypotheses]
        texts = [part.source for part in parts]
        translations = self._reader.read(texts, hypotheses, batch, settings.weights, settings.copy)
        if settings.weights or not settings.copy:
            return translations
        for place, part in enumerate(parts):  # what is copied is found by attention
            if any(needs_copies(part.source, each.text) for each in translations[place]):
                alone = None if prefixes is None else [prefixes[place]]
                (seen,) = self._batch([part], alone, replace(settings, weights=True))
                translations[place] = [_without_weights(each) for each in seen]
        return translations

    def _distinct(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses whose text no better one has."""
        by_text: dict[str, Hypothesis] = {}
        for hypothesis in hypotheses:
            by_text.setdefault(self.checkpoint.target.decode(hypothesis.tokens), hypothesis)
        return list(by_text.values())

    def steps(
        self,
        text: str,
        *,
        prefix: str | None = None,
        weights: bool = True,
        split: bool = True,
        copy: bool = True,
        **search: Any,
    ) -> Iterator[Translation]:
        """The translation of one text as it grows, token by token; the last one is finished.

        Args:
            text: the text.
            prefix: what the translation must begin with.
            weights: as for `translate`, and so are `split` and `copy`.
            search: fields of `SearchOptions`, as for `translate`.
        """
        options = self._search_options("steps", search, copy)
        self._check_text(text, 1, False)
        forced = None if prefix is None else [self._prefix_tokens(_one_text("prefix", prefix), 1)]
        plan = self._plan(text, split)
        done: list[list[Translation]] = []
        for place, part in enumerate(plan.parts):
            if place in plan.copied:
                done.append(self._as_typed(plan, place, [], weights))
                yield self._joined(text, done, plan.remarks)[0]
                continue
            batch = self._source_batch([self._encoded(part)])
            growing: list[Translation] = []
            for hypothesis in beam_search_steps(
                self.model,
                batch.source,
                batch.mask,
                options,
                prefix=forced if place == plan.first else None,
                weights=weights,
            ):
                last = END in hypothesis.tokens
                (growing,) = self._reader.read(
                    [part], [[hypothesis]], batch, weights, copy and last
                )
                growing = self._as_typed(plan, place, growing, weights)
                yield self._joined(text, [*done, growing], plan.remarks if last else ())[0]
            done.append(growing)

    def between_spaces(self, translation: Translation) -> Matrix:
        """The matrix of the words between the spaces of both texts, as files of links count them.

        `matrix` of a translation has the tokeniser's words, which are smaller: punctuation and
        clitics stand apart. The end of the source is left out.

        Args:
            translation: one of this translator's.
        """
        return self._reader.between_spaces(translation)

    def _search_options(self, call: str, search: dict[str, Any], copy: bool) -> SearchOptions:
        """The checkpoint's options, and over them those of a call; None leaves one as it is.

        Where unknown words are to be copied and no attention says from where, there are none.
        """
        names = [field.name for field in fields(SearchOptions)]
        arguments = [*names, *signature(getattr(self, call)).parameters]
        valid = [name for name in arguments if name not in ("text", "texts", "search")]
        _check_known(call, search, valid)
        changed = {name: value for name, value in search.items() if value is not None}
        if copy and self.head is None:
            changed["unknown"] = False
        stored = self.checkpoint.config.search
        return replace(stored if changed.get("sample", True) else stored.unsampled, **changed)

    def _prefix_tokens(self, text: str, number: int) -> list[int]:
        """The tokens of a prefix, none of them unknown."""
        target = self.checkpoint.target
        tokens = target.encode(text)
        if UNKNOWN in tokens:
            words = ", ".join(unknown_words(tokens, target.words(text)))
            raise RegardError(
                f"prefix {number} is {text!r:.40}, but the model has no tokens for: {words}"
            )
        return tokens

    def _check_text(self, text: str, number: int, empty: bool) -> None:
        if not isinstance(text, str):
            raise RegardError(f"text {number} is {type(text).__name__}, expected a text")
        if not empty and not self._plan(text[:_CHARACTERS], False).parts:
            raise RegardError(f"text {number} is empty, expected a sentence: {text!r:.40}")

    def _encoded(self, sentence: str) -> list[int]:
        numbers = [*self.checkpoint.source.encode(sentence), END]
        limit = self.model.longest_source
        if limit is not None and len(numbers) > limit:
            raise RegardError(
                f"the text {sentence!r:.40} has {len(numbers)} tokens with its end, but the model "
                f"reads at most {limit}; split=True cuts it in parts"
            )
        return numbers

    def _source_batch(self, rows: list[list[int]]) -> SourceBatch:
        device = next(self.model.parameters()).device
        tokens, mask = padded(rows)
        return SourceBatch(self.model, tokens.to(device), mask.to(device))


@dataclass(frozen=True)
class _Settings:
    """How texts are translated: the arguments of `translate`."""

    options: SearchOptions
    n_best: int
    batch: int
    weights: bool
    split: bool
    copy: bool


@dataclass(frozen=True)
class _Plan:
    """The parts of a text as a model reads them.

    | field      | meaning                                                                   |
    |------------|---------------------------------------------------------------------------|
    | `copied`   | places of the parts that are only copied: too long, or marks alone        |
    | `remarks`  | what is to be said of the text                                            |
    | `capitals` | parts as they were typed, by place: those that are read in small letters  |
    """

    parts: list[str]
    copied: frozenset[int] = frozenset()
    remarks: tuple[str, ...] = ()
    capitals: Mapping[int, str] = field(default_factory=dict)

    @property
    def first(self) -> int | None:
        """The place of the first part that is translated."""
        return next((n for n in range(len(self.parts)) if n not in self.copied), None)


class _Part(NamedTuple):
    """A part of a text: which text, which of its parts, what it says, as tokens with the end."""

    text: int
    place: int
    source: str
    tokens: list[int]


def _batches(parts: list[_Part], most: int) -> Iterator[list[_Part]]:
    """Parts of like length, so many that their attention fits into memory."""
    chunk: list[_Part] = []
    for part in sorted(parts, key=lambda part: len(part.tokens)):
        if chunk and (len(chunk) >= most or (len(chunk) + 1) * len(part.tokens) ** 2 > _CELLS):
            yield chunk
            chunk = []
        chunk.append(part)
    if chunk:
        yield chunk


def _without_weights(translation: Translation) -> Translation:
    hypothesis = replace(translation.hypothesis, weights={})
    return replace(translation, hypothesis=hypothesis, matrix=None, inside=None, trace=Trace([]))


def _check_count(prefix: Sequence[Any] | None, count: int) -> None:
    if prefix is not None and not isinstance(prefix, str) and len(prefix) != count:
        raise RegardError(f"there are {count} texts, but {len(prefix)} prefixes")


def _doubts(translation: Translation) -> Iterator[str]:
    """What is to be said of sentences that have no translation, or a doubtful one."""
    sentences = translation.parts or (translation,)
    for sentence in sentences:
        if has_words(sentence.source) and not has_words(sentence.text):
            yield f"the translation has no word for: {_beginning(sentence.source)}"
    doubtful = [each for each in sentences if unsure(each.confidence)]
    if doubtful and not translation.parts:
        yield f"the model is unsure of this translation: confidence {doubtful[0].confidence:.2f}"
    elif doubtful:
        least = min(doubtful, key=lambda sentence: sentence.confidence or 0.0)
        yield (
            f"the model is unsure of {len(doubtful)} of {len(sentences)} sentences, most of "
            f"(confidence {least.confidence:.2f}): {_beginning(least.source)}"
        )


def _beginning(text: str) -> str:
    return f"{text:.30}{'…' * (len(text) > 30)}"


def _listed(words: list[str]) -> str:
    return ", ".join(words[:5]) + (f" and {len(words) - 5} more" if len(words) > 5 else "")


def _one_text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise RegardError(f"{name} is {value!r:.40}, expected a text, as there is one text")
    return value


def _check_known(call: str, search: dict[str, Any], options: list[str]) -> None:
    """Refuse an unknown option, and suggest the nearest one."""
    for name in search:
        if name not in options:
            near = get_close_matches(name, options, 1)
            meant = f"did you mean {near[0]}?" if near else f"there are: {', '.join(options)}"
            raise RegardError(f"{call}: there is no option {name}; {meant}")


def _known_head(head: Head | str, sites: dict[str, int]) -> Head:
    """A head of the model, by name or as it is."""
    if isinstance(head, str) and sites:
        return head_named(head, heads_of(sites))
    if isinstance(head, str):
        raise RegardError(f"head {head}: no attention of this model goes from target to source")
    if not isinstance(head, Head):
        raise RegardError(f"head is {head!r:.40}, expected a Head or a name such as 'cross:0'")
    if head.site not in sites:
        names = ", ".join(sites) or "none: no attention goes from target to source"
        raise RegardError(f"head: there is no site {head.site!r}; there are {names}")
    if head.index is not None and not 0 <= head.index < sites[head.site]:
        raise RegardError(
            f"head {head.index} of {head.site!r}, expected 0 to {sites[head.site] - 1}"
        )
    return head
