"""The registry of all translation models: a builder per name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from regard.errors import RegardError
from regard.translate.models import variants
from regard.translate.models.config import ModelConfig
from regard.translate.models.contract import TranslationModel
from regard.translate.models.transformer import build_transformer

__all__ = ["BUILDERS", "ModelConfig", "build_model", "check_model_config", "names"]

#: A builder takes the sizes of the source's and the target's vocabulary. The dot product of the
#: well-known figure is Luong's: one model, under both names.
BUILDERS: dict[str, Callable[[ModelConfig, int, int], TranslationModel]] = {
    "none": variants.none,
    "encoder-dot": variants.encoder_dot,
    "encoder-qkv": variants.encoder_qkv,
    "dot": variants.luong_dot,
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

_CURRENT = {"dot", "qkv", "luong-dot", "luong-general", "luong-concat", "local-m", "local-p"}
_RECURRENT = set(BUILDERS) - {"transformer"}
#: Settings that not every model has: the models that have them, and why others do not.
_ONLY = {
    "cell": (_RECURRENT, "only recurrent models have cells"),
    "bidirectional": (_RECURRENT, "only recurrent models read in a direction"),
    "reverse_source": (_RECURRENT, "only recurrent models read in a direction"),
    "input_feeding": (
        _CURRENT,
        "only the models whose current state is the query have an attentional state to feed",
    ),
    "aligner": (
        _CURRENT,
        "only the models whose current state is the query have a second attention",
    ),
    "heads": ({"transformer"}, "only the Transformer has a number of heads"),
    "feed_forward": ({"transformer"}, "only the Transformer has feed-forward layers"),
    "norm": ({"transformer"}, "only the Transformer has norms"),
    "longest": ({"tutorial"}, "only the tutorial's attention has a maximum source length"),
}


def names() -> list[str]:
    """The names of all models."""
    return list(BUILDERS)


def build_model(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """The model of a configuration, for vocabularies of these sizes.

    >>> from regard.translate.models.build import ModelConfig, build_model
    >>> model = build_model(ModelConfig("bahdanau", embedding=8, hidden=16), 20, 30)
    >>> model.sites
    {'cross': 1}
    """
    check_model_config(config)
    return BUILDERS[config.name](config, source_size, target_size)


def check_model_config(config: ModelConfig) -> None:
    """Refuse an unknown model, and settings that it does not have."""
    if config.name not in BUILDERS:
        near = get_close_matches(config.name, names(), 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise RegardError(
            f"model.name is {config.name!r}, expected one of {', '.join(names())}{meant}"
        )
    _check_settings(config)


def _check_settings(config: ModelConfig) -> None:
    """Refuse settings that the model would ignore."""
    for setting, (models, why) in _ONLY.items():
        value, default = getattr(config, setting), getattr(ModelConfig, setting)
        if value != default and config.name not in models:
            raise RegardError(
                f"model.{setting} is {_written(value)} with model.name {config.name!r}, expected "
                f"{_written(default)}, the default: {why}"
            )


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
