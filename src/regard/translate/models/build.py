"""From a name and sizes to a model: the registry of all translation models."""

from __future__ import annotations

from collections.abc import Callable

from regard.errors import RegardError
from regard.translate.models import variants
from regard.translate.models.config import PRESETS, ModelConfig
from regard.translate.models.contract import TranslationModel
from regard.translate.models.transformer import build_transformer

__all__ = ["BUILDERS", "PRESETS", "ModelConfig", "build", "names"]

#: A builder takes the sizes of the source's and the target's vocabulary.
BUILDERS: dict[str, Callable[[ModelConfig, int, int], TranslationModel]] = {
    "none": variants.none,
    "encoder-dot": variants.encoder_dot,
    "encoder-qkv": variants.encoder_qkv,
    "dot": variants.dot,
    "qkv": variants.qkv,
    "luong-dot": variants.luong_dot,
    "luong-general": variants.luong_general,
    "luong-concat": variants.luong_concat,
    "local-m": variants.local_m,
    "local-p": variants.local_p,
    "bahdanau": variants.bahdanau,
    "tutorial": variants.tutorial,
    "transformer": build_transformer,
}


def names() -> list[str]:
    """The names of all models."""
    return list(BUILDERS)


def build(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """The model of a configuration, for vocabularies of these sizes.

    >>> from regard.translate.models.build import ModelConfig, build
    >>> model = build(ModelConfig("bahdanau", embedding=8, hidden=16), 20, 30)
    >>> model.sites
    {'cross': 1}
    """
    if config.name not in BUILDERS:
        raise RegardError(f"model.name is {config.name!r}, expected one of {', '.join(names())}")
    return BUILDERS[config.name](config, source_size, target_size)
