"""Text to words and punctuation, and back.

A word is a run of letters, marks and digits, which hyphens and apostrophes may join. French
elisions keep their apostrophe, English endings begin with theirs. Punctuation stands alone.

>>> tokenise("Je t'aime, mais il ne m'aime pas.")
['Je', "t'", 'aime', ',', 'mais', 'il', 'ne', "m'", 'aime', 'pas', '.']
>>> tokenise("I don't know what John's well-known for.")
['I', 'do', "n't", 'know', 'what', 'John', "'s", 'well-known', 'for', '.']
>>> detokenise(tokenise("I don't know (yet)."))
"I don't know (yet)."
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

from regard.translate.tokens import NAMES
from regard.translate.vocabulary.spacing import Spacing

_ELIDED = r"(?:[cdjlmnst]|(?:jus|lors|puis|quoi|pres|quel)?qu)['’]"
_ENDING = r"(?:n['’]t|['’](?:s|m|d|ll|re|ve))"
_WHOLE = re.compile(rf"(?:aujourd['’]hui|{_ENDING}|{_ELIDED})", re.IGNORECASE)
_BEGINS = re.compile(rf"{_ELIDED}(?=.)", re.IGNORECASE)
_ENDS = re.compile(rf"(?<=.){_ENDING}$", re.IGNORECASE)
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"


def tidy(text: str) -> str:
    """A text in Unicode's composed form, with one plain space where there was any white space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def tokenise(text: str) -> list[str]:
    """The words and punctuation marks of a text: all of it but the white space."""
    return [token for chunk in text.split() for token in _tokens(chunk)]


def token_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each token of a text."""
    spans, end = [], 0
    for token in tokenise(text):
        start = text.index(token, end)
        end = start + len(token)
        spans.append((start, end))
    return spans


def detokenise(tokens: Sequence[str], spacing: Spacing | None = None) -> str:
    """The text of tokens, as people write it.

    Tokens that come from `tokenise` come back when the text is tokenised again. Where the usual
    spacing would make other tokens of them, all stand apart.

    Args:
        tokens: words and punctuation marks.
        spacing: around which marks a space is written; the English way when None.
    """
    spacing = Spacing() if spacing is None else spacing
    plain = ["unknown" if token in NAMES else token for token in tokens]  # names of tokens: words
    same = tokenise(spacing.joined(plain)) == plain
    return spacing.joined(tokens) if same else " ".join(tokens)


@functools.lru_cache(maxsize=1 << 17)
def _tokens(chunk: str) -> tuple[str, ...]:
    """The tokens of a stretch without spaces."""
    if _WHOLE.fullmatch(chunk):
        return (chunk,)
    return tuple(token for run in _runs().findall(chunk) for token in _parts(run))


def _parts(run: str) -> tuple[str, ...]:
    """A run of letters without its elision and ending: "l'homme's" is l', homme, 's."""
    if _WHOLE.fullmatch(run):
        return (run,)
    begins = _BEGINS.match(run)
    if begins:
        return (begins[0], *_parts(run[begins.end() :]))
    ends = _ENDS.search(run)
    # What is before "n't" may end with the apostrophe or hyphen that joined both: a mark alone now.
    return (*_tokens(run[: ends.start()]), ends[0]) if ends else (run,)


@functools.cache
def _runs() -> re.Pattern[str]:
    """A pattern for runs of letters, with what may join them, and for single marks."""
    marks = f"[{_marks()}]"
    letters = rf"[^\W{_HAN}]+(?:{marks}+[^\W{_HAN}]*)*"
    return re.compile(
        r"(?:[^\W\d_]\.){2,}(?!\w)"  # p.m.
        rf"|{letters}(?:(?:[-'’‐‑]|(?<=\d)[.,:](?=\d)){letters})*"
        rf"|\.{{2,}}|--+|\S{marks}*"
    )


def _marks() -> str:
    """The characters that belong to the one before: accents, joiners, as ranges of a pattern."""
    ranges: list[list[int]] = []
    for code in (*range(0x20000), *range(0xE0000, 0xE1000)):  # there are none in other planes
        if unicodedata.category(chr(code)) not in ("Mn", "Mc", "Me", "Cf"):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)
