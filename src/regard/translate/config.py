"""What a training is told: data, vocabularies, model, training, search; read from TOML.

A file names what differs from the defaults. A key that does not exist, or a value of the wrong
type, is an error that names the nearest thing that does.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from regard.errors import RegardError
from regard.translate.models.build import ModelConfig
from regard.translate.settings import merged, override, read_table, write_toml

Metric = Literal["loss", "bleu", "chrf"]


@dataclass(frozen=True)
class DataConfig:
    """Where the pairs are, and which of them count.

    | field                       | meaning                                                     |
    |-----------------------------|-------------------------------------------------------------|
    | `train`, `valid`, `test`    | two parallel files, or one of pairs (TSV, JSONL); `.gz` too |
    | `source`, `target`          | columns of such a file: numbers from 1, or names            |
    | `valid_pairs`, `test_pairs` | so many are split off `train` where there is no such file   |
    | `split_seed`                | which: a split by distinct source sentence                  |
    | `first`                     | read so many pairs of `train` at most; 0 for all            |
    | `longest`, `ratio`          | a pair with more words, or sides so unequal, is left out    |
    | `repeated`                  | keep pairs that are there twice                             |

    Paths are relative to the file of the configuration; a path that begins with an
    environment variable, `$NAME/file`, is relative to where the command runs.
    """

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    source: str = ""
    target: str = ""
    valid_pairs: int = 0
    test_pairs: int = 0
    split_seed: int = 0
    first: int = 0
    longest: int = 100
    ratio: float = 0.0
    repeated: bool = False

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            files = getattr(self, name)
            if len(files) > 2:
                raise RegardError(
                    f"data.{name} must be one file of pairs or two parallel files, "
                    f"found {len(files)}: {', '.join(files)}"
                )
        _check("data", self, at_least_0=("valid_pairs", "test_pairs", "first", "ratio"))
        _check("data", self, above_0=("longest",))


@dataclass(frozen=True)
class VocabularyConfig:
    """What sentences are cut into.

    | field                        | meaning                                                    |
    |------------------------------|------------------------------------------------------------|
    | `kind`                       | whole words, or pieces of words learned by sentencepiece   |
    | `source_size`, `target_size` | most entries; the source's counts for both when `joint`    |
    | `joint`                      | one vocabulary for both languages                          |
    | `lower`                      | all text in lower case                                     |
    | `pieces`                     | how pieces are learned                                     |
    | `tokenised`                  | words are what stands between spaces already               |
    | `least`                      | a word seen less often is unknown                          |
    """

    kind: Literal["words", "pieces"] = "words"
    source_size: int = 10_000
    target_size: int = 10_000
    joint: bool = False
    lower: bool = False
    pieces: Literal["unigram", "bpe"] = "unigram"
    tokenised: bool = False
    least: int = 1

    def __post_init__(self) -> None:
        _check("vocabulary", self, above_0=("source_size", "target_size", "least"))


@dataclass(frozen=True)
class VectorsConfig:
    """Word vectors that others trained, to begin with: files of GloVe or word2vec.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `source`, `target` | the file for the embedding of that side; none when empty             |
    | `frozen`           | training does not change the embeddings that have a file             |

    They are as wide as the embedding: `model.embedding`, a Transformer's `model.hidden`. Where
    `model.tie` makes the output layer the target's embedding, the vectors are in both, and `frozen`
    holds both. With `model.tie = "all"` there is one embedding for all: it gets the vectors of
    `source`, then those of `target`, which stay where both files have a word. Paths are as in
    `[data]`. A run that is resumed does not read them again.
    """

    source: str = ""
    target: str = ""
    frozen: bool = False

    @property
    def files(self) -> dict[str, str]:
        """The files there are, by side."""
        named = {"source": self.source, "target": self.target}
        return {side: file for side, file in named.items() if file}

    def __post_init__(self) -> None:
        if self.frozen and not self.files:
            raise RegardError("vectors.frozen wants vectors.source or vectors.target, found none")


@dataclass(frozen=True)
class OptimiserConfig:
    """How parameters move. `clip` is the longest gradient as a whole, 0 for any length."""

    SHORT: ClassVar[str] = "name"
    name: Literal["adam", "adamw", "sgd"] = "adam"
    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        _check("training.optimiser", self, above_0=("rate", "epsilon"))
        _check("training.optimiser", self, shares=("beta1", "beta2"))
        _check("training.optimiser", self, at_least_0=("weight_decay", "clip"))


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate goes: `warmup` steps up to it, then as `name` says.

    `floor` is the share of the rate that `linear` and `cosine` end with, at the last step of the
    training; `halving` keeps the rate for `halve_after` epochs and then halves it every
    `halve_every` (Luong et al., 2015, section 4.1: 5 and 1).
    """

    SHORT: ClassVar[str] = "name"
    name: Literal["constant", "inverse-square-root", "linear", "cosine", "halving"] = "constant"
    warmup: int = 0
    floor: float = 0.0
    halve_after: float = 5.0
    halve_every: float = 1.0

    def __post_init__(self) -> None:
        _check("training.schedule", self, at_least_0=("warmup", "halve_after"))
        _check("training.schedule", self, shares=("floor",), above_0=("halve_every",))


