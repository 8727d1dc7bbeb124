"""A batch of examples: what the model is called with, and what statistics may know of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.aggregate.statistics.head_sums import Questions
from regard.aggregate.statistics.token_positions import Positions
from regard.errors import RegardError, ShapeError
from regard.kernel.reducers import WeightedSum

#: Marks (booleans) or segments (whole numbers) of positions, by name.
Labels = Mapping[str, Shaped[Tensor, "batch position"]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples that a model reads together.

    >>> import torch
    >>> tokens = torch.tensor([[5, 6, 7], [8, 9, 0]])
    >>> batch = Batch({"input_ids": tokens}, real=tokens > 0, tokens=tokens)
    >>> len(batch), batch.n_tokens
    (2, 5)
    """

    inputs: Any  #: arguments of the model: a mapping by name, a tuple by order, or the only one
    real: Bool[Tensor, "batch position"]  #: which positions are not padding
    tokens: Int[Tensor, "batch position"] | None = None  #: their numbers
    #: what is known of positions: booleans mark some, whole numbers are segments
    labels: Labels = field(default_factory=dict)
    numbers: Sequence[int] = ()  #: of the examples in the corpus; set by `collect`
    texts: Sequence[str | None] = ()
    spelled: Callable[[list[int]], list[str]] | None = None  #: tokens of numbers, as strings
    n_cut: int = 0  #: how many examples were longer, and were cut

    def __post_init__(self) -> None:
        if self.real.dim() != 2 or self.real.dtype != torch.bool:
            raise RegardError(
                f"Batch: real is {self.real.dtype} {tuple(self.real.shape)}, expected a boolean "
                "tensor (batch, position), True where there is no padding"
            )
        described = {"tokens": self.tokens, **self.labels}
        for name, tensor in described.items():
            if tensor is not None and tensor.shape != self.real.shape:
                raise ShapeError(
                    f"Batch: {name} is {tuple(tensor.shape)}, expected {tuple(self.real.shape)} as "
                    "real: one for each position"
                )
        for name, numbers in (("numbers", self.numbers), ("texts", self.texts)):
            if len(numbers) not in (0, len(self)):
                raise ShapeError(
                    f"Batch: {len(numbers)} {name}, expected {len(self)}: one for each example"
                )

    def __len__(self) -> int:
        return len(self.real)

    @property
    def n_tokens(self) -> int:
        """How many positions are real."""
        return int(self.real.sum())

    @cached_property
    def positions(self) -> Positions:
        """The positions as figures of heads take them."""
        real, tokens = self.real.cpu(), None if self.tokens is None else self.tokens.cpu()
        special = self.labels.get("special")
        return Positions(real, real, None if special is None else special.cpu(), tokens)

    @cached_property
    def questions(self) -> Questions:
        """What is asked for the figures of heads; statistics that ask the same share it."""
        return Questions(self.positions, ordered=True)

    @cached_property
    def on_padding(self) -> WeightedSum | None:
        """Asks what each row has on padding; None where there is none."""
        padding = ~self.positions.keys
        return WeightedSum(padding[:, None, None].float()) if bool(padding.any()) else None

    def label(self, name: str, asker: str) -> Shaped[Tensor, "batch position"]:
        """One of the labels, on the CPU; an error that names those there are."""
        if name not in self.labels:
            raise RegardError(
                f"{asker}: no label {name!r}, there are {', '.join(self.labels) or 'none'}; "
                "collect(labels=...) makes them, and a tokenizer gives special, punctuation, word "
                "and category"
            )
        return self.labels[name].cpu()

    @cached_property
    def shown(self) -> dict[int, str]:
        """Text and tokens of each example, without padding, in JSON, by its number."""
        texts: Sequence[str | None] = self.texts or [None] * len(self)
        examples = {}
        for index, (number, text) in enumerate(zip(self.numbers, texts)):
            tokens: Any = None
            if self.tokens is not None:
                tokens = self.tokens[index][self.real[index]].tolist()
                tokens = tokens if self.spelled is None else self.spelled(tokens)
            examples[number] = json.dumps({"text": text, "tokens": tokens}, ensure_ascii=False)
        return examples
