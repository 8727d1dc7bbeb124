"""A model, the tokens that checks try it with, and what it answers: finite figures or an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RegardError
from regard.translate.models.contract import (
    DecoderOutput,
    EncoderOutput,
    StepOutput,
    TranslationModel,
)
from regard.translate.tokens import BEGIN, END, NAMES, PAD

TARGET = 8  # tokens the decoder is given
_SOURCE = 7  # tokens of the longest source, its end included
_EXTRA = 4  # additional padding
_SAME = 1e-4  # how far rounding may move logits, as a share of the largest

Tokens = Int[Tensor, "batch place"]


class NotFiniteError(RegardError):
    """Something is NaN or infinite: a check that meets it can compare nothing, and fails."""


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    `wanted` is what it asks of a model, `passed` is None where it does not apply, and `why` says
    plainly what was seen.
    """

    name: str
    wanted: str
    passed: bool | None
    why: str

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        return {True: "passed", False: "failed", None: "not applicable"}[self.passed]


@dataclass(frozen=True, eq=False)
class Probe:
    """A model and tokens to try it with.

    `lengths` are those of the sources, longest first, with their ends; `extra` is additional
    padding. Together they are no more than the model reads.
    """

    model: TranslationModel
    source_size: int
    target_size: int
    lengths: tuple[int, ...]
    extra: int
    random: torch.Generator
    device: torch.device

    @classmethod
    def of(cls, model: TranslationModel, source_size: int, seed: int) -> Probe:
        """Made for a model, whose parameters and first logits are found to be finite."""
        for name, parameter in model.named_parameters():
            _finite(f"the parameter {name}", parameter)
        device = next(model.parameters()).device
        end = torch.full((1, 1), END, device=device)
        encoded = model.encode(end, end != PAD)
        decoded = model.decode(encoded, torch.full_like(end, BEGIN))
        logits = model.logits(decoded.features)
        _finite("the model's logits", logits)
        target_size = logits.shape[-1]
        for side, size in (("source", source_size), ("target", target_size)):
            if size < len(NAMES) + 2:
                raise RegardError(
                    f"check_model: the {side} vocabulary has {size} tokens, "
                    f"expected at least {len(NAMES) + 2}"
                )
        lengths, extra = _lengths(model.longest_source)
        random = torch.Generator().manual_seed(seed)
        return cls(model, source_size, target_size, lengths, extra, random, device)

    def words(self, rows: int, length: int, size: int) -> Tokens:
        """Any tokens but the special ones."""
        tokens = torch.randint(len(NAMES), size, (rows, length), generator=self.random)
        return tokens.to(self.device)

    def sources(self, rows: int, length: int) -> Tokens:
        """Sources of this length, their end included."""
        end = torch.full((rows, 1), END, device=self.device)
        return torch.cat([self.words(rows, length - 1, self.source_size), end], 1)

    def targets(self, rows: int) -> Tokens:
        """What a decoder is given."""
        begin = torch.full((rows, 1), BEGIN, device=self.device)
        return torch.cat([begin, self.words(rows, TARGET - 1, self.target_size)], 1)

    def others(self, tokens: Tokens, size: int) -> Tokens:
        """A different token for each; special ones stay."""
        first = len(NAMES)
        shift = torch.randint(1, size - first, tokens.shape, generator=self.random)
        turned = (tokens - first + shift.to(self.device)) % (size - first) + first
        return torch.where(tokens < first, tokens, turned)

    def run(
        self,
        source: Int[Tensor, "batch source"],
        mask: Bool[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
    ) -> tuple[Float[Tensor, "batch target vocabulary"], DecoderOutput]:
        """Logits (batch, target, vocabulary), and the weights beside them."""
        encoded = self.model.encode(source, mask)
        decoded = self.model.decode(encoded, target, weights=bool(self.model.sites))
        logits = self.model.logits(decoded.features).double()
        _finite_answer(logits, decoded.weights, "" if mask.all() else " beside padding")
        return logits, decoded

    def step(self, encoded: EncoderOutput, state: Any, tokens: Int[Tensor, " row"]) -> StepOutput:
        """One step of the model, with its weights."""
        stepped = self.model.step(encoded, state, tokens, weights=True)
        _finite_answer(stepped.logits, stepped.weights)
        return stepped


def rounding(logits: Float[Tensor, "batch target vocabulary"]) -> float:
    """Logits that differ by no more are the same but for rounding."""
    return _SAME * max(1.0, float(logits.abs().max()))


def _lengths(limit: int | None) -> tuple[tuple[int, ...], int]:
    """The lengths of sources, and the extra padding, within what the model reads."""
    longest, extra = _SOURCE, _EXTRA
    if limit is not None and limit < longest + extra:
        if limit < 2:
            raise RegardError(
                f"check_model: the model reads at most {limit} tokens, expected at least 2: a word "
                "and the end of its sentence"
            )
        longest = max(2, limit * _SOURCE // (_SOURCE + _EXTRA))
        extra = min(_EXTRA, limit - longest)
    return (longest, max(1, longest - 2), max(1, longest - 4)), extra


def _finite_answer(logits: Tensor, weights: dict[str, Tensor], where: str = "") -> None:
    _finite(f"the model's logits{where}", logits)
    for site, site_weights in weights.items():
        _finite(f"the attention weights of {site}{where}", site_weights)


def _finite(name: str, values: Tensor) -> None:
    wrong = int((~values.isfinite()).sum())
    if wrong:
        raise NotFiniteError(
            f"{wrong} of {values.numel()} values of {name} are NaN or infinite, expected finite "
            "ones: nothing can be compared, and nothing translated"
        )
