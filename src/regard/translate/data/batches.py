"""Pairs as numbers, and batches of similar length in an order determined by seed and epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import RegardError, ShapeError
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
    numbers: Int[Tensor, " batch"]  #: the indices of the sentences in the data set

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
    """Sentences as one tensor, padded on the right, and a mask that is True at tokens."""
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    longest = max(map(len, sentences), default=0)
    tokens = torch.full((len(sentences), longest), PAD)
    mask = torch.arange(longest) < lengths[:, None]  # (batch, longest)
    tokens[mask] = torch.tensor(
        [token for sentence in sentences for token in sentence], dtype=torch.long
    )
    return tokens, mask


def batches(
    examples: Examples,
    *,
    tokens: int | None = None,
    sentences: int | None = None,
    seed: int,
    epoch: int,
    rank: int = 0,
    ranks: int = 1,
    shuffle: bool = True,
) -> list[list[int]]:
    """The numbers of the sentences in each batch of an epoch, for one of several processes.

    Sentences are sorted by the lengths of source and target, those of equal lengths in random
    order, then cut into batches. Over all ranks every sentence comes once, and every rank has as
    many batches as the others, of about the same lengths at the same step.

    Args:
        examples: the sentences.
        tokens: maximum number in a batch, with padding and `END`, of the longer side. A longer
            sentence is a batch of its own.
        sentences: maximum number in a batch; instead of `tokens`, or besides.
        seed: of the order.
        epoch: every epoch has another order; the same seed and epoch have the same.
        rank: which process this is.
        ranks: how many there are.
        shuffle: batches in random order; otherwise the shortest first.
    """
    _check(len(examples), tokens, sentences, rank, ranks)
    generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
    lengths = _lengths(examples)
    order = _by_length(lengths, generator)
    all_batches = _multiple(_cut(order, lengths, tokens, sentences), ranks)
    groups = list(range(0, len(all_batches), ranks))  # neighbours: one batch of each for every rank
    if shuffle:
        groups = [groups[index] for index in torch.randperm(len(groups), generator=generator)]
    return [all_batches[group + rank] for group in groups]


@dataclass(frozen=True)
class Padding:
    """The number of padding tokens, and of all tokens."""

    padding: int
    total: int

    @property
    def share(self) -> float:
        """The share of padding; 0 if there are no tokens."""
        return self.padding / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.padding:,} of {self.total:,} tokens are padding ({self.share:.1%})"


def padding(examples: Examples, batches: Sequence[Sequence[int]]) -> Padding:
    """How much of these batches, sources and targets together, is padding."""
    tokens = total = 0
    for numbers in batches:
        for side in (examples.source, examples.target):
            lengths = [len(side[number]) for number in numbers]
            tokens += sum(lengths)
            total += len(lengths) * max(lengths, default=0)
    return Padding(total - tokens, total)


def _check(count: int, tokens: int | None, sentences: int | None, rank: int, ranks: int) -> None:
    if tokens is None and sentences is None:
        raise RegardError("batches: how large? expected tokens= or sentences=")
    for name, value in (("tokens", tokens), ("sentences", sentences), ("ranks", ranks)):
        if value is not None and value < 1:
            raise RegardError(f"batches: {name}={value}, expected at least 1")
    if not 0 <= rank < ranks:
        raise RegardError(f"batches: rank={rank}, expected 0 to {ranks - 1}")
    if 0 < count < ranks:
        raise RegardError(f"batches: {count} sentences are too few for {ranks} ranks")


def epoch_seed(seed: int, epoch: int) -> int:
    """One number of two, far apart for neighbours."""
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _lengths(examples: Examples) -> list[tuple[int, int]]:
    return [(len(source), len(target)) for source, target in zip(examples.source, examples.target)]


def _by_length(lengths: list[tuple[int, int]], generator: torch.Generator) -> list[int]:
    """All sentences by source, then target length, which turns at each source length.

    It rises where the source length is even and falls where it is odd, so that a batch over two
    source lengths has targets of like length.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()

    def key(number: int) -> tuple[int, int]:
        source, target = lengths[number]
        return source, -target if source % 2 else target

    return sorted(order, key=key)


def _cut(
    order: list[int], lengths: list[tuple[int, int]], tokens: int | None, sentences: int | None
) -> list[list[int]]:
    batches: list[list[int]] = []
    longest = 0
    for number in order:
        wider = max(longest, *lengths[number])
        full = bool(batches) and (
            (sentences is not None and len(batches[-1]) >= sentences)
            or (tokens is not None and (len(batches[-1]) + 1) * wider > tokens)
        )
        if full or not batches:
            batches.append([])
            wider = max(lengths[number])
        batches[-1].append(number)
        longest = wider
    return batches


def _multiple(batches: list[list[int]], ranks: int) -> list[list[int]]:
    """Batches whose number is a multiple of `ranks`: the largest are halved.

    Where all are single sentences, the first, which are the shortest, are joined.
    """
    batches = list(batches)
    while len(batches) % ranks:
        largest = max(range(len(batches)), key=lambda index: len(batches[index]))
        whole = batches[largest]
        if len(whole) == 1:
            joined = len(batches) % ranks + 1
            return [[number for (number,) in batches[:joined]], *batches[joined:]]
        middle = len(whole) // 2
        batches[largest : largest + 1] = [whole[:middle], whole[middle:]]
    return batches
