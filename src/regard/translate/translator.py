"""A trained translator: text in, text and its alignment out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.aggregate import Words
from regard.errors import RegardError, UnavailableError
from regard.progress import progress
from regard.recipe import Given
from regard.record import Record, Trace
from regard.record.held import Ready
from regard.record.site import Site
from regard.translate.alignment import End, Head, Links, Matrix, Reading, read_rows, word_matrix
from regard.translate.alignment.matrix import with_end, without_end
from regard.translate.checkpoint import Checkpoint, load_checkpoint
from regard.translate.data import padded
from regard.translate.models.layout import turn_weights
from regard.translate.search import Hypothesis, search, search_steps
from regard.translate.tokens import END

_SHIPPED = "english-french.safetensors"
_NO_ALIGNMENT = "this model has no attention from target to source, so there is no alignment"


@dataclass(frozen=True, eq=False, repr=False)
class Translation:
    """One translation of one text.

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | `source`     | the text that was translated                                               |
    | `text`       | the translation                                                            |
    | `score`      | what the search ranked it by                                               |
    | `hypothesis` | its tokens, log-probability, and the attention of every head               |
    | `words`      | the words of the source and of the translation, over their tokens          |
    | `matrix`     | attention between words, of one head; None where the model has none        |
    | `trace`      | attention between tokens, of every head: to plot, reduce, save             |
    | `head`       | the head that `matrix` shows; None where there is none                     |
    """

    source: str
    text: str
    score: float
    hypothesis: Hypothesis
    words: tuple[Words, Words]
    matrix: Matrix | None
    trace: Trace
    head: Head | None = None

    @property
    def links(self) -> Links:
        """The source word that each target word looked at most, as (source, target) pairs."""
        if self.matrix is None:
            raise UnavailableError(_NO_ALIGNMENT)
        return self.matrix.links()

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the page of both texts and their alignment (html).

        Args:
            path: the file.
            options: of `regard.viewer.page`, instead of those that suit a translation.
        """
        if not len(self.trace):
            raise UnavailableError(_NO_ALIGNMENT)
        return self.trace.save(path, **(self.page_options | options))

    @property
    def page_options(self) -> dict[str, Any]:
        """What `regard.viewer.page` is told of a translation, besides its trace."""
        start = "view=lines&unit=words"
        if self.head is not None:
            layer = list(self.trace.keys()).index(self.head.site)
            shown = "mode=mean" if self.head.index is None else f"head={self.head.index}"
            start = f"{start}&layer={layer}&{shown}"
        return {
            "title": f"{self.source} → {self.text}",
            "words": list(self.words),
            "names": ("Translation", "Source"),
            "prompt": 0,  # all that looks was written by the model
            "start": start,
        }

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Translation({self.source!r} → {self.text!r}, score {self.score:.2f})"

    def _repr_html_(self) -> str | None:
        """The page of the alignment in a notebook; what has no alignment is shown as text."""
        return self.trace._repr_html_() if len(self.trace) else None


