"""What a search was asked for, checked."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import DtypeError, RegardError, ShapeError
from regard.translate.models.contract import TranslationModel
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN


@dataclass(frozen=True, eq=False)
class Rules:
    """The arguments of `search` that do not belong to a sentence."""

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    shortest: int = 0
    longest: int | None = None
    unknown: bool = True
    weights: bool = True

    def __post_init__(self) -> None:
        _at_least("beam", self.beam, 1)
        _at_least("n_best", self.n_best, 1)
        _at_least("shortest", self.shortest, 0)
        if self.n_best > self.beam:
            raise RegardError(
                f"search: n_best is {self.n_best}, expected at most the beam, {self.beam}; say a "
                f"beam of {self.n_best}"
            )
        if self.longest is not None:
            _at_least("longest", self.longest, 1)
            if self.shortest >= self.longest:
                raise RegardError(
                    f"search: shortest is {self.shortest}, expected less than longest, "
                    f"{self.longest}, so that END may still be said"
                )
        if not math.isfinite(self.length_penalty):
            raise RegardError(
                f"search: length_penalty is {self.length_penalty}, expected a finite number"
            )
        if not 0 <= self.coverage_penalty < math.inf:
            raise RegardError(
                f"search: coverage_penalty is {self.coverage_penalty}, expected 0 or more, and "
                "finite"
            )

    @property
    def candidates(self) -> int:
        """Enough to fill the beam again when every hypothesis ends; one that ends is the last."""
        return 1 if self.beam == 1 else 2 * self.beam

    def forbidden(self, step: int) -> tuple[int, ...]:
        """Tokens that may not be said in this step."""
        end = (END,) if step < self.shortest else ()
        return end if self.unknown else (*end, UNKNOWN)

    def limits(
        self, mask: Bool[Tensor, "sentence source"], prefix: Int[Tensor, "sentence forced"]
    ) -> Int[Tensor, " sentence"]:
        """How many tokens each sentence may have."""
        forced = (prefix >= 0).sum(1)
        if self.longest is None:
            return forced + 2 * mask.sum(1) + 10 + self.shortest
        too_long = (forced > self.longest).nonzero()
        if len(too_long):
            place = int(too_long[0])
            raise RegardError(
                f"search: prefix[{place}] has {int(forced[place])} tokens, expected at most "
                f"longest, {self.longest}"
            )
        return torch.full_like(forced, self.longest)


def check_source(model: TranslationModel, source: Tensor, mask: Tensor, rules: Rules) -> None:
    """Refuse what is no batch of sentences, or a penalty that the model cannot serve."""
    if source.dim() != 2 or source.dtype not in (torch.int64, torch.int32):
        raise ShapeError(
            f"search: source has shape {tuple(source.shape)} and dtype {source.dtype}, expected "
            "(sentence, source) of torch.int64 or torch.int32"
        )
    if mask.shape != source.shape:
        raise ShapeError(
            f"search: mask has shape {tuple(mask.shape)}, expected {tuple(source.shape)} as source"
        )
    if mask.dtype != torch.bool:
        raise DtypeError(f"search: mask is {mask.dtype}, expected torch.bool, True at tokens")
    without = (~mask.any(1)).nonzero()
    if len(without):
        raise RegardError(
            f"search: sentence {int(without[0])} has no tokens, expected at least its end"
        )
    _check_padding(mask)
    if rules.coverage_penalty and not model.sites:
        raise RegardError(
            f"search: coverage_penalty is {rules.coverage_penalty}, but {type(model).__name__} has "
            "no attention from target to source; expected 0"
        )


def _check_padding(mask: Bool[Tensor, "sentence source"]) -> None:
    """Refuse padding before a token: models count places from the left."""
    tokens = mask.sum(1)
    places = torch.arange(mask.shape[1], device=mask.device)
    wrong = (mask != (places < tokens[:, None])).nonzero()
    if len(wrong):
        sentence, place = wrong[0].tolist()
        raise RegardError(
            f"search: mask[{sentence}] is False at place {place}, before the last of its "
            f"{int(tokens[sentence])} tokens, expected padding on the right alone"
        )


def prefix_table(
    prefix: Sequence[Sequence[int]] | None, sentences: int, device: torch.device
) -> Int[Tensor, "sentence forced"]:
    """The tokens each sentence must begin with, then -1; `check_vocabulary` knows the largest."""
    if prefix is None:
        return torch.full((sentences, 0), -1, device=device)
    if len(prefix) != sentences:
        raise RegardError(
            f"search: prefix has {len(prefix)} entries, expected one a sentence, {sentences}"
        )
    longest = max(map(len, prefix), default=0)
    rows = [
        [_sayable(token, place) for token in tokens] + [-1] * (longest - len(tokens))
        for place, tokens in enumerate(prefix)
    ]
    return torch.tensor(rows, dtype=torch.long, device=device).view(sentences, longest)


def _sayable(token: int, place: int) -> int:
    """A token of a prefix, as a whole number above those that are never said before the end."""
    try:
        number = operator.index(token)
    except TypeError:
        number = -1
    if number < 0 or number in (PAD, BEGIN, END):
        raise RegardError(
            f"search: prefix[{place}] holds {token}, expected tokens that can be said "
            f"before the end (not {PAD}, {BEGIN} or {END})"
        )
    return number


def check_vocabulary(prefix: Int[Tensor, "sentence forced"], size: int) -> None:
    """Refuse a prefix that the model has no word for: it has tokens below `size`."""
    beyond = (prefix >= size).nonzero()
    if len(beyond):
        place = int(beyond[0, 0])
        raise RegardError(
            f"search: prefix[{place}] holds {int(prefix[tuple(beyond[0])])}, expected tokens below "
            f"{size}, the size of the model's vocabulary"
        )


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int):
        raise RegardError(f"search: {name} is {value}, expected a whole number")
    if value < least:
        raise RegardError(f"search: {name} is {value}, expected at least {least}")
