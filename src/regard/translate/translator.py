"""A trained translator: text in, text and its alignment out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
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
from regard.translate.alignment.matrix import check_end, check_reading
from regard.translate.alignment.preferred_head import preferred_head
from regard.translate.checkpoint import Checkpoint, load_checkpoint
from regard.translate.data import padded
from regard.translate.models.layout import lay_out_for_search
from regard.translate.reader import Reader
from regard.translate.search import Hypothesis, search, search_steps
from regard.translate.shipped import SHIPPED
from regard.translate.source_batch import SourceBatch, inner_sites
from regard.translate.tokens import END, UNKNOWN
from regard.translate.translation import Translation
from regard.translate.vocabulary.unknown_words import unknown_words

__all__ = ["Translation", "Translator"]


class Translator:
    """Translates with a checkpoint, and says which source word each target word looked at.

    A model without attention from target to source has no `head`; `inside` then names the
    attentions inside its encoder, and is empty where there are none either.

    Args:
        checkpoint: a trained model with its vocabularies.
        head: whose attention the matrices show, as a `Head` or by name: "3.cross:5", or "3.cross"
            for the mean of all; when None, the head that the checkpoint names, else the mean of the
            heads of the last layer but one (of the only layer, if there is one).
        reading: which row is a word's; when None, of the head which the checkpoint names that which
            it names with it, else as the model says.
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
        named = preferred_head(checkpoint.extra) if self.model.sites else None
        self.head: Head | None = None
        if head is not None:
            self.head = _known_head(head, self.model.sites)
        elif named is not None:
            self.head = _known_head(named.head, self.model.sites)
        elif self.model.sites:
            self.head = usual_head(heads_of(self.model.sites))
        if named is not None and self.head == named.head and reading is None:
            reading = named.reading
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
        """The best translation of one text, which may have to begin with `prefix`.

        Other options as for `translate`.
        """
        if options.get("n_best", 1) != 1:
            raise RegardError(
                "a call gives the best translation; .translate([text], n_best=…) more"
            )
        if not isinstance(text, str) and isinstance(text, Iterable):
            raise RegardError("text is a list, expected one text; .translate(texts) takes several")
        starts = None if prefix is None else [_one_text("prefix", prefix)]
        return self.translate([text], prefix=starts, **options)[0][0]

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam: int | None = None,
        n_best: int = 1,
        batch: int = 64,
        prefix: Sequence[str] | None = None,
        weights: bool = True,
        empty: bool = False,
        show: bool | None = False,
        **options: Any,
    ) -> list[list[Translation]]:
        """The best translations of each text, best first: a list of them for every text.

        Args:
            texts: one sentence each.
            beam: hypotheses kept while searching; 1 is greedy; as the checkpoint says when None.
            n_best: how many translations of each text, at most as many as the beam. All are
                different; there may be fewer, as two hypotheses can be one text in other pieces.
            batch: how many texts go through the model at once; those of like length go together.
            prefix: for each text, what its translation must begin with. A model of pieces of words
                may go on within the last word of it.
            weights: whether to keep what the model looked at; without, translations have no matrix.
            empty: whether a text may be empty: it then has no translations. Otherwise it is an
                error.
            show: whether to draw a progress bar; when None, on a terminal.
            options: of `search`: length_penalty, coverage_penalty, shortest, longest, unknown; what
                is not said is as the checkpoint says.
        """
        options = self._search("translate", beam, options)
        asked: dict[str, Any] = {
            "n_best": n_best,
            "batch": batch,
            "prefix": prefix,
            "weights": weights,
        }
        return list(self.stream(texts, window=None, empty=empty, show=show, **asked, **options))

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
        **options: Any,
    ) -> Iterator[list[Translation]]:
        """What `translate` returns, one text after the other, while the others still wait.

        All texts are looked at before the first is translated, so that one that cannot be is told
        at once.

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
        options = self._search("translate", options.pop("beam", None), options)
        texts = list(texts)
        sources = [self._encoded(text, number, empty) for number, text in enumerate(texts, 1)]
        starts = self._starts(prefix, len(texts))
        options |= {"n_best": n_best, "weights": weights}
        size = window or max(1, len(texts))
        windows = [range(len(texts))[begin : begin + size] for begin in range(0, len(texts), size)]

        def translated() -> Iterator[list[Translation]]:
            with progress("translating", sum(one != [END] for one in sources), show) as advance:
                for places in windows:
                    found: dict[int, list[Translation]] = {}
                    full = [place for place in places if sources[place] != [END]]
                    full.sort(key=lambda place: len(sources[place]))
                    for begin in range(0, len(full), batch):
                        some = full[begin : begin + batch]
                        given = [sources[place] for place in some]
                        forced = None if starts is None else [starts[place] for place in some]
                        said = [texts[place] for place in some]
                        found |= zip(some, self._batch(said, given, forced, options))
                        advance(len(some))
                    yield from (found.get(place, []) for place in places)

        return translated()

    def _batch(
        self,
        texts: list[str],
        sources: list[list[int]],
        starts: list[list[int]] | None,
        options: dict[str, Any],
    ) -> list[list[Translation]]:
        """The translations of some texts, all at once.

        Where several of each are asked for, the search gives all that it has, as two hypotheses
        may read the same.
        """
        most = options["n_best"]
        more = options | ({"n_best": max(most, options["beam"])} if most > 1 else {})
        seen = self._sources(sources)
        found = search(self.model, seen.source, seen.mask, prefix=starts, **more)
        best = [self._different(hypotheses)[:most] for hypotheses in found]
        return self._reader.read(texts, best, seen, options["weights"])

    def _different(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Those of a text that no better one has."""
        texts: dict[str, Hypothesis] = {}
        for one in hypotheses:
            texts.setdefault(self.checkpoint.target.decode(one.tokens), one)
        return list(texts.values())

    def steps(
        self,
        text: str,
        *,
        beam: int | None = None,
        prefix: str | None = None,
        weights: bool = True,
        **options: Any,
    ) -> Iterator[Translation]:
        """The translation of one text as it grows, word by word; the last is the finished one.

        Args:
            text: one sentence.
            beam: as for `translate`.
            prefix: what the translation must begin with.
            weights: as for `translate`.
            options: of `search`, as for `translate`.
        """
        options = self._search("steps", beam, options) | {"weights": weights}
        seen = self._sources([self._encoded(text)])
        forced = None if prefix is None else self._starts([_one_text("prefix", prefix)], 1)
        for found in search_steps(self.model, seen.source, seen.mask, prefix=forced, **options):
            yield self._reader.read([text], [[found]], seen, weights)[0][0]

    def between_spaces(self, translation: Translation) -> Matrix:
        """The matrix of the words between the spaces of both texts, as files of links count them.

        `matrix` of a translation has the tokeniser's words, which are smaller: punctuation and
        clitics stand apart. The end of the source is left out.

        Args:
            translation: one of this translator's.
        """
        return self._reader.between_spaces(translation)

    def _search(self, call: str, beam: int | None, said: dict[str, Any]) -> dict[str, Any]:
        """How to search: what was said to a call, over what the checkpoint says."""
        settings = asdict(self.checkpoint.config.search)
        known = dict.fromkeys([*settings, "shortest", *signature(getattr(self, call)).parameters])
        _check_known(call, said, [one for one in known if one not in ("text", "texts", "options")])
        settings["longest"] = settings["longest"] or None
        return settings | said | ({} if beam is None else {"beam": beam})

    def _starts(self, prefix: Sequence[str] | None, count: int) -> list[list[int]] | None:
        if prefix is None:
            return None
        if isinstance(prefix, str):
            raise RegardError(f"prefix is one text, {prefix!r:.40}, expected a list: one a text")
        if len(prefix) != count:
            raise RegardError(f"there are {count} texts, but {len(prefix)} prefixes")
        return [self._start(start, number) for number, start in enumerate(prefix, 1)]

    def _start(self, text: str, number: int) -> list[int]:
        """The tokens of a prefix, which the model must have."""
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

    def _sources(self, rows: list[list[int]]) -> SourceBatch:
        device = next(self.model.parameters()).device
        tokens, mask = padded(rows)
        return SourceBatch(self.model, tokens.to(device), mask.to(device))


def _one_text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise RegardError(f"{name} is {value!r:.40}, expected a text, as there is one text")
    return value


def _check_known(call: str, said: dict[str, Any], options: list[str]) -> None:
    """Refuse an option that a call has not, with the one that may be meant."""
    for name in said:
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
        known = ", ".join(sites) or "none: no attention goes from target to source"
        raise RegardError(f"head: there is no site {head.site!r}; there are {known}")
    if head.index is not None and not 0 <= head.index < sites[head.site]:
        raise RegardError(
            f"head {head.index} of {head.site!r}, expected 0 to {sites[head.site] - 1}"
        )
    return head
