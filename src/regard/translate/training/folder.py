"""The folder of a run: its files, its logs, and what may be done to them."""

from __future__ import annotations

import csv
import errno
import io
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from regard.errors import MissingExtraError, RegardError
from regard.files import PART, make_folder, reading, write_text, writing, written_whole
from regard.translate.checkpoint import FILE, STATE_FILE
from regard.translate.config import Config
from regard.translate.training.stopping import Best

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

COLUMNS = (
    "step", "epoch", "kind", "loss", "accuracy", "bleu", "chrf",
    "rate", "forcing", "tokens", "tokens_per_second", "seconds",
)  # fmt: skip


class CsvLog:
    """One row per log interval (`train`) and per validation (`valid`).

    A resumed run continues the file: rows after the step it resumes from, and a truncated row, are
    removed.
    """

    def __init__(self, path: Path, after: int) -> None:
        kept = [row for row in _rows(path) if int(row[0]) <= after]
        write_text(path, "".join(map(_line, [list(COLUMNS), *kept])))
        self.path = path
        with writing(path):
            self.file = path.open("a", encoding="utf-8", newline="")

    def write(self, row: dict[str, Any]) -> None:
        """Write and flush a row."""
        values = [row.get(column) for column in COLUMNS]
        with writing(self.path):
            self.file.write(_line(["" if value is None else value for value in values]))
            self.file.flush()

    def close(self) -> None:
        with suppress(OSError):  # of a row that could not be written, which was told then
            self.file.close()


class EventLog:
    """The same numbers as TensorBoard events."""

    def __init__(self, folder: Path, after: int) -> None:
        with writing(folder):
            self.writer = event_writer()(str(folder), purge_step=after + 1)

    def write(self, row: dict[str, Any]) -> None:
        """One point for each number."""
        for column in COLUMNS[3:]:
            if row.get(column) is not None:
                name = f"{row['kind']}/{column}"
                self.writer.add_scalar(name, row[column], row["step"])

    def close(self) -> None:
        self.writer.close()


Log = CsvLog | EventLog


def event_writer() -> Any:
    """TensorBoard's writer, or an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("tensorboard", "tensorboard") from error
    return SummaryWriter


def is_log(path: Path) -> bool:
    """Whether a file begins as a log does."""
    if not path.is_file():
        return False
    first = _line(list(COLUMNS)).encode()
    with path.open("rb") as file:
        return file.read(len(first)) == first


def read_log(path: Path) -> list[dict[str, str]]:
    """The rows of a log by column; empty if not measured."""
    return [dict(zip(COLUMNS, row)) for row in _rows(path)]


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = csv.reader(io.StringIO(whole))
    return [row for row in rows if len(row) == len(COLUMNS) and row[0].isdecimal()]


def _line(values: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


class RunFolder:
    """The files of a run.

    | file                  | what it is                                                       |
    |-----------------------|------------------------------------------------------------------|
    | `config.toml`         | the configuration as used, every default written out             |
    | `best.safetensors`    | the translator that did best on the validation pairs             |
    | `average.safetensors` | the mean of the parameters of the best few; made at the end      |
    | `last.safetensors`    | everything that resuming needs                                   |
    | `kept/`               | the best few                                                     |
    | `log.csv`, `events/`  | what happened                                                    |
    | `scores.json`         | BLEU and chrF of the translators, with signatures; at the end    |
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.best = path / "best.safetensors"
        self.average = path / "average.safetensors"
        self.last = path / "last.safetensors"
        self.log = path / "log.csv"
        self.scores = path / "scores.json"
        self.events = path / "events"

    @property
    def threads(self) -> int:
        """How many threads the saved state was made with; 0 if it does not say."""
        if not self.last.exists():
            return 0
        return int(STATE_FILE.header(self.last).get("position", {}).get("threads", 0))

    def kept(self, step: int) -> Path:
        """The parameters of a step, if they are among the best."""
        return self.path / "kept" / f"step-{step:08}.safetensors"

    @property
    def empty(self) -> bool:
        """Whether nothing is there: no folder, or one without files."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def check(self, resume: bool) -> None:
        """Refuse a folder with other files."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RegardError(f"{self.path} is a file, expected a folder or nothing")
        with reading(self.path):
            if not resume and not self.empty:
                raise RegardError(
                    f"{self.path} is not empty: continue its run with --resume, or choose another "
                    "folder with --out"
                )
            if resume and not self.last.exists():
                self._check_begun()

    @contextmanager
    def created(self) -> Iterator[None]:
        """Create and lock the folder; on exit remove it if it is new and still empty.

        An unwritable path fails before any work, and a wrong setting that is found later leaves
        nothing behind.
        """
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        make_folder(self.path)
        try:
            with writing(self.path), TemporaryFile(dir=self.path):
                pass
            with _locked(self.path):
                yield
        finally:
            with suppress(OSError):  # one that is not empty stays
                for folder in new:
                    folder.rmdir()

    def begin(self, config: Config) -> None:
        """Write the configuration."""
        write_text(self.config, config.toml())

    def _check_begun(self) -> None:
        """Without a saved state, accept only the files of a run that was killed before it saved.

        Other files, and a configuration or log that no run wrote, must not be overwritten.
        """
        own = (self.config, self.log, self.best, self.events, self.path / "kept")
        strange = {path.name for path in self.path.iterdir()} - {path.name for path in own}
        begun = tuple(f"{path.name}." for path in (*own, self.last))
        strange -= {name for name in strange if name.startswith(begun) and name.endswith(PART)}
        if self.config.exists() and not _is_of_a_run(self.config):
            strange.add(self.config.name)
        if self.log.exists() and not is_log(self.log):
            strange.add(self.log.name)
        if strange:
            raise RegardError(
                f"{self.path} has no run to resume: there is no {self.last.name}, but "
                f"{', '.join(sorted(strange))}; choose an empty folder, or a new one, with --out"
            )

    def prune(self, best: Best) -> None:
        """Delete checkpoints that are no longer among the best, and partial files."""
        kept_files = {self.kept(ranked.step) for ranked in best.kept}
        with writing(self.path):
            for path in self.path.glob("kept/*"):
                if path not in kept_files:
                    path.unlink(missing_ok=True)
            for path in self.path.glob(f"*{PART}"):
                path.unlink(missing_ok=True)

    def publish(self, step: int) -> None:
        """Make the parameters of a step the best ones."""
        with written_whole(self.best) as half_done:
            shutil.copyfile(self.kept(step), half_done)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, or refuse it if another process has; the lock ends with the process.

    No lock on Windows and on file systems that do not support it.
    """
    if fcntl is None:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(opened)
        raise RegardError(f"{folder}: another process is training into it") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF):
            raise
    try:
        yield
    finally:
        os.close(opened)


def _is_of_a_run(path: Path) -> bool:
    """Whether a file is a configuration as `RunFolder.begin` writes it: every default written out,
    and nothing else."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return Config.from_table(tomllib.loads(text)).toml() == text
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RegardError):
        return False


def average_files(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the tensors of several translators, in the precision they have."""
    paths = list(paths)
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        for name, tensor in FILE.read(path)[1].items():
            kinds.setdefault(name, tensor.dtype)
            if tensor.is_floating_point():
                total[name] = total.get(name, 0) + tensor.double() / len(paths)
            else:
                total[name] = tensor
    return {name: tensor.to(kinds[name]) for name, tensor in total.items()}
