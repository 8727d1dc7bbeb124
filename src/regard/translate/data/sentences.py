"""Sentences of a text, by rules: what a translator reads at once.

>>> split_sentences("Mr. Smith paid $3.50. Did he? “Yes!” he said.")
['Mr. Smith paid $3.50.', 'Did he?', '“Yes!” he said.']
"""

from __future__ import annotations

import re
from collections.abc import Callable

#: What ends in a full stop and goes on: titles, and abbreviations that stand before something.
_TITLES = frozenset(
    """
    mr mrs ms mx dr prof sr jr st ste mt gen col lt capt sgt rev hon gov pres sen rep
    m mm mme mmes mlle mlles me mgr no nos nr art fig vol p pp ch cf vs e.g i.e ca approx
    jan feb apr jun jul aug sep sept oct nov dec janv févr avr juil déc
    """.split()  # noqa: SIM905
)
_END = re.compile(
    r"""(?P<mark>[.!?…]+|[。！？]+)      # the marks that end a sentence
        (?P<closing>(?:\s?»|["'”’)\]])*)  # what closes behind them
        (?P<space>\s+|(?<=[。！？])|$)    # a space, which Chinese and Japanese leave out
    """,
    re.VERBOSE,
)
_OPENING = "\"'“‘«(["
_BULLET = re.compile(r"[-–—*•·▪]\s+")  # of a list, or a dialogue
_LINES = re.compile(r"[\n\r\v\f\x85\u2028\u2029]+")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without the white space around them; a line ends a sentence.

    A sentence ends at a stop, question or exclamation mark before a space, unless it goes on with a
    small letter, or the stop belongs to an abbreviation or an initial. The bullet of a line is a
    sentence.

    >>> split_sentences("- Buy milk.\\n- Go home.")
    ['-', 'Buy milk.', '-', 'Go home.']
    """
    return [
        sentence for line in _LINES.split(text) for sentence in _of_line(line.strip()) if sentence
    ]


def _of_line(line: str) -> list[str]:
    bullet = _BULLET.match(line)
    begin = bullet.end() if bullet else 0
    sentences = [line[:begin].strip()]
    for match in _END.finditer(line):
        if match.start("mark") >= begin and _ends(line, match, begin):
            sentences.append(line[begin : match.end("closing")].strip())
            begin = match.end()
    return [*sentences, line[begin:].strip()]


def _ends(line: str, match: re.Match[str], begin: int) -> bool:
    following = line[match.end() :].lstrip(_OPENING + " ")[:1]
    if match["mark"][0] in "。！？":
        return True
    if following.islower() or (not following and match.end() < len(line)):
        return False
    if match["mark"] != ".":
        return True
    words = line[begin : match.start("mark")].split()
    last = words[-1].lstrip(_OPENING) if words else ""
    if not last:  # a mark by itself
        return False
    if following.isdigit() and last.lower() in ("no", "nos", "p", "pp", "fig", "art", "ch", "vol"):
        return False
    initial = len(last) == 1 and last.isupper() and last != "I" and bool(following)
    title = last.lower() in _TITLES and last.lower() not in ("no", "me", "p", "art", "mt")
    return not (initial or title)


def has_words(text: str) -> bool:
    """Whether a text has a letter or a digit, and not marks alone."""
    return any(map(str.isalnum, text))


def cut_in_parts(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts that fit, cut in the middle: at a comma or the like, else at a space.

    A part without a space is one word, and stays whole.
    """
    sentence = sentence.strip()
    if fits(sentence):
        return [sentence]
    middle = len(sentence) // 2
    clauses = [match.end() for match in re.finditer(r"[,;:—–]\s", sentence)]
    quarter = len(sentence) // 4
    near = [place for place in clauses if quarter <= place <= len(sentence) - quarter]
    places = near or [match.end() for match in re.finditer(r"\s+", sentence)]
    if not places:
        return [sentence]
    place = min(places, key=lambda end: abs(end - middle))
    halves = sentence[:place], sentence[place:]
    return [part for half in halves for part in cut_in_parts(half, fits)]
