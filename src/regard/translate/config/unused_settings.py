"""Settings that have no effect in combination with others: refused rather than ignored."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.translate.config.config import Config

_ADAM = ("adam", "adamw")
_DECAYING = ("linear", "exponential", "inverse-sigmoid")

#: A setting, the setting it depends on, and the values of that one with which it has an effect.
_NEEDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("vocabulary.pieces", "vocabulary.kind", ("pieces",)),
    ("vocabulary.tokenised", "vocabulary.kind", ("words",)),
    ("vocabulary.least", "vocabulary.kind", ("words",)),
    ("training.optimiser.beta1", "training.optimiser.name", _ADAM),
    ("training.optimiser.beta2", "training.optimiser.name", _ADAM),
    ("training.optimiser.epsilon", "training.optimiser.name", _ADAM),
    ("training.schedule.floor", "training.schedule.name", ("linear", "cosine")),
    ("training.schedule.halve_after", "training.schedule.name", ("halving",)),
    ("training.schedule.halve_every", "training.schedule.name", ("halving",)),
    ("training.validation.sentences", "training.validation.metric", ("bleu", "chrf")),
    ("training.forcing.end", "training.forcing.name", _DECAYING),
    ("training.forcing.steps", "training.forcing.name", _DECAYING),
)


def check_unused_settings(config: Config) -> None:
    """Refuse a setting that differs from its default but has no effect."""
    default = type(config)()
    for setting, needed, values in _NEEDS:
        value, other = attrgetter(setting, needed)(config)
        if value != attrgetter(setting)(default) and other not in values:
            raise RegardError(
                f"{setting} is {value!r}, which has no effect while {needed} is {other!r}, "
                f"expected {' or '.join(map(repr, values))}"
            )
    for split in ("valid", "test"):
        files, count = attrgetter(split, f"{split}_pairs")(config.data)
        if files and count:
            raise RegardError(
                f"data.{split}_pairs is {count}, which has no effect beside data.{split}: "
                "expected one of them"
            )
