"""Translation whose alignments can be read: data, models, training, search, alignment, scores.

| to …                          | use                                                            |
|-------------------------------|----------------------------------------------------------------|
| translate                     | `Translator`, which returns a `Translation`                    |
| train                         | `Config`, `train`                                              |
| build a model                 | `build_model` with a `ModelConfig`; `TranslationModel`         |
| read and write a translator   | `Checkpoint`, `load_checkpoint`, `save_checkpoint`             |
| search                        | `beam_search` with `SearchOptions`, which returns `Hypothesis` |
| align                         | `align`, which returns an `Alignment`                          |
| score                         | `score`, `compare`, `evaluate` with `EvaluationOptions`        |
| check a model                 | `check_model`                                                  |
| use several models as one     | `ensemble`                                                     |
| use a model in other packages | `export`                                                       |

The rest is in the packages: `regard.translate.data`, `vocabulary`, `alignment` and so on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.translate.alignment import Alignment, align
    from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from regard.translate.checks import check_model
    from regard.translate.config import Config
    from regard.translate.ensembles import ensemble
    from regard.translate.evaluation import EvaluationOptions, compare, evaluate, score
    from regard.translate.exporting import export
    from regard.translate.models.build import ModelConfig, build_model
    from regard.translate.models.contract import TranslationModel
    from regard.translate.search import Hypothesis, SearchOptions, beam_search
    from regard.translate.training import train
    from regard.translate.translator import Translation, Translator

#: Where each name is. They are imported when first used: training needs packages that reading an
#: alignment does not.
_MODULES = {
    "Alignment": "alignment",
    "Checkpoint": "checkpoint",
    "Config": "config",
    "EvaluationOptions": "evaluation",
    "Hypothesis": "search",
    "ModelConfig": "models.build",
    "SearchOptions": "search",
    "Translation": "translator",
    "TranslationModel": "models.contract",
    "Translator": "translator",
    "align": "alignment",
    "beam_search": "search",
    "build_model": "models.build",
    "check_model": "checks",
    "compare": "evaluation",
    "ensemble": "ensembles",
    "evaluate": "evaluation",
    "export": "exporting",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "score": "evaluation",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


__all__ = [
    "Alignment",
    "Checkpoint",
    "Config",
    "EvaluationOptions",
    "Hypothesis",
    "ModelConfig",
    "SearchOptions",
    "Translation",
    "TranslationModel",
    "Translator",
    "align",
    "beam_search",
    "build_model",
    "check_model",
    "compare",
    "ensemble",
    "evaluate",
    "export",
    "load_checkpoint",
    "save_checkpoint",
    "score",
    "train",
]
