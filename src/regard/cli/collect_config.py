"""The configuration of `regard collect`: a model, a corpus, statistics, an engine, a folder."""

from __future__ import annotations

import difflib
import glob
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from regard.cli.corpus_models import corpus_model
from regard.cli.models import function_named
from regard.corpus import Average, Corpus, Drift, Statistic
from regard.corpus import statistics as families
from regard.corpus.engines import RayOptions
from regard.corpus.statistic import snake_case
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.tables import absolute_path, override, read_table, read_toml, write_toml

#: The statistics that come with the library, by the name they have in a file.
STATISTICS: dict[str, type[Statistic]] = {
    snake_case(name): kind
    for name in families.__all__
    if isinstance(kind := getattr(families, name), type) and issubclass(kind, Statistic)
}


@dataclass(frozen=True)
class CorpusConfig:
    """Which documents are read, and how they become batches.

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | `files`      | lines (.txt), .jsonl or .parquet, .gz too; `part-*.txt` names several      |
    | `texts`      | documents themselves, where there are few                                  |
    | `column`     | of a table, or key of a JSON object: what has the text                     |
    | `max_length` | most tokens of a document, beyond which it is cut; 0 for as many as the    |
    |              | model reads                                                                |
    | `batch_size` | most documents that the model reads together                               |
    | `shard_size` | documents whose numbers are saved together                                 |

    Paths are relative to the configuration file.
    """

    files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    column: str = "text"
    max_length: int = 0
    batch_size: int = 32
    shard_size: int = 1024

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.texts):
            found = "both" if self.files else "neither"
            raise RegardError(f"corpus.files or corpus.texts must say what is read, found {found}")
        if self.max_length < 0:
            raise RegardError(f"corpus.max_length must be at least 0, found {self.max_length}")

    @property
    def source(self) -> list[Any]:
        """The paths, or the texts."""
        if self.texts:
            return list(self.texts)
        paths = []
        for pattern in self.files:
            named = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
            if not named:
                raise RegardError(f"corpus.files: no file is named {pattern}")
            paths += [Path(path) for path in named]
        if missing := next((path for path in paths if not path.is_file()), None):
            raise RegardError(f"corpus.files: there is no file {missing}")
        return paths

    def read(self, tokenizer: Any, longest: int | None) -> Corpus:
        """The corpus, for a model that reads so many tokens."""
        return Corpus(
            self.source,
            tokenizer,
            column=self.column,
            max_length=self.max_length or longest,
            batch_size=self.batch_size,
            shard_size=self.shard_size,
        )


@dataclass(frozen=True)
class RayConfig:
    """Workers of the engine "ray".

    | field     | meaning                                                                       |
    |-----------|-------------------------------------------------------------------------------|
    | `workers` | how many load the model; as many as there is room for when 0                  |
    | `cpus`    | what each takes of a machine's CPUs                                           |
    | `gpus`    | what each takes of a machine's GPUs; the model is then on one                 |
    | `address` | of a cluster, such as "auto"; Ray is started on this machine when empty       |
    """

    workers: int = 0
    cpus: float = 1.0
    gpus: float = 0.0
    address: str = ""


