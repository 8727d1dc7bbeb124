"""Several translators as one: their log-probabilities are averaged at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError, UnavailableError
from regard.translate.alignment.heads import Head, shown_head
from regard.translate.alignment.matrix import Reading
from regard.translate.checkpoint import Checkpoint
from regard.translate.confidence import extra_entry, familiarity_of
from regard.translate.models.contract import (
    DecoderOutput,
    EncoderOutput,
    StepOutput,
    TranslationModel,
)

_SITE = "ensemble"


def ensemble(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Checkpoints of the same vocabularies as one, whose model is an `Ensemble`.

    Configuration and search options are those of the first. Confidence, which is calibrated for
    each alone, is left out.

    >>> from regard.translate import Translator, ensemble, load_checkpoint
    >>> one, other = load_checkpoint("english-french"), load_checkpoint("english-french")
    >>> Translator(ensemble([one, other]))("I love you.").text
    "Je t'aime."

    Args:
        checkpoints: at least two, which may be of different models.
    """
    checkpoints = list(checkpoints)
    if len(checkpoints) < 2:
        raise RegardError(f"ensemble: {len(checkpoints)} checkpoints, expected at least 2")
    first = checkpoints[0]
    for number, other in enumerate(checkpoints[1:], 2):
        for side in ("source", "target"):
            if not getattr(first, side).same_as(getattr(other, side)):
                sizes = [len(getattr(each, side)) for each in (first, other)]
                raise RegardError(
                    f"ensemble: the {side} vocabulary of checkpoint {number} ({sizes[1]:,} tokens) "
                    f"is not that of checkpoint 1 ({sizes[0]:,}), expected the same: train both "
                    "with the same [data] and [vocabulary], or one with training.start"
                )
    languages = [each.extra["languages"] for each in checkpoints if "languages" in each.extra]
    if any(other != languages[0] for other in languages):
        raise RegardError(
            f"ensemble: the checkpoints translate {' and '.join(map(' to '.join, languages))}, "
            "expected one direction"
        )
    heads = [shown_head(each.model, each.extra) for each in checkpoints]
    familiarity = familiarity_of(first.extra)
    extra = {} if familiarity is None else extra_entry(familiarity)
    model = Ensemble([each.model for each in checkpoints], heads)
    return replace(first, model=model.eval(), extra=extra)


class Ensemble(TranslationModel):
    """The mean of the log-probabilities of several models.

    Its one site is the mean of a head of each model, of those that have attention to the source and
    read it as the first of them does.

    Args:
        models: the models, of the same vocabularies.
        heads: the head of each and its reading; None where a model has no attention.
    """

    def __init__(
        self, models: Sequence[TranslationModel], heads: Sequence[tuple[Head | None, Reading]]
    ) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        readings = [reading for head, reading in heads if head is not None]
        self.reading = readings[0] if readings else "output"
        self.heads = [head if reading == self.reading else None for head, reading in heads]
        self.sites = {_SITE: 1} if readings else {}
        shown = [model for model, head in zip(models, self.heads) if head is not None]
        if any(model.kind != "distribution" for model in shown):
            self.kind = "partial"
        limits = [model.longest_source for model in models if model.longest_source is not None]
        self.longest_source = min(limits, default=None)

    @property
    def _models(self) -> list[TranslationModel]:
        return list(self.models)  # type: ignore[arg-type]

    def encode(self, source: Tensor, mask: Tensor, *, weights: bool = False) -> EncoderOutput:
        """Each model's own reading of the sources; attention inside encoders is not averaged."""
        return EncoderOutput(mask, tuple(model.encode(source, mask) for model in self._models))

    def start(self, encoded: EncoderOutput, beams: int = 1) -> tuple[Any, ...]:
        """Each model's own state."""
        return tuple(model.start(own, beams) for model, own in zip(self._models, encoded.memory))

    def step(
        self, encoded: EncoderOutput, state: Any, tokens: Tensor, *, weights: bool = False
    ) -> StepOutput:
        """The mean of the log-probabilities; they are not normalised again."""
        steps = [
            model.step(own, own_state, tokens, weights=weights and bool(model.sites))
            for model, own, own_state in zip(self._models, encoded.memory, state)
        ]
        return StepOutput(
            _mean([step.logits for step in steps]),
            tuple(step.state for step in steps),
            self._mean_head([step.weights for step in steps]) if weights else {},
        )

    def decode(
        self,
        encoded: EncoderOutput,
        target: Tensor,
        *,
        weights: bool | str = False,
        forcing: float = 1.0,
    ) -> DecoderOutput:
        """Whole targets; the features are the mean log-probabilities."""
        if forcing != 1.0:
            raise UnavailableError(
                f"Ensemble: forcing is {forcing}, expected 1: its models are trained one by one"
            )
        decoded = [
            model.decode(own, target, weights=bool(weights and model.sites))
            for model, own in zip(self._models, encoded.memory)
        ]
        features = _mean(
            [model.logits(each.features) for model, each in zip(self._models, decoded)]
        )
        seen = self._mean_head([each.weights for each in decoded]) if weights else {}
        return DecoderOutput(features, seen)

    def logits(self, features: Tensor) -> Tensor:
        """The features themselves."""
        return features

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Refused: a file holds one model."""
        raise UnavailableError(
            "an ensemble is not saved as one file: load its checkpoints together, as "
            "Translator.load([one, other])"
        )

    def _mean_head(self, weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The mean of the heads, as the one head of the one site."""
        rows = [
            head.of({head.site: own[head.site].transpose(0, 1)})  # heads come first
            for head, own in zip(self.heads, weights)
            if head is not None
        ]
        return {_SITE: torch.stack(rows).mean(0)[:, None]} if rows else {}


def _mean(
    logits: Sequence[Float[Tensor, "*position vocabulary"]],
) -> Float[Tensor, "*position vocabulary"]:
    """The mean of the logarithms of the probabilities."""
    return torch.stack([each.log_softmax(-1) for each in logits]).mean(0)