@dataclass(frozen=True)
class ForcingConfig:
    """The probability that the decoder is given the true last token (Bengio et al., 2015).

    It begins with `start` and has gone to `end` after `steps` steps; `training.forcing = 0.5` is
    the constant probability 0.5.
    """

    SHORT: ClassVar[str] = "start"
    name: Literal["constant", "linear", "exponential", "inverse-sigmoid"] = "constant"
    start: float = 1.0
    end: float = 0.0
    steps: int = 10_000

    def __post_init__(self) -> None:
        _check("training.forcing", self, shares=("start", "end"), above_0=("steps",))


@dataclass(frozen=True)
class ValidationConfig:
    """When to look at the validation pairs, and what follows.

    | field       | meaning                                                                     |
    |-------------|-----------------------------------------------------------------------------|
    | `every`     | steps between two looks; 0 for the end of each epoch                        |
    | `metric`    | what is best: the least loss, or the most BLEU or chrF by greedy search     |
    | `patience`  | stop after so many looks without a better one; 0 for never                  |
    | `average`   | how many of the best parameters are averaged at the end                     |
    | `sentences` | most sentences that are translated for a look; 0 for all                    |
    """

    every: int = 0
    metric: Metric = "loss"
    patience: int = 0
    average: int = 5
    sentences: int = 0

    def __post_init__(self) -> None:
        _check("training.validation", self, at_least_0=("every", "patience", "sentences"))
        _check("training.validation", self, above_0=("average",))