class Translator:
    """Translates with a checkpoint, and says which source word each target word looked at.

    Args:
        checkpoint: a trained model with its vocabularies.
        head: whose attention the matrices show; when None, the head that the checkpoint names, else
            the mean of the heads of the last layer but one (of the only layer, if there is one).
        reading: which row is a word's; as the model says when None.
        end: what becomes of attention to the end of the source, as in `alignment.word_matrix`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        head: Head | None = None,
        reading: Reading | None = None,
        end: End = "left out",
    ) -> None:
        self.checkpoint = checkpoint
        self.model = checkpoint.model
        self.head = _head(checkpoint) if head is None else head
        self.reading: Reading = self.model.reading if reading is None else reading
        self.end: End = end
        if self.head is not None:
            _check_head(self.head, self.model.sites)

    @classmethod
    def load(
        cls, path: str | Path | None = None, *, device: torch.device | str = "cpu", **options: Any
    ) -> Translator:
        """The translator of a checkpoint; without a path the one that ships, English to French."""
        if path is None:
            with as_file(files("regard.translate") / "shipped" / _SHIPPED) as shipped:
                return cls.load(shipped, device=device, **options)
        checkpoint = load_checkpoint(path, device)
        turn_weights(checkpoint.model)
        return cls(checkpoint, **options)

    def __repr__(self) -> str:
        looks = "no attention to the source" if self.head is None else f"reads {self.head}"
        return f"Translator({self.checkpoint.config.model.name}, {looks})"

    def __call__(self, text: str, **options: Any) -> Translation:
        """The best translation of one text; options as for `translate`."""
        return self.translate([text], **options)[0][0]

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        n_best: int = 1,
        batch: int = 64,
        prefix: Sequence[str] | None = None,
        show: bool | None = False,
        **options: Any,
    ) -> list[list[Translation]]:
        """The best translations of each text, best first.

        Args:
            texts: one sentence each.
            beam: hypotheses kept while searching; 1 is greedy; as the checkpoint says when None.
            n_best: how many translations of each text.
            batch: how many texts go through the model at once; those of like length go together.
            prefix: for each text, what its translation must begin with.
            show: whether to draw a progress bar; when None, on a terminal.
            options: of `search`: length_penalty, coverage_penalty, shortest, longest, unknown; what
                is not said is as the checkpoint says.
        """
        if isinstance(texts, str):
            raise RegardError("texts is one text, expected a list of them; call the translator")
        sources = [self._encoded(text, number) for number, text in enumerate(texts, 1)]
        starts = [self.checkpoint.target.encode(start) for start in prefix or [""] * len(texts)]
        if len(starts) != len(texts):
            raise RegardError(f"there are {len(texts)} texts, but {len(starts)} prefixes")
        options = self._search(beam, options)
        order = sorted(range(len(texts)), key=lambda place: len(sources[place]))
        found: list[list[Translation]] = [[] for _ in texts]
        with progress("translating", len(texts), show) as advance:
            for begin in range(0, len(order), batch):
                places = order[begin : begin + batch]
                source, mask = self._tensors([sources[place] for place in places])
                forced = [starts[place] for place in places] if prefix is not None else None
                best = search(
                    self.model,
                    source,
                    mask,
                    n_best=n_best,
                    prefix=forced,
                    **options,
                )
                for place, hypotheses in zip(places, best):
                    size = len(sources[place])
                    found[place] = [self._read(texts[place], one, size) for one in hypotheses]
                advance(len(places))
        return found

    def steps(self, text: str, *, beam: int | None = None, **options: Any) -> Iterator[Translation]:
        """The translation of one text as it grows, word by word; the last is the finished one."""
        source, mask = self._tensors([self._encoded(text, 1)])
        options = self._search(beam, options)
        for hypothesis in search_steps(self.model, source, mask, **options):
            yield self._read(text, hypothesis, source.shape[1])

    def _search(self, beam: int | None, said: dict[str, Any]) -> dict[str, Any]:
        """How to search: what was said, over what the checkpoint says."""
        settings = asdict(self.checkpoint.config.search)
        settings["longest"] = settings["longest"] or None
        return settings | said | ({} if beam is None else {"beam": beam})

    def _encoded(self, text: str, number: int) -> list[int]:
        if not text.strip():
            raise RegardError(f"text {number} is empty, expected a sentence")
        numbers = [*self.checkpoint.source.encode(text), END]
        limit = self.model.longest_source
        if limit is not None and len(numbers) > limit:
            raise RegardError(
                f"text {number} has {len(numbers)} tokens with its end, but the model reads at "
                f"most {limit}"
            )
        return numbers

    def _tensors(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        device = next(self.model.parameters()).device
        tokens, mask = padded(rows)
        return tokens.to(device), mask.to(device)

    def _read(self, text: str, hypothesis: Hypothesis, size: int) -> Translation:
        """A hypothesis in words; `size` is the number of source tokens, without padding."""
        source = self.checkpoint.source.words(text)
        target = self.checkpoint.target.words_of(hypothesis.tokens)
        cut = {site: weights[..., :size] for site, weights in hypothesis.weights.items()}
        hypothesis = replace(hypothesis, weights=cut)
        seen = {site: self._rows(weights, hypothesis) for site, weights in cut.items()}
        matrix = None
        if self.head is not None:
            rows = self.head.of(seen)
            matrix = word_matrix(rows, source, target, reading=self.reading, end=self.end)
        said = self.checkpoint.target.decode(hypothesis.tokens)
        if self.reading == "input":  # which has no row for the end
            target = without_end(target)
        words = (with_end(source, size, "source"), target)
        trace = self._trace(seen, words)
        score = hypothesis.score
        return Translation(text, said, score, hypothesis, words, matrix, trace, self.head)

    def _rows(self, weights: Tensor, hypothesis: Hypothesis) -> Tensor:
        """The rows on the processor, and one more where the last word was no input yet."""
        weights = weights.float().cpu()
        if self.reading == "output" or END in hypothesis.tokens:
            return weights
        return torch.cat([weights, torch.zeros_like(weights[:, -1:])], dim=1)

    def _trace(self, seen: dict[str, Tensor], words: tuple[Words, Words]) -> Trace:
        """The attention of every site as records, rows as the reading has them."""
        source, target = words
        said = sum(piece not in target.special for piece in target.pieces)
        records = []
        for site, weights in seen.items():
            rows = read_rows(weights, said, self.reading)
            recipe = Given(rows[None], None, self.model.kind)
            records.append(
                Record(
                    Site(site, type(self.model).__name__, "", "given", attends="cross"),
                    Ready(recipe),
                    shape=recipe.shape,
                    kind=recipe.kind,
                    dtype=recipe.dtype,
                    query_tokens=target.tokens[: rows.shape[1]],
                    key_tokens=source.tokens,
                )
            )
        return Trace(records)


def _head(checkpoint: Checkpoint) -> Head | None:
    sites = checkpoint.model.sites
    if not sites:
        return None
    named = checkpoint.extra.get("head")
    if named is not None:
        return Head(named["site"], named["index"])
    site = list(sites)[max(0, len(sites) - 2)]
    return Head(site, None if sites[site] > 1 else 0)


def _check_head(head: Head, sites: dict[str, int]) -> None:
    if head.site not in sites:
        known = ", ".join(sites) or "none: no attention goes from target to source"
        raise RegardError(f"head: there is no site {head.site!r}; there are {known}")
    if head.index is not None and not 0 <= head.index < sites[head.site]:
        raise RegardError(
            f"head {head.index} of {head.site!r}, expected 0 to {sites[head.site] - 1}"
        )
