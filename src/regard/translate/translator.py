"""A trained translator: text in, translation and alignment out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.progress import progress
from regard.translate.alignment import (
    End,
    Head,
    Matrix,
    Reading,
    head_named,
    heads_of,
    usual_head,
)
from regard.translate.alignment.heads import preferred_head
from regard.translate.alignment.matrix import check_end, check_reading
from regard.translate.checkpoint import Checkpoint, load_checkpoint
from regard.translate.data import padded
from regard.translate.models.layout import lay_out_for_search
from regard.translate.reader import Reader, SourceBatch, inner_sites
from regard.translate.search import Hypothesis, SearchOptions, beam_search, beam_search_steps
from regard.translate.shipped import SHIPPED
from regard.translate.tokens import END, UNKNOWN
from regard.translate.translation import Translation
from regard.translate.vocabulary.contract import unknown_words

__all__ = ["Translation", "Translator"]


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
        preferred = preferred_head(checkpoint.extra) if self.model.sites else None
        self.head: Head | None = None
        if head is not None:
            self.head = _known_head(head, self.model.sites)
        elif preferred is not None:
            self.head = _known_head(preferred.head, self.model.sites)
        elif self.model.sites:
            self.head = usual_head(heads_of(self.model.sites))
        if preferred is not None and self.head == preferred.head and reading is None:
            reading = preferred.reading
        self.reading: Reading = self.model.reading if reading is None else reading
        self.end: End = end
        check_reading(self.reading)
        check_end(end)
        self.inside = [] if self.model.sites else inner_sites(self.model)
        self._reader = Reader(checkpoint, self.head, self.reading, end)

    @classmethod
    def load(
        cls, path: str | Path | None = None, *, device: torch.device | str = "cpu", **options: Any
    ) -> Translator:
        """The translator of a checkpoint; without a path the one that ships, `english-french`."""
        checkpoint = load_checkpoint(SHIPPED if path is None else path, device)
        lay_out_for_search(checkpoint.model)
        return cls(checkpoint, **options)

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
        show: bool | None = False,
        **search: Any,
    ) -> list[list[Translation]]:
        """The best translations of each text, best first: one list per text.

        Args:
            texts: one sentence each.
            n_best: maximum number of translations per text, at most the beam width. All are
                different; there may be fewer, as two hypotheses can decode to the same text.
            batch: how many texts go through the model at once, sorted by length.
            prefix: for each text, what its translation must begin with. A model of subwords may
                continue the last word of it.
            weights: whether to keep attention; without it, translations have no matrix.
            empty: whether to accept empty texts, which have no translations; an error otherwise.
            show: whether to draw a progress bar; on a terminal when None.
            search: fields of `SearchOptions`, such as `beam=1`; the checkpoint's by default.
        """
        self._search_options("translate", search)
        return list(
            self.stream(
                texts,
                window=None,
                n_best=n_best,
                batch=batch,
                prefix=prefix,
                weights=weights,
                empty=empty,
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
        prefix: Sequence[str] | None = None,
        weights: bool = True,
        empty: bool = False,
        show: bool | None = False,
        **search: Any,
    ) -> Iterator[list[Translation]]:
        """The results of `translate` one after the other, while later texts still wait.

        All texts are checked before the first is translated.

        Args:
            texts: as for `translate`, and so are the other arguments.
            window: how many texts are sorted by length together, and held; all when None.
        """
        if isinstance(texts, str):
            raise RegardError("texts is one text, expected a list of them; call the translator")
        if not isinstance(texts, Iterable):
            raise RegardError(f"texts is {texts!r:.40}, expected a list of texts")
        for name, size in (("batch", batch), ("window", window)):
            if size is not None and size < 1:
                raise RegardError(f"{name} is {size}, expected at least 1")
        options = self._search_options("stream", search)
        texts = list(texts)
        sources = [self._encoded(text, number, empty) for number, text in enumerate(texts, 1)]
        prefixes = self._prefixes(prefix, len(texts))
        size = window or max(1, len(texts))
        windows = [range(len(texts))[begin : begin + size] for begin in range(0, len(texts), size)]

        def translated() -> Iterator[list[Translation]]:
            count = sum(source != [END] for source in sources)
            with progress("translating", count, show) as advance:
                for indices in windows:
                    translations: dict[int, list[Translation]] = {}
                    full = [index for index in indices if sources[index] != [END]]
                    full.sort(key=lambda index: len(sources[index]))
                    for begin in range(0, len(full), batch):
                        chunk = full[begin : begin + batch]
                        translations |= zip(
                            chunk,
                            self._batch(
                                [texts[index] for index in chunk],
                                [sources[index] for index in chunk],
                                None if prefixes is None else [prefixes[index] for index in chunk],
                                options,
                                n_best,
                                weights,
                            ),
                        )
                        advance(len(chunk))
                    yield from (translations.get(index, []) for index in indices)

        return translated()

    def _batch(
        self,
        texts: list[str],
        sources: list[list[int]],
        prefixes: list[list[int]] | None,
        options: SearchOptions,
        n_best: int,
        weights: bool,
    ) -> list[list[Translation]]:
        """The translations of some texts, all at once.

        For several per text, the whole beam is searched for, as two hypotheses may read the same.
        """
        batch = self._source_batch(sources)
        hypotheses = beam_search(
            self.model,
            batch.source,
            batch.mask,
            options,
            n_best=max(n_best, options.beam) if n_best > 1 else n_best,
            prefix=prefixes,
            weights=weights,
        )
        best = [self._distinct(of_text)[:n_best] for of_text in hypotheses]
        return self._reader.read(texts, best, batch, weights)

    def _distinct(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses whose text no better one has."""
        by_text: dict[str, Hypothesis] = {}
        for hypothesis in hypotheses:
            by_text.setdefault(self.checkpoint.target.decode(hypothesis.tokens), hypothesis)
        return list(by_text.values())

    def steps(
        self, text: str, *, prefix: str | None = None, weights: bool = True, **search: Any
    ) -> Iterator[Translation]:
        """The translation of one text as it grows, token by token; the last one is finished.

        Args:
            text: one sentence.
            prefix: what the translation must begin with.
            weights: as for `translate`.
            search: fields of `SearchOptions`, as for `translate`.
        """
        options = self._search_options("steps", search)
        batch = self._source_batch([self._encoded(text)])
        forced = None if prefix is None else self._prefixes([_one_text("prefix", prefix)], 1)
        for hypothesis in beam_search_steps(
            self.model, batch.source, batch.mask, options, prefix=forced, weights=weights
        ):
            yield self._reader.read([text], [[hypothesis]], batch, weights)[0][0]

    def between_spaces(self, translation: Translation) -> Matrix:
        """The matrix of the words between the spaces of both texts, as files of links count them.

        `matrix` of a translation has the tokeniser's words, which are smaller: punctuation and
        clitics stand apart. The end of the source is left out.

        Args:
            translation: one of this translator's.
        """
        return self._reader.between_spaces(translation)

    def _search_options(self, call: str, search: dict[str, Any]) -> SearchOptions:
        """The checkpoint's options, and over them those of a call; None leaves one as it is."""
        names = [field.name for field in fields(SearchOptions)]
        arguments = [*names, *signature(getattr(self, call)).parameters]
        valid = [name for name in arguments if name not in ("text", "texts", "search")]
        _check_known(call, search, valid)
        changed = {name: value for name, value in search.items() if value is not None}
        return replace(self.checkpoint.config.search, **changed)

    def _prefixes(self, prefix: Sequence[str] | None, count: int) -> list[list[int]] | None:
        if prefix is None:
            return None
        if isinstance(prefix, str):
            raise RegardError(f"prefix is one text, {prefix!r:.40}, expected a list: one a text")
        if len(prefix) != count:
            raise RegardError(f"there are {count} texts, but {len(prefix)} prefixes")
        return [self._prefix_tokens(text, number) for number, text in enumerate(prefix, 1)]

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

    def _encoded(self, text: str, number: int = 1, empty: bool = False) -> list[int]:
        if not isinstance(text, str):
            raise RegardError(f"text {number} is {type(text).__name__}, expected a text")
        numbers = [*self.checkpoint.source.encode(text), END]
        if numbers == [END] and not empty:
            raise RegardError(f"text {number} is empty, expected a sentence: {text!r:.40}")
        limit = self.model.longest_source
        if limit is not None and len(numbers) > limit:
            raise RegardError(
                f"text {number} has {len(numbers)} tokens with its end, but the model reads at "
                f"most {limit}"
            )
        return numbers

    def _source_batch(self, rows: list[list[int]]) -> SourceBatch:
        device = next(self.model.parameters()).device
        tokens, mask = padded(rows)
        return SourceBatch(self.model, tokens.to(device), mask.to(device))


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
