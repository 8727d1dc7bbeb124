"""Pairs as numbers, and batches of them as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.translate.data.pairs import Pair
from regard.translate.tokens import BEGIN, END, PAD
from regard.translate.vocabulary.contract import Vocabulary


@dataclass(frozen=True)
class Examples:
    """The numbers of each pair: the tokens of a sentence, then `END`."""

    source: list[list[int]]
    target: list[list[int]]

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ShapeError(f"{len(self.source)} sources, but {len(self.target)} targets")

    @classmethod
    def of(cls, pairs: Iterable[Pair], source: Vocabulary, target: Vocabulary) -> Examples:
        """The pairs as numbers of two vocabularies, which may be one and the same."""
        pairs = list(pairs)
        return cls(
            [[*source.encode(pair.source), END] for pair in pairs],
            [[*target.encode(pair.target), END] for pair in pairs],
        )

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pairs as tensors, padded on the right with 0; masks are True at tokens.

    The decoder is given `target_in` (`BEGIN` first) and must say `target_out` (`END` last).
    """

    source: Int[Tensor, "batch source"]
    source_mask: Bool[Tensor, "batch source"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    target_mask: Bool[Tensor, "batch target"]
    numbers: Int[Tensor, " batch"]  #: the places of the sentences in the data set

    def __len__(self) -> int:
        return len(self.numbers)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same on another device."""
        return Batch(
            *(
                getattr(self, field.name).to(device, non_blocking=non_blocking)
                for field in fields(self)
            )
        )


def collate(examples: Examples, numbers: Sequence[int]) -> Batch:
    """These examples as tensors."""
    source, source_mask = padded([examples.source[number] for number in numbers])
    targets = [examples.target[number] for number in numbers]
    target_in, _ = padded([[BEGIN, *target[:-1]] for target in targets])
    target_out, target_mask = padded(targets)
    return Batch(
        source,
        source_mask,
        target_in,
        target_out,
        target_mask,
        torch.tensor(list(numbers), dtype=torch.long),
    )


def padded(
    sentences: Sequence[Sequence[int]],
) -> tuple[Int[Tensor, "batch longest"], Bool[Tensor, "batch longest"]]:
    """Sentences as one tensor with padding on the right, and True where there is none."""
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    longest = max(map(len, sentences), default=0)
    tokens = torch.full((len(sentences), longest), PAD)
    mask = torch.arange(longest) < lengths[:, None]  # (batch, longest)
    tokens[mask] = torch.tensor(
        [token for sentence in sentences for token in sentence], dtype=torch.long
    )
    return tokens, mask
