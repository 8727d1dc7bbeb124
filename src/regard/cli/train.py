"""`regard train`: a translator from a configuration file, with progress, logs and scores."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from regard.cli.threads import use_free_cores
from regard.errors import RegardError
from regard.translate.config import Config, SearchOptions
from regard.translate.training import (
    FinalScores,
    RunFolder,
    TrainingProgress,
    TrainingResult,
    Validation,
    Watcher,
)
from regard.translate.training import train as train_translator

_SECONDS_BETWEEN_LINES = 20.0
_ENDINGS = {
    "finished": "all steps done",
    "no better": "stopped early: validation did not improve (training.validation.patience)",
    "time": "time limit reached",
    "asked": "stopped by a signal (Ctrl-C or SIGTERM)",
}


def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="Configuration file (TOML); with --resume and --out not needed."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: runs/NAME for NAME.toml).")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out, with its own configuration and what --set changes.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Override a setting, such as model.hidden=256; repeatable. Paths are relative to "
            "the folder of the configuration.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop after this many minutes; the best translator so far is saved."),
    ] = None,
) -> None:
    """Train a translator; checkpoints, logs and the state to resume are saved in one folder.

    Ctrl-C (or SIGTERM) finishes the step, saves and stops; --resume continues exactly there.
    """
    if minutes is not None and not minutes >= 0:
        raise RegardError(f"--minutes is {minutes}, expected at least 0")
    if config is None and not (resume and out is not None):
        raise RegardError("there is no configuration file: name one, or --resume with --out FOLDER")
    folder = Path("runs") / config.stem if out is None and config is not None else Path(out or "")
    run = RunFolder(folder)
    if resume and run.empty:
        raise RegardError(f"there is no run in {folder} to resume; leave out --resume to begin one")
    read = _configuration(config, run if resume else None, settings or [])
    if resume:
        use_free_cores(run.threads)
    console = Console(stderr=True)
    watcher = Bar(console) if console.is_terminal else Lines()
    try:
        trained = train_translator(read, folder, resume=resume, minutes=minutes, watcher=watcher)
    finally:
        watcher.done()
    if os.environ.get("RANK", "0") == "0":
        _show(trained, read.search, Console())


def _configuration(config: Path | None, run: RunFolder | None, settings: list[str]) -> Config:
    """That of the run that is resumed, or of the file; paths of settings are the file's."""
    folder = Path() if config is None else config.parent
    if run is not None and run.last.exists() and run.config.exists():
        return Config.from_file(run.config, settings, folder)
    if config is None:
        raise RegardError(f"{run and run.path} has no saved state: name its configuration file")
    return Config.from_file(config, settings)


class Lines(Watcher):
    """A line every few seconds, for files and pipes."""

    def __init__(self) -> None:
        self.reported = time.monotonic()

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def stepped(self, progress: TrainingProgress) -> None:
        if time.monotonic() - self.reported >= _SECONDS_BETWEEN_LINES:
            self.reported = time.monotonic()
            self.note(_progress_text(progress))

    def validated(self, step: int, validation: Validation, best: bool) -> None:
        self.note(_validation_text(step, validation, best))


class Bar(Watcher):
    """A progress bar at the bottom of a terminal, with notes above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.task: Any = None

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def stepped(self, progress: TrainingProgress) -> None:
        if self.bar is None:
            self.bar = Progress(BarColumn(), TextColumn("{task.description}"), console=self.console)
            self.task = self.bar.add_task("", total=1.0)
            self.bar.start()
        self.bar.update(self.task, completed=progress.share, description=_progress_text(progress))

    def validated(self, step: int, validation: Validation, best: bool) -> None:
        self.note(_validation_text(step, validation, best))

    def done(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _progress_text(progress: TrainingProgress) -> str:
    loss = "" if progress.loss is None else f"training loss {progress.loss:.3f}  "
    of = "" if progress.steps is None else f" of {progress.steps:,}"
    return (
        f"step {progress.step:,}{of}  epoch {progress.epoch + 1}  {loss}"
        f"{progress.tokens_per_second:,.0f} tokens/s  ends in {_duration(progress.seconds_left)}"
    )


def _validation_text(step: int, validation: Validation, best: bool) -> str:
    scores = "".join(
        f"  {name} {value:.2f}"
        for name, value in (("greedy BLEU", validation.bleu), ("chrF", validation.chrf))
        if value is not None
    )
    mark = "  best so far" if best else ""
    return (
        f"step {step:,}: validation loss {validation.loss:.4f}, "
        f"{validation.accuracy:.1%} of tokens right{scores}{mark}"
    )


def _show(trained: TrainingResult, search: SearchOptions, console: Console) -> None:
    folder = trained.folder
    minutes = _duration(trained.seconds)
    print(f"{_ENDINGS[trained.ending]}: {trained.step:,} steps in {minutes}")
    if trained.scores:
        _show_scores(trained.scores, search, console)
    files = {
        "the best translator": folder.best,
        "what --resume needs": folder.last,
        "the log": folder.log,
    }
    if trained.scores:  # otherwise those of an earlier end
        files |= {"the mean of the best": folder.average, "the scores": folder.scores}
    for name, path in files.items():
        if path.exists():
            print(f"{name:<21} {path}")
    if trained.ending in ("asked", "time"):
        again = f"continue: regard train --resume --out {shlex.quote(str(folder.path))}"
        print("nothing is saved yet: begin again" if folder.empty else again)
    if trained.scores:
        model = shlex.quote(str(_better(trained)))
        print(f'try it: regard translate --model {model} "a sentence"')


def _better(trained: TrainingResult) -> Path:
    """The translator with the higher validation BLEU."""
    best, average = (trained.scores[name, "valid"].bleu.value for name in ("best", "average"))
    return trained.folder.average if average > best else trained.folder.best


def _show_scores(
    scores: Mapping[tuple[str, str], FinalScores], search: SearchOptions, console: Console
) -> None:
    """A table, and below it the signature of each column."""
    how = "greedy search" if search.beam == 1 else f"beam search, {search.beam} hypotheses"
    table = Table("translator", "pairs", title=f"by {how}", title_justify="left")
    for column in ("BLEU", "chrF", "BLEU of words"):
        table.add_column(column, justify="right")
    for (name, split), split_scores in scores.items():
        counted = (split_scores.bleu, split_scores.chrf, split_scores.words_bleu)
        table.add_row(name, split, *(f"{figure.value:.2f}" for figure in counted))
    console.print(table)
    first = next(iter(scores.values()))
    print(f"BLEU: {first.bleu.signature}")
    print(f"chrF: {first.chrf.signature}")
    print(f"BLEU of words: {first.words_bleu.signature}, lower case, cut by regard's tokeniser")


def _duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds if shorter than an hour."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"
