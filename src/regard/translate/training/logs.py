"""What happened, in rows: a CSV file, and events for TensorBoard where they are wanted."""

from __future__ import annotations

import csv
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.errors import MissingExtraError
from regard.files import write_text, writing

COLUMNS = (
    "step", "epoch", "kind", "loss", "accuracy", "bleu", "chrf",
    "rate", "forcing", "tokens", "tokens_per_second", "seconds",
)  # fmt: skip


class CsvLog:
    """One row a log interval (`train`) and a look at the validation pairs (`valid`).

    A run that is resumed continues the file: rows after the step it resumes from are taken out, and
    so is a row that was cut off.
    """

    def __init__(self, path: Path, after: int) -> None:
        kept = [row for row in _rows(path) if int(row[0]) <= after]
        write_text(path, "".join(map(_line, [list(COLUMNS), *kept])))
        self.path = path
        with writing(path):
            self.file = path.open("a", encoding="utf-8", newline="")

    def write(self, row: dict[str, Any]) -> None:
        """One row; it is in the file when this returns."""
        values = [row.get(column) for column in COLUMNS]
        with writing(self.path):
            self.file.write(_line(["" if value is None else value for value in values]))
            self.file.flush()

    def close(self) -> None:
        with suppress(OSError):  # of a row that could not be written, which was told then
            self.file.close()


class EventLog:
    """The same numbers as events for TensorBoard."""

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
    """What writes events, or an error that says how to install it."""
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
    """The rows of a log by column; what was not measured is an empty text."""
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
