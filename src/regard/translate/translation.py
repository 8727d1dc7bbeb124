"""A translation of a text, with the attention of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.aggregate import Words
from regard.errors import RegardError, UnavailableError
from regard.plots.specs import FORMATS, Heatmap
from regard.record import Trace
from regard.record.upward import PAGES
from regard.translate.alignment import Head, Links, Matrix, Reading, word_matrix
from regard.translate.search import Hypothesis
from regard.viewer.notebook import shown

NO_ALIGNMENT = "this model has no attention from target to source, so there is no alignment"
_EMPTY = "the translation is empty, so no word of it looked anywhere"


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
    | `head`       | the head that `matrix` shows; None if there is none                        |
    | `inside`     | self-attention of the encoder between source words, if the model has no    |
    |              | other; the trace then holds it too                                         |
    | `reading`    | which row belongs to a word: that of the step that predicts it ("output"), |
    |              | or that is fed it ("input")                                                |
    | `parts`      | the translations of its sentences, if the text has several; `matrix` and   |
    |              | `trace` are then block-diagonal                                            |
    | `remarks`    | what a reader should know: what was cut, copied or lost, what the model    |
    |              | is unsure of, and whether the text is unlike those it learned from         |
    | `confidence` | the chrF it may be expected to have, from 0 to 1; None if the checkpoint   |
    |              | was not calibrated                                                         |
    | `read_as`    | what the model read instead of `source`, if that is all in capitals        |

    Words are the tokeniser's: "t'aime." has three of them. `Translator.between_spaces` gives the
    matrix of the words between spaces.
    """

    source: str
    text: str
    score: float
    hypothesis: Hypothesis
    words: tuple[Words, Words]
    matrix: Matrix | None
    trace: Trace
    head: Head | None = None
    inside: Matrix | None = None
    reading: Reading = "output"
    parts: tuple[Translation, ...] = ()
    remarks: tuple[str, ...] = ()
    confidence: float | None = None
    read_as: str | None = None

    @property
    def links(self) -> Links:
        """The source word that each target word attends to most, as (source, target) pairs.

        A word that attends most to the end of the sentence (`end="kept"`) has no link.
        `matrix.links(mutual)` drops doubtful ones, as `align` does.
        """
        if self.matrix is None:
            raise self._lack
        source, target = (len(words.without_special().names) for words in self.words)
        return frozenset(
            (source_word, target_word)
            for source_word, target_word in self.matrix.links()
            if source_word < source and target_word < target
        )

    def plot(self) -> Heatmap:
        """A heatmap of `matrix`, or of `inside` if there is no other, with words on both axes.

        The last colour is a weight of 1, whatever the largest one is.
        `.save("file.png")` writes it, a notebook shows it. Needs `regard[plots]`.
        """
        matrix = self.inside if self.matrix is None else self.matrix
        if matrix is None:
            raise self._lack
        if not matrix.target:
            raise UnavailableError(_EMPTY)
        aligned = self.matrix is not None
        whole = len(matrix.source) > len(self.words[0].without_special().names)
        end = "" if whole else " without its end"
        subject = f"{self.head} ({self.reading})" if aligned else "inside the encoder"
        return Heatmap(
            matrix.weights,
            rows=matrix.target,
            columns=matrix.source,
            title=f"{self.source} → {self.text}" if aligned else self.source,
            row_title="translation" if aligned else "source",
            column_title=f"source{end}; {subject}",
            most=1.0,
        )

    def save(self, path: str | Path, **options: Any) -> Path:
        """Save the attention as a page, a picture or data.

        Args:
            path: `.html` is a page of both texts and every head; `.png`, `.svg` and `.pdf` are the
                picture of `plot`; `.safetensors` is the trace, for `regard.load_trace`.
            options: of a page, those of `regard.viewer.page`, instead of those that suit a
                translation.
        """
        if not len(self.trace):
            raise self._lack
        if not self.trace[0].shape.queries:
            raise UnavailableError(_EMPTY)
        ending = Path(path).suffix.lower()
        if ending in PAGES:
            return self.trace.save(path, **(self.page_options | options))
        if options or ending == ".safetensors":
            return self.trace.save(path, **options)  # which says that options are a page's
        if ending in FORMATS:
            return self.plot().save(path)
        raise RegardError(
            f"{path}: ends in {ending!r}, expected .html (a page), {', '.join(FORMATS)} "
            "(a picture) or .safetensors (the trace)"
        )

    @property
    def page_options(self) -> dict[str, Any]:
        """Options of `regard.viewer.page` that suit a translation."""
        title, start = f"{self.source} → {self.text}", "view=matrix&unit=words"
        if self.head is not None and self.reading == "input":
            title += " (a row is where its word is the input)"
        if self.head is None:
            return {"title": title, "words": [self.words[0]], "start": start}
        layer = list(self.trace.keys()).index(self.head.site)
        mode = "mode=mean" if self.head.index is None else f"head={self.head.index}"
        return {
            "title": title,
            "words": list(self.words),
            "names": ("Translation", "Source"),
            "prompt": 0,  # all that looks was written by the model
            "start": f"{start}&layer={layer}&{mode}",
        }

    @property
    def rows(self) -> Tensor:
        """Weights of `head`, (target token, source token), in its reading; the end is last."""
        if self.matrix is None or self.head is None:
            raise self._lack
        return self.head.of({site: record.weights()[0] for site, record in self.trace.items()})

    @property
    def at_the_end(self) -> list[float]:
        """The attention of each target word to the end of the source."""
        kept = word_matrix(self.rows, *self.words, end="kept")
        return kept.weights[: len(self.words[1].without_special().names), -1].tolist()

    @property
    def _lack(self) -> UnavailableError:
        """Why there is no `matrix`, where there is none."""
        if self.head is None:
            return UnavailableError(NO_ALIGNMENT)
        reason = "this translation was made with weights=False, so there is no alignment"
        return UnavailableError(reason)

    def table(self) -> dict[str, Any]:
        """As JSON holds it: both texts, words, weights (target, source), links, remarks, parts.

        Words, weights and links are left out without attention from target to source.
        """
        table: dict[str, Any] = {
            "source": self.source,
            "text": self.text,
            "score": self.score,
            "log_probability": self.hypothesis.log_probability,
            "confidence": self.confidence,
            "remarks": list(self.remarks),
        }
        if self.matrix is not None and self.head is not None:
            table |= {
                "head": self.head.name,
                "reading": self.reading,
                "source_words": self.matrix.source,
                "target_words": self.matrix.target,
                "weights": [[round(w, 6) for w in row] for row in self.matrix.weights.tolist()],
                "links": sorted(self.links),
            }
        if self.parts:
            table["parts"] = [[part.source, part.text] for part in self.parts]
        return table

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Translation({self.source!r} → {self.text!r}, score {self.score:.2f})"

    def _repr_html_(self) -> str | None:
        """The page of the attention in a notebook; None without attention."""
        if not len(self.trace) or not self.trace[0].shape.queries:
            return None
        return shown(self.trace, **self.page_options)