@dataclass(frozen=True)
class CollectConfig:
    """What `regard collect` does.

    >>> table = {"model": "minilm", "corpus": {"texts": ["a b"]}}
    >>> CollectConfig.from_table(table, ["corpus.batch_size=8"]).corpus.batch_size
    8

    | field        | meaning                                                                    |
    |--------------|----------------------------------------------------------------------------|
    | `model`      | a packaged model, a folder saved by transformers, or `module:function`,    |
    |              | which returns a model, or a model and its tokenizer                        |
    | `out`        | folder of the run; runs/NAME for NAME.toml when empty                      |
    | `engine`     | who runs the model, as `regard.collect` takes it                           |
    | `ray`        | its workers, where the engine is "ray": `RayConfig`                        |
    | `on_error`   | whether a document that fails stops the run, or is left out                |
    | `corpus`     | the documents: `CorpusConfig`                                              |
    | `statistics` | settings by name, `class = "module:Class"` for one of your own; those of   |
    |              | `regard.corpus.default_statistics` when there are none                     |
    """

    model: str = "minilm"
    out: str = ""
    engine: str = "auto"
    ray: RayConfig = field(default_factory=RayConfig)
    on_error: Literal["raise", "skip"] = "raise"
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    statistics: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_table(table: Mapping[str, Any], overrides: Iterable[str] = ()) -> CollectConfig:
        """From nested tables; then settings such as `corpus.batch_size=8`."""
        settings = dict(table)
        for setting in overrides:
            settings = override(CollectConfig, settings, setting)
        settings.setdefault("corpus", {})
        return read_table(CollectConfig, settings)

    @staticmethod
    def from_file(path: Path, overrides: Iterable[str] = ()) -> CollectConfig:
        """From a TOML file; its paths are made absolute, from its own folder."""
        overrides = list(overrides)
        table = read_toml(path)
        try:
            config = CollectConfig.from_table(table, overrides)
            folder = path.parent
            files = tuple(absolute_path(file, folder) for file in config.corpus.files)
            model, out = config.model, config.out or f"runs/{path.stem}"
            if (folder / model).is_dir() and not Path(model).is_absolute():
                model = absolute_path(model, folder)
            if config.out:
                out = absolute_path(out, folder)
            corpus = replace(config.corpus, files=files)
            return replace(config, model=model, out=out, corpus=corpus)
        except RegardError as error:
            over = f" with {', '.join(overrides)}" if overrides else ""
            raise RegardError(f"{path}{over}: {error}") from error

    @property
    def runner(self) -> Any:
        """The engine, as `regard.collect` takes it."""
        if self.engine != "ray":
            if self.ray != RayConfig():
                raise RegardError(
                    f"ray is set, which has no effect while engine is {self.engine!r}, expected "
                    "'ray'"
                )
            return self.engine
        options = self.ray
        return RayOptions(
            options.workers or None, options.cpus, options.gpus, options.address or None
        )

    def toml(self) -> str:
        """As a TOML file."""
        return write_toml(asdict(self))

    def named_statistics(self) -> dict[str, Statistic | Reducer] | None:
        """The statistics by name; None for the default ones."""
        named = {name: statistic_of(name, about) for name, about in self.statistics.items()}
        return named or None


def statistic_of(name: str, about: Any) -> Statistic | Reducer:
    """A statistic from its table: `{window = 8}`, or with its class, `{class = "module:Class"}`; a
    text is the class alone."""
    setting = f"statistics.{name}"
    if isinstance(about, str):
        about = {"class": about}
    if not isinstance(about, Mapping):
        raise RegardError(f"{setting} must be a table of settings, such as {{}}, found {about!r}")
    options = {key: value for key, value in about.items() if key != "class"}
    kind = _class_of(setting, about.get("class", name))
    parameters = inspect.signature(kind).parameters
    for key in options:
        if key not in parameters:
            near = difflib.get_close_matches(key, parameters, n=1)
            there = f"there are: {', '.join(parameters) or 'none'}"
            hint = f"did you mean {setting}.{near[0]}?" if near else there
            raise RegardError(f"there is no setting {setting}.{key}; {hint}")
    if kind is Drift and isinstance(options.get("reference"), str):
        options["reference"] = corpus_model(options["reference"]).model
    if kind is Average:
        raise RegardError(
            f"{setting}: an average is that of a reducer, which is named itself: "
            'histogram = "regard:Histogram"'
        )
    required = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    for key in required:
        if key not in options:
            raise RegardError(f"{setting} needs {key}, as {name} = {{ {key} = … }}")
    try:
        statistic = kind(**options)
    except (TypeError, ValueError) as error:
        raise RegardError(f"{setting}: {error}") from error
    if not isinstance(statistic, Statistic | Reducer):
        raise RegardError(f"{setting}: {kind.__name__} is no Statistic and no Reducer")
    return statistic


def _class_of(setting: str, name: Any) -> Any:
    """A statistic of the library by its name, or `module:Class`."""
    if not isinstance(name, str):
        raise RegardError(f"{setting}.class must be a text, found {name!r}")
    if ":" in name:
        return function_named(name, f"{setting} ")
    kind = STATISTICS.get(snake_case(name))
    if kind is None:
        near = difflib.get_close_matches(snake_case(name), STATISTICS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RegardError(
            f"{setting}: there is no statistic {name!r}; {hint}There are {', '.join(STATISTICS)}; "
            'one of your own is named by class = "module:Class"'
        )
    return kind
