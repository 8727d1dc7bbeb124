"""Which heads, queries and keys a change concerns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.editing.call import AttentionCall
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.record.tokens import nested

#: A position, a slice, several positions, a word or several, or a boolean (batch, position).
Positions = int | str | slice | range | Sequence[int] | Sequence[str] | Tensor | None
Heads = int | slice | Iterable[int] | None

_MARKS = "▁Ġ"


class Selection(NamedTuple):
    """Booleans of the entries that a change concerns; None is all of them."""

    heads: Tensor | None = None  #: (1, head, 1, 1)
    queries: Tensor | None = None  #: (batch or 1, 1, query, 1)
    keys: Tensor | None = None  #: (batch or 1, 1, 1, key)

    @property
    def rows(self) -> Tensor | None:
        """Rows of the weights, (batch or 1, head or 1, query or 1, 1)."""
        return _both(self.heads, self.queries)

    @property
    def entries(self) -> Tensor | None:
        """Entries of the weights, (batch or 1, head or 1, query or 1, key or 1)."""
        return _both(self.rows, self.keys)


def _both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def select(
    call: AttentionCall, heads: Heads, queries: Positions, keys: Positions
) -> Selection | None:
    """What a change concerns in this call; None if nothing."""
    if keys is not None and call.gathered:
        raise UnavailableError(
            f"keys=: at '{call.site.name}' each query has keys of its own, chosen from all, so "
            "that keys have no positions; change whole rows, with heads= and queries="
        )
    at_queries = at_keys = None
    if queries is not None:
        marked = _marked(queries, call, 2)
        at_queries = marked[:, None, :, None]
        if not bool(marked.any()):
            return None
    if keys is not None:
        marked = _marked(keys, call, 3)
        at_keys = marked[:, None, None, :]
        if not bool(marked.any()):
            return None
    return Selection(_heads(heads, call), at_queries, at_keys)


def _heads(heads: Heads, call: AttentionCall) -> Tensor | None:
    if heads is None:
        return None
    count = call.shape.heads
    if isinstance(heads, slice):
        heads = range(*heads.indices(count))
    numbers = [heads] if isinstance(heads, int) else list(heads)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not -count <= number < count:
            raise ShapeError(
                f"heads={heads!r}: {number!r} at '{call.site.name}', expected a number from 0 to "
                f"{count - 1}: it has {count} heads"
            )
    marked = torch.zeros(count, dtype=torch.bool, device=call.device)
    marked[numbers] = True
    return marked.view(1, -1, 1, 1)


def _marked(positions: Positions, call: AttentionCall, axis: int) -> Tensor:
    """A boolean (batch or 1, position) over the queries (axis 2) or keys (axis 3) of a call."""
    name = "queries" if axis == 2 else "keys"
    start = call.first_query if axis == 2 else call.first_key
    length = call.n_queries if axis == 2 else call.n_keys
    size = call.shape[axis]
    if isinstance(positions, Tensor) and positions.dtype == torch.bool:
        return _boolean(positions.to(call.device), call, name, start, size)
    marked = torch.zeros(1, size, dtype=torch.bool, device=call.device)
    if isinstance(positions, str) or _is_words(positions):
        return _spelled(positions, call, axis)
    for position in _numbers(positions, length, name):
        if start <= position < start + size:
            marked[0, position - start] = True
    return marked


def _boolean(marked: Tensor, call: AttentionCall, name: str, start: int, size: int) -> Tensor:
    """Positions beyond its end are not selected."""
    if marked.dim() == 1:
        marked = marked[None]
    if marked.dim() != 2:
        raise ShapeError(
            f"{name}=: a boolean of shape {tuple(marked.shape)}, expected (position,) or (batch, "
            "position)"
        )
    if marked.shape[0] not in (1, call.shape.batch):
        raise ShapeError(
            f"{name}=: a boolean {tuple(marked.shape)}, axis batch has size {marked.shape[0]}, "
            f"expected 1 or {call.shape.batch} at '{call.site.name}'"
        )
    present = marked[:, start : start + size]
    missing = size - present.shape[1]
    return torch.nn.functional.pad(present, (0, missing)) if missing else present


def _numbers(positions: Any, length: int, name: str) -> Iterable[int]:
    """Absolute positions; negative ones count from the last so far."""
    if isinstance(positions, slice):
        return range(*positions.indices(length))
    numbers: Any = [positions] if isinstance(positions, Integral) else positions
    if isinstance(numbers, Tensor):
        numbers = numbers.flatten().tolist()
    try:
        numbers = list(numbers)
    except TypeError:
        numbers = [None]
    if any(isinstance(number, bool) or not isinstance(number, Integral) for number in numbers):
        raise RegardError(
            f"{name}={positions!r}: expected a position, a slice, a list of positions, a word or "
            "words, or a boolean tensor (batch, position)"
        )
    return [int(number) + (length if number < 0 else 0) for number in numbers]


def _is_words(positions: Any) -> bool:
    return (
        isinstance(positions, list | tuple)
        and bool(positions)
        and all(isinstance(word, str) for word in positions)
    )


def _spelled(words: Any, call: AttentionCall, axis: int) -> Tensor:
    """The positions of words, (batch or 1, position)."""
    name = "queries" if axis == 2 else "keys"
    tokens = call.words.queries if axis == 2 else call.words.keys
    start = call.first_query if axis == 2 else call.first_key
    size = call.shape[axis]
    if tokens is None:
        raise RegardError(
            f"{name}={words!r}: a word, but the tokens of '{call.site.name}' are not known; give "
            "tokens=, as regard.edit(..., tokens=[...]), or like= a trace that has them there, or "
            "leave the site out with where="
        )
    examples = list(tokens) if nested(tokens) else [tokens]
    if len(examples) not in (1, call.shape.batch):
        raise ShapeError(
            f"tokens=: {len(examples)} lists of words, expected 1 or {call.shape.batch}, the batch "
            f"at '{call.site.name}'"
        )
    length = call.n_queries if axis == 2 else call.n_keys
    longest = max(map(len, examples))
    if call.opening and longest < length:
        raise ShapeError(
            f"tokens=: {longest} of them, but '{call.site.name}' has {length} {name}; expected one "
            "for each position, special tokens and padding too"
        )
    asked = [words] if isinstance(words, str) else list(words)
    marked = torch.zeros(len(examples), size, dtype=torch.bool, device=call.device)
    for word in asked:
        matches = [occurrences(word, example) for example in examples]
        if not any(matches):
            plain = sorted({_plain(token) for example in examples for token in example})
            near = [token for token in plain if token.lower() == word.lower()]
            near = near or difflib.get_close_matches(word, plain, 3) or plain[:8]
            raise RegardError(
                f"{name}={word!r}: not among the tokens; near: {', '.join(map(repr, near))}"
            )
        for row, found in enumerate(matches):
            for position in found:
                if start <= position < start + size:
                    marked[row, position - start] = True
    return marked


def occurrences(word: str, tokens: Sequence[str]) -> list[int]:
    """Every position of a word among tokens, whole or in pieces.

    >>> occurrences("animal", ["▁the", "▁ani", "mal", "▁it"])
    [1, 2]
    """
    positions: list[int] = []
    pieces = [_plain(token) for token in tokens]
    for start in range(len(pieces)):
        spelled = ""
        for end in range(start, len(pieces)):
            spelled += pieces[end]
            if spelled == word or tokens[start] == word:
                positions += range(start, end + 1)
            if spelled == word or not word.startswith(spelled):
                break
    return positions


def _plain(token: str) -> str:
    """A token without the marks of its tokenizer."""
    return token.removeprefix("##").lstrip(_MARKS).strip() or token
