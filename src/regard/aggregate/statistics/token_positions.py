"""The positions of an attention: which are real, which are special, and their tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.aggregate.sources import Layer
from regard.errors import RegardError, ShapeError

# Tokens that hold a text together. [UNK] and [MASK] stand for words, and are not among them.
_SPECIAL = re.compile(
    r"\[(cls|sep|pad|bos|eos)\]|</?s>|<(pad|bos|eos|cls|sep)>|<[|｜].+[|｜]>|<(start|end)_of_\w+>",
    re.IGNORECASE,
)


class Positions(NamedTuple):
    """The positions of one attention, on the CPU; the first axis is batch or 1."""

    rows: Bool[Tensor, "batch_or_1 query"]  #: queries that count
    keys: Bool[Tensor, "batch_or_1 key"]  #: keys that are not padding
    special: Bool[Tensor, "_ key"] | None
    tokens: Int[Tensor, "_ key"] | None

    @property
    def first(self) -> Int[Tensor, " batch_or_1"]:
        """The first real key."""
        return self.keys.int().argmax(1)

    @property
    def last(self) -> Int[Tensor, " batch_or_1"]:
        """The last real key."""
        return self.keys.shape[1] - 1 - self.keys.int().flip(1).argmax(1)

    @property
    def is_first(self) -> Bool[Tensor, "batch_or_1 key"]:
        """Whether a key is the first real one."""
        return torch.arange(self.keys.shape[1]) == self.first[:, None]

    @property
    def ordinary(self) -> Bool[Tensor, "_ key"]:
        """Keys that are real, not the first one, and not special."""
        plain = self.keys & ~self.is_first
        return plain if self.special is None else plain & ~self.special


def positions_of(layer: Layer, cross: bool, tokens: Any, real: Any, special: Any) -> Positions:
    """From the caller's arguments, else from the layer's record."""
    batch, _, queries, keys = layer.recipe.shape
    if tokens is None and layer.record is not None:
        tokens = layer.record.key_tokens
    numbers, spelled = None, None
    if tokens is not None:
        numbers, spelled = _token_numbers(layer.name, tokens)
        _check_size(layer.name, "tokens", numbers, batch, keys, "key")
    chosen = spelled if special is None else _special(layer.name, special, batch, keys)
    everywhere = torch.ones(1, keys, dtype=torch.bool)
    if real is None:
        return Positions(everywhere[:, :1].expand(1, queries), everywhere, chosen, numbers)
    kept = _real(layer.name, real)
    _check_size(layer.name, "real", kept, batch, queries if cross else keys, "position")
    if cross:
        return Positions(kept, everywhere, chosen, numbers)
    return Positions(kept[:, keys - queries :], kept, chosen, numbers)


def is_special(token: str) -> bool:
    """Whether a token is special by its spelling, as "[CLS]", "</s>" or "<|endoftext|>"."""
    return _SPECIAL.fullmatch(token.strip()) is not None


def _token_numbers(name: str, tokens: Any) -> tuple[Tensor, Tensor | None]:
    """Numbers of tokens (batch or 1, key), and which are special, where words tell."""
    if isinstance(tokens, Tensor):
        if tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.dim() not in (1, 2):
            raise ShapeError(
                f"{name}: tokens are {tokens.dtype} {tuple(tokens.shape)}, expected whole numbers "
                "(key,) or (batch, key)"
            )
        return _by_example(tokens.detach().cpu()), None
    rows = [tokens] if _flat(tokens) else tokens
    if not isinstance(rows, list | tuple) or not all(_flat(row) for row in rows):
        raise RegardError(
            f"{name}: tokens={tokens!r:.60}, expected words or numbers, one for each key, or a "
            "list of them for each example"
        )
    if len({len(row) for row in rows}) != 1:
        raise ShapeError(f"{name}: tokens: the examples have different numbers of positions")
    seen: dict[Any, int] = {}
    numbers = torch.tensor([[seen.setdefault(word, len(seen)) for word in row] for row in rows])
    if not all(isinstance(word, str) for word in seen):
        return numbers, None
    return numbers, torch.tensor([[is_special(word) for word in row] for row in rows])


def _flat(tokens: Any) -> bool:
    return isinstance(tokens, list | tuple) and all(
        isinstance(token, str | int) for token in tokens
    )


def _special(name: str, special: Any, batch: int, keys: int) -> Tensor:
    if isinstance(special, Tensor) and special.dtype == torch.bool:
        mask = _by_example(special.detach().cpu())
        _check_size(name, "special", mask, batch, keys, "key")
        return mask
    positions = special.tolist() if isinstance(special, Tensor) else special
    if not _are_positions(positions):
        raise RegardError(
            f"{name}: special={special!r:.60}, expected positions, as [0, -1], or a boolean tensor "
            "(key,) or (batch, key)"
        )
    mask = torch.zeros(1, keys, dtype=torch.bool)
    for position in positions:
        if not -keys <= position < keys:
            raise RegardError(f"{name}: special: position {position} is outside the {keys} keys")
        mask[0, position] = True
    return mask


def _are_positions(positions: Any) -> bool:
    return isinstance(positions, Sequence) and all(type(position) is int for position in positions)


def _real(name: str, real: Any) -> Tensor:
    """Which positions are real, (batch or 1, position)."""
    kept = torch.as_tensor(real).detach().cpu()
    if kept.dim() not in (1, 2) or not bool(((kept == 0) | (kept == 1)).all()):
        raise RegardError(
            f"{name}: real is {kept.dtype} {tuple(kept.shape)}, expected a boolean tensor "
            "(position,) or (batch, position), True where there is no padding"
        )
    return _by_example(kept).bool()


def _by_example(marks: Tensor) -> Tensor:
    """Marks of positions as (batch or 1, position)."""
    return marks if marks.dim() == 2 else marks[None]


def _check_size(
    name: str, argument: str, marks: Tensor, batch: int, length: int, axis: str
) -> None:
    if marks.shape[1] != length or marks.shape[0] not in (1, batch):
        raise ShapeError(
            f"{name}: {argument} is {tuple(marks.shape)}, expected ({length},) or "
            f"({batch}, {length}): one for each {axis}"
        )
