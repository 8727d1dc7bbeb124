"""What `regard look` saw: one pass over a text, a text that a model wrote on, or a file."""

from __future__ import annotations

from pathlib import Path

from regard.cli import packaged
from regard.cli.packaged import Looked
from regard.cli.subject import EXAMPLES, FILES, PACKAGED, looked, subject
from regard.errors import RegardError
from regard.record import Record


def seen(model: str, text: str | None, generate: int) -> Looked:
    """Run a model on a text, or let it write so many tokens on; or run it on a file.

    Args:
        model: as for `subject`, or one of `FILES`.
        text: the text, or the file; the model's own example when None.
        generate: how many tokens it writes on.
    """
    if generate < 0:
        raise RegardError(f"--generate {generate}: expected a number of tokens")
    if generate:
        return _written(model, text, generate)
    if model in FILES:
        return looked(model, None if text is None else Path(text))
    what = subject(model, text)
    found = Looked(what.trace(), what.title, [] if what.words is None else [what.words])
    if what.words is None or not over_words(found):
        return found
    return Looked(found.trace.with_tokens(what.words.tokens), found.title, found.words)


def over_words(found: Looked) -> list[Record]:
    """The attentions that can be shown over the words: lowest layer first."""
    records = [record for record in found.trace if record.site.axes_known]
    if not found.words:
        first = records[0].shape[2:] if records else None
        return [record for record in records if record.shape[2:] == first]
    size = len(found.words[0].pieces)
    return [record for record in records if record.shape[2:] == (size, size)]


def _written(model: str, text: str | None, count: int) -> Looked:
    if model not in PACKAGED:
        raise RegardError(f"--generate {count}: {model} writes no text here; smollm2 does")
    with packaged.quietly():
        loaded = PACKAGED[model]()
    if text is None:
        text = EXAMPLES[model][0]
    if not text.strip():
        raise RegardError(f"there is no word in {text!r}")
    return loaded.continued(text, count)
