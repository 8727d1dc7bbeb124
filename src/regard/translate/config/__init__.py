"""Configuration of a training: dataclasses with the defaults, read from TOML and checked."""

from regard.translate.config.config import PRESETS, Config
from regard.translate.config.data import DataConfig, VectorsConfig, VocabularyConfig
from regard.translate.config.training import (
    ForcingConfig,
    GuidanceConfig,
    Metric,
    OptimiserConfig,
    ScheduleConfig,
    TrainingConfig,
    ValidationConfig,
)
from regard.translate.models.build import ModelConfig
from regard.translate.search import SearchOptions

__all__ = [
    "PRESETS",
    "Config",
    "DataConfig",
    "ForcingConfig",
    "GuidanceConfig",
    "Metric",
    "ModelConfig",
    "OptimiserConfig",
    "ScheduleConfig",
    "SearchOptions",
    "TrainingConfig",
    "ValidationConfig",
    "VectorsConfig",
    "VocabularyConfig",
]
