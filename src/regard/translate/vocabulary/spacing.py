"""Where a space is written around punctuation: learned from text, since languages differ.

French writes one before "?", English does not; both write one after a comma and none inside
brackets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_OPENING = frozenset("([{«“‘¿¡#$£€@/")
_CLOSING = frozenset(".,!?;:%)]}»”’…/") | {"...", "…"}
_ELISION = re.compile(r"\w+['’]")
_ENDING = re.compile(r"n['’]t|['’]\w+", re.IGNORECASE)
_QUOTES = ('"', "'")


@dataclass(frozen=True)
class Spacing:
    """Whether there is a space before and after each mark; English rules for those not listed."""

    before: Mapping[str, bool] = field(default_factory=dict)
    after: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def learned(cls, sentences: Iterable[tuple[str, Sequence[tuple[int, int]]]]) -> Spacing:
        """What most of the places between a word and a mark have in some sentences.

        Args:
            sentences: each a text and where its tokens lie.
        """
        before: dict[str, Counter[bool]] = {}
        after: dict[str, Counter[bool]] = {}
        for text, spans in sentences:
            for (start, end), (next_start, next_end) in pairwise(spans):
                space = next_start > end
                left, right = text[start:end], text[next_start:next_end]
                if _is_mark(right) and _is_word(left):
                    before.setdefault(right, Counter())[space] += 1
                if _is_mark(left) and _is_word(right):
                    after.setdefault(left, Counter())[space] += 1
        return cls(_most(before), _most(after))

    def joined(self, tokens: Sequence[str]) -> str:
        """The tokens as one text."""
        text = ""
        open_quotes = dict.fromkeys(_QUOTES, False)
        paired = {quote: list(tokens).count(quote) % 2 == 0 for quote in _QUOTES}
        glued = True  # to what comes next
        for token in tokens:
            if token in _QUOTES and paired[token]:
                opens = not open_quotes[token]
                open_quotes[token] = opens
                space, next_glued = opens, opens
            else:
                space, next_glued = self._before(token), not self._after(token)
            text += " " * (space and not glued) + token
            glued = next_glued
        return text

    def _before(self, token: str) -> bool:
        if _ENDING.fullmatch(token) or token in _QUOTES:
            return False
        return not _is_mark(token) or self.before.get(token, token not in _CLOSING)

    def _after(self, token: str) -> bool:
        if _ELISION.fullmatch(token):
            return False
        return not _is_mark(token) or self.after.get(token, token not in _OPENING)


def _is_word(token: str) -> bool:
    return any(map(str.isalnum, token))


def _is_mark(token: str) -> bool:
    return not _is_word(token) and token not in _QUOTES


def _most(counts: Mapping[str, Counter[bool]]) -> dict[str, bool]:
    return {mark: spaced[True] >= spaced[False] for mark, spaced in sorted(counts.items())}