@dataclass(frozen=True)
class TrainingConfig:
    """How long, in which batches, how.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `epochs`, `steps`  | the end: whichever comes first; `steps` 0 for no limit               |
    | `batch_tokens`     | tokens of a batch, padding included, on each process                 |
    | `batch_sentences`  | sentences of a batch instead, when not 0                             |
    | `accumulate`       | batches whose gradients make one step                                |
    | `label_smoothing`  | the share of the target that is spread evenly over the vocabulary    |
    | `precision`        | float32, bfloat16 autocast or float64                                |
    | `log_every`        | steps between two lines of the log                                   |
    | `save_every`       | steps between two savings of everything that resuming needs          |
    | `tensorboard`      | also write events for TensorBoard                                    |
    """

    epochs: int = 20
    steps: int = 0
    batch_tokens: int = 4096
    batch_sentences: int = 0
    accumulate: int = 1
    label_smoothing: float = 0.1
    precision: Literal["32", "bf16", "64"] = "32"
    seed: int = 0
    log_every: int = 50
    save_every: int = 500
    tensorboard: bool = False
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    forcing: ForcingConfig = field(default_factory=ForcingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    def __post_init__(self) -> None:
        positive = ("epochs", "batch_tokens", "accumulate", "log_every", "save_every")
        _check("training", self, above_0=positive, shares=("label_smoothing",))
        _check("training", self, at_least_0=("steps", "batch_sentences", "seed"))


@dataclass(frozen=True)
class SearchConfig:
    """How the finished model is asked for translations, unless the command says otherwise.

    `longest` is the most tokens of a translation; 0 for twice its source and ten more. `unknown`
    allows the token for unknown words.
    """

    beam: int = 5
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    longest: int = 0
    unknown: bool = True

    def __post_init__(self) -> None:
        _check("search", self, above_0=("beam",), at_least_0=("coverage_penalty", "longest"))


@dataclass(frozen=True)
class Config:
    """Everything a training is told; kept in its checkpoints.

    >>> config = Config.from_table({"model": {"name": "bahdanau"}}, ["model.hidden=256"])
    >>> config.model.hidden, config.training.epochs
    (256, 20)
    """

    preset: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    vectors: VectorsConfig = field(default_factory=VectorsConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
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
        said = dict(table)
        for setting in overrides:
            said = override(Config, said, setting)
        name = said.get("preset", "")
        if name and name not in PRESETS:
            raise RegardError(f"preset must be one of {', '.join(PRESETS)}; found {name!r}")
        return read_table(Config, merged(PRESETS.get(name, {}), said))

    @staticmethod
    def from_file(path: str | Path, overrides: Iterable[str] = ()) -> Config:
        """From a TOML file; its paths are made absolute."""
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RegardError(f"{path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RegardError(f"{path} is not TOML: {error}") from error
        try:
            config = Config.from_table(table, overrides)
            return _found(config, path.parent)
        except RegardError as error:
            raise RegardError(f"{path}: {error}") from error

    def table(self) -> dict[str, Any]:
        """As nested tables; `from_table` makes the same of them."""
        return asdict(self)

    def toml(self) -> str:
        """As a TOML file."""
        return write_toml(self.table())


#: Settings by name, below those of the file. "reference" is the shape of the tutorial figures:
#: embedding 300, hidden 500, at most 100 words, dictionaries of 9 and 10 thousand.
PRESETS: dict[str, dict[str, Any]] = {
    "reference": {
        "data": {"longest": 100},
        "vocabulary": {"kind": "words", "source_size": 9_000, "target_size": 10_000},
        "model": {"embedding": 300, "hidden": 500, "longest": 100},
    }
}


def _found(config: Config, folder: Path) -> Config:
    """With absolute paths."""

    def place(text: str) -> str:
        filled = os.path.expanduser(os.path.expandvars(text))
        missing = re.search(r"\$\{?(\w+)", filled)
        if missing:
            raise RegardError(
                f"the path {text} needs the environment variable {missing[1]}, which is not set"
            )
        start = Path() if text.startswith("$") else folder
        return str((start / filled).resolve())

    parts = {
        name: tuple(map(place, getattr(config.data, name))) for name in ("train", "valid", "test")
    }
    vectors = {side: place(file) for side, file in config.vectors.files.items()}
    return replace(
        config,
        data=replace(config.data, **parts),  # type: ignore[arg-type]
        vectors=replace(config.vectors, **vectors),  # type: ignore[arg-type]
    )


def _check(
    place: str,
    config: Any,
    *,
    above_0: tuple[str, ...] = (),
    at_least_0: tuple[str, ...] = (),
    shares: tuple[str, ...] = (),
) -> None:
    """Refuse numbers out of range, by the name they have in the file."""
    ranges: list[tuple[tuple[str, ...], str, float, float]] = [
        (at_least_0, "at least 0", 0, math.inf),
        (above_0, "above 0", math.nextafter(0, 1), math.inf),
        (shares, "from 0 to 1", 0, 1),
    ]
    for names, wanted, least, most in ranges:
        for name in names:
            value = getattr(config, name)
            if not least <= value <= most:
                raise RegardError(f"{place}.{name} must be {wanted}, found {value}")
