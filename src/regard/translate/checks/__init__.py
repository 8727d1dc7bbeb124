"""Checks of a translation model, each with a verdict in plain words.

They use the contract of a model only. Each is an experiment: changing what must not matter must not
change the output; changing what must matter must.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from regard.translate.checks.encoder_use import check_encoder_use
from regard.translate.checks.probe import NotFiniteError, Probe, Verdict
from regard.translate.checks.soundness import check_causal, check_padding
from regard.translate.models.contract import TranslationModel, evaluating

__all__ = ["Verdict", "check_model"]


class _Check(NamedTuple):
    name: str
    wanted: str
    run: Callable[[Probe], tuple[bool | None, str]]


_CHECKS = (
    _Check("causal", "no word may depend on later ones", check_causal),
    _Check("padding", "nothing may depend on the rest of a batch", check_padding),
    _Check("uses the encoder", "attention must depend on the source", check_encoder_use),
)


def check_model(model: TranslationModel, source_size: int, *, seed: int = 0) -> list[Verdict]:
    """Run all checks on a model, trained or not.

    All fail if a parameter or a logit is NaN or infinite.

    >>> from regard.translate.models.build import ModelConfig, build_model
    >>> model = build_model(ModelConfig("tutorial", embedding=8, hidden=8), 20, 20)
    >>> [(verdict.name, verdict.word) for verdict in check_model(model, 20)]
    [('causal', 'passed'), ('padding', 'passed'), ('uses the encoder', 'failed')]

    Args:
        model: any model under the contract. It is run in eval mode and left as it was.
        source_size: how many tokens its source vocabulary has.
        seed: of the tokens it is tried with.
    """
    with evaluating(model), torch.inference_mode():
        try:
            probe = Probe.of(model, source_size, seed)
        except NotFiniteError as error:
            return [Verdict(check.name, check.wanted, False, str(error)) for check in _CHECKS]
        return [_verdict(check, probe) for check in _CHECKS]


def _verdict(check: _Check, probe: Probe) -> Verdict:
    try:
        return Verdict(check.name, check.wanted, *check.run(probe))
    except NotFiniteError as error:
        return Verdict(check.name, check.wanted, False, str(error))
