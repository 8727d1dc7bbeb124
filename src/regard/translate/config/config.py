"""The configuration of a training, read from TOML.

A file names what differs from the defaults. An unknown key, or a value of the wrong type, is an
error that suggests the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.tables import absolute_path, merged, override, read_table, read_toml, write_toml
from regard.translate.config.data import DataConfig, VectorsConfig, VocabularyConfig
from regard.translate.config.training import TrainingConfig
from regard.translate.models.build import ModelConfig, check_model_config
from regard.translate.search import SearchOptions
from regard.translate.shipped import is_shipped


@dataclass(frozen=True)
class Config:
    """The configuration of a training; stored in its checkpoints.

    >>> config = Config.from_table({"model": {"name": "bahdanau"}}, ["model.hidden=256"])
    >>> config.model.hidden, config.training.epochs
    (256, 20)

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | `preset`     | settings by name, below those of the file: one of `PRESETS`, or none       |
    | `data`       | where the pairs are, and which of them count: `DataConfig`                 |
    | `vocabulary` | what sentences are cut into: `VocabularyConfig`                            |
    | `model`      | which model, and its sizes: `ModelConfig`                                  |
    | `vectors`    | word vectors to begin with: `VectorsConfig`                                |
    | `training`   | how long, in which batches, how: `TrainingConfig`                          |
    | `search`     | how the finished model is asked for translations: `SearchOptions`          |
    """

    preset: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    vectors: VectorsConfig = field(default_factory=VectorsConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchOptions = field(default_factory=SearchOptions)

    def __post_init__(self) -> None:
        if self.training.start and self.vectors.files:
            raise RegardError(
                f"training.start is {self.training.start}, whose embeddings are trained already: "
                "leave [vectors] out"
            )
        schedule = self.training.schedule.name
        if self.data.buffer and schedule in ("linear", "cosine") and not self.training.steps:
            raise RegardError(
                f"training.schedule.name is {schedule!r}, which ends with the last step, but how "
                "many steps an epoch has is not known with data.buffer: set training.steps"
            )
        for side, file in self.vectors.files.items():
            if self.vocabulary.kind != "words":
                raise RegardError(
                    f"vectors.{side} is {file}, but vocabulary.kind is {self.vocabulary.kind!r}: "
                    "word vectors are for 'words'"
                )

    @staticmethod
    def from_table(table: Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
        """From nested tables, over the preset they name; then settings such as
        `model.hidden=256`."""
        settings = dict(table)
        for setting in overrides:
            settings = override(Config, settings, setting)
        name = settings.get("preset", "")
        if name != "" and (not isinstance(name, str) or name not in PRESETS):
            raise RegardError(f"preset must be one of {', '.join(PRESETS)}; found {name!r}")
        return read_table(Config, merged(PRESETS.get(name, {}), settings))

    @staticmethod
    def from_file(
        path: str | Path, overrides: Iterable[str] = (), folder: Path | None = None
    ) -> Config:
        """From a TOML file; its paths are made absolute, from its own folder when None."""
        path, overrides = Path(path), list(overrides)
        table = read_toml(path)
        try:
            config = Config.from_table(table, overrides)
            check_model_config(config.model)
            check_unused_settings(config)
            return _with_absolute_paths(config, path.parent if folder is None else folder)
        except RegardError as error:
            over = f" with {', '.join(overrides)}" if overrides else ""
            raise RegardError(f"{path}{over}: {error}") from error

    def without_paths(self) -> Config:
        """Without paths of a machine: data, vectors and the initial checkpoint."""
        training = replace(self.training, start="")
        return replace(self, data=DataConfig(), vectors=VectorsConfig(), training=training)

    def table(self) -> dict[str, Any]:
        """As nested tables; `from_table` makes the same of them."""
        return asdict(self)

    def toml(self) -> str:
        """As a TOML file."""
        return write_toml(self.table())


#: Settings by name, below those of the file. "reference" is the shape of the tutorial figures:
#: embedding 300, hidden 500, at most 100 words, dictionaries of 9 and 10 thousand. Batches are
#: small, so that a corpus of captions makes some hundred steps in ten minutes of one core, with a
#: rate that falls from early on.
PRESETS: dict[str, dict[str, Any]] = {
    "reference": {
        "data": {"longest": 100},
        "vocabulary": {"kind": "words", "source_size": 9_000, "target_size": 10_000},
        "model": {"embedding": 300, "hidden": 500, "longest": 100},
        "training": {
            "batch_tokens": 500,
            "log_every": 10,
            "optimiser": {"rate": 2e-3},
            "schedule": {"name": "inverse-square-root", "warmup": 150},
            "validation": {"every": 250},
        },
    }
}


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    """With absolute paths."""

    resolve = partial(absolute_path, folder=folder)
    splits = {
        name: tuple(map(resolve, getattr(config.data, name))) for name in ("train", "valid", "test")
    }
    vectors = {side: resolve(file) for side, file in config.vectors.files.items()}
    start = config.training.start
    ships = is_shipped(start, folder)
    return replace(
        config,
        data=replace(config.data, **splits),  # type: ignore[arg-type]
        vectors=replace(config.vectors, **vectors),  # type: ignore[arg-type]
        training=replace(config.training, start=resolve(start) if start and not ships else start),
    )


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
