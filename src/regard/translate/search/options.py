"""The options of a search, and checks of what it is given."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import DtypeError, RegardError, ShapeError
from regard.translate.models.contract import TranslationModel
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN

_SAMPLING = ("temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True)
class SearchOptions:
    """How translations are searched for: the `[search]` table of a configuration.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `beam`             | beam width; 1 for greedy search                                      |
    | `length_penalty`   | α of Wu et al. (2016, equation 14): larger values favour long        |
    |                    | translations, 0 ranks by probability alone                           |
    | `coverage_penalty` | β of it: larger values favour translations that attend to every      |
    |                    | source token                                                         |
    | `shortest`         | minimum number of tokens before the end token                        |
    | `longest`          | maximum number of tokens, including the end token; 0 for twice the   |
    |                    | source plus ten, after `shortest` and a prefix                       |
    | `unknown`          | allow the token for unknown words                                    |
    | `sample`           | draw translations by chance instead of searching; `beam` then has no |
    |                    | effect, and penalties none on the tokens                             |
    | `temperature`      | of samples: logits are divided by it                                 |
    | `top_k`            | of samples: only so many tokens, the most probable; 0 for all        |
    | `top_p`            | of samples: only the most probable tokens that have this probability |
    |                    | together (Holtzman et al. 2020)                                      |
    | `seed`             | of samples                                                           |
    """

    beam: int = 5
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    shortest: int = 0
    longest: int = 0
    unknown: bool = True
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_sampling()
        _check_at_least("beam", self.beam, 1)
        _check_at_least("shortest", self.shortest, 0)
        _check_at_least("longest", self.longest, 0)
        if self.longest and self.shortest >= self.longest:
            raise RegardError(
                f"search.shortest is {self.shortest}, expected less than search.longest, "
                f"{self.longest}, which includes the end token"
            )
        if not math.isfinite(self.length_penalty):
            raise RegardError(
                f"search.length_penalty is {self.length_penalty}, expected a finite number"
            )
        if not 0 <= self.coverage_penalty < math.inf:
            raise RegardError(
                f"search.coverage_penalty is {self.coverage_penalty}, expected a finite number, at "
                "least 0"
            )

    def _check_sampling(self) -> None:
        _check_at_least("top_k", self.top_k, 0)
        _check_at_least("seed", self.seed, 0)
        if not 0 < self.temperature < math.inf:
            raise RegardError(
                f"search.temperature is {self.temperature}, expected a finite number above 0"
            )
        if not 0 < self.top_p <= 1:
            raise RegardError(f"search.top_p is {self.top_p}, expected above 0 and at most 1")
        if self.sample:
            return
        for name in _SAMPLING:
            if getattr(self, name) != getattr(SearchOptions, name):
                raise RegardError(
                    f"search.{name} is {getattr(self, name)}, which has no effect without "
                    "search.sample"
                )

    @property
    def unsampled(self) -> SearchOptions:
        """The same without sampling."""
        sampling = {name: getattr(SearchOptions, name) for name in _SAMPLING}
        return replace(self, sample=False, **sampling)

    @property
    def greedy(self) -> SearchOptions:
        """The same with the most probable token at each step."""
        return replace(self.unsampled, beam=1)

    @property
    def candidates(self) -> int:
        """Candidates per sentence: enough to refill the beam if every hypothesis ends."""
        return 1 if self.beam == 1 else 2 * self.beam

    def forbidden(self, step: int) -> tuple[int, ...]:
        """Tokens that this step may not produce."""
        end = (END,) if step < self.shortest else ()
        return end if self.unknown else (*end, UNKNOWN)

    def limits(
        self, mask: Bool[Tensor, "sentence source"], prefix: Int[Tensor, "sentence forced"]
    ) -> Int[Tensor, " sentence"]:
        """Maximum number of tokens of each sentence."""
        forced = (prefix >= 0).sum(1)
        if not self.longest:
            return forced + 2 * mask.sum(1) + 10 + self.shortest
        too_long = (forced > self.longest).nonzero()
        if len(too_long):
            sentence = int(too_long[0])
            raise RegardError(
                f"search: prefix[{sentence}] has {int(forced[sentence])} tokens, expected at most "
                f"longest, {self.longest}"
            )
        return torch.full_like(forced, self.longest)


def check_n_best(n_best: int, options: SearchOptions) -> None:
    """Refuse more hypotheses than the beam holds; there are as many samples as wanted."""
    _check_at_least("n_best", n_best, 1)
    if n_best > options.beam and not options.sample:
        raise RegardError(
            f"search: n_best is {n_best}, expected at most the beam, {options.beam}; say a beam of "
            f"{n_best}"
        )


def check_source(
    model: TranslationModel, source: Tensor, mask: Tensor, options: SearchOptions
) -> None:
    """Refuse tensors that are no batch of sentences, and a penalty that needs attention."""
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
    if options.coverage_penalty and not model.sites:
        raise RegardError(
            f"search: coverage_penalty is {options.coverage_penalty}, but {type(model).__name__} "
            "has no attention from target to source; expected 0"
        )


def _check_padding(mask: Bool[Tensor, "sentence source"]) -> None:
    """Refuse padding before a token: models count positions from the left."""
    tokens = mask.sum(1)
    positions = torch.arange(mask.shape[1], device=mask.device)
    wrong = (mask != (positions < tokens[:, None])).nonzero()
    if len(wrong):
        sentence, position = wrong[0].tolist()
        raise RegardError(
            f"search: mask[{sentence}] is False at place {position}, before the last of its "
            f"{int(tokens[sentence])} tokens, expected padding on the right alone"
        )


def prefix_table(
    prefix: Sequence[Sequence[int]] | None, sentences: int, device: torch.device
) -> Int[Tensor, "sentence forced"]:
    """The tokens each sentence must begin with, padded with -1."""
    if prefix is None:
        return torch.full((sentences, 0), -1, device=device)
    if len(prefix) != sentences:
        raise RegardError(
            f"search: prefix has {len(prefix)} entries, expected one a sentence, {sentences}"
        )
    longest = max(map(len, prefix), default=0)
    rows = [
        [_checked_token(token, sentence) for token in tokens] + [-1] * (longest - len(tokens))
        for sentence, tokens in enumerate(prefix)
    ]
    return torch.tensor(rows, dtype=torch.long, device=device).view(sentences, longest)


def _checked_token(token: int, sentence: int) -> int:
    """A token of a prefix as an int; special tokens are refused."""
    try:
        number = operator.index(token)
    except TypeError:
        number = -1
    if number < 0 or number in (PAD, BEGIN, END):
        raise RegardError(
            f"search: prefix[{sentence}] holds {token}, expected tokens that can be said "
            f"before the end (not {PAD}, {BEGIN} or {END})"
        )
    return number


def check_vocabulary(prefix: Int[Tensor, "sentence forced"], size: int) -> None:
    """Refuse tokens of a prefix that are not in the vocabulary."""
    beyond = (prefix >= size).nonzero()
    if len(beyond):
        sentence = int(beyond[0, 0])
        raise RegardError(
            f"search: prefix[{sentence}] holds {int(prefix[tuple(beyond[0])])}, expected tokens "
            f"below {size}, the size of the model's vocabulary"
        )


def _check_at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int):
        raise RegardError(f"search.{name} is {value}, expected a whole number")
    if value < least:
        raise RegardError(f"search.{name} is {value}, expected at least {least}")
