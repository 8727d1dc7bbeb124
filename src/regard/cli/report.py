"""`regard report`: the heads of a collected corpus on one page, or of two beside each other."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from regard.cli.collect import CONFIG
from regard.cli.collect_config import statistic_of
from regard.cli.corpus_models import corpus_model
from regard.cli.models import is_function
from regard.cli.packaged import quietly
from regard.corpus import Statistic, load
from regard.corpus.run_folder import RunFolder
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.tables import read_toml
from regard.viewer.corpus_report import CorpusRun, corpus_report
from regard.viewer.document import checked_page_path


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run of regard collect.")],
    second: Annotated[
        Path | None, typer.Argument(help="Another run of the same architecture, to compare with.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write (html).")] = Path(
        "report.html"
    ),
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="The model of the run, as regard collect takes it: captures the attention over "
            "the strongest texts, which then open on the page. For two runs of two models give it "
            "twice.",
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(help="With --model: how many of the strongest texts of each head.", min=1)
    ] = 1,
    title: Annotated[str, typer.Option(help="The title (default: the folders).")] = "",
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one page of what was collected: every head, its numbers, and its strongest texts."""
    checked_page_path(out)
    console = Console(stderr=True)
    folders = [folder] if second is None else [folder, second]
    names = list(models or [])
    if len(names) > len(folders):
        raise RegardError(f"{len(names)} --model for {len(folders)} runs, expected one for each")
    names += names[-1:] * (len(folders) - len(names))
    by_folder: list[str | None] = [*names] or [None] * len(folders)
    runs = [_run(path, name, folders) for path, name in zip(folders, by_folder)]
    page = corpus_report(*runs, title=title, examples=examples)
    page.save(out)
    size = f"{len(page.html) / 1e6:.1f} MB"
    console.print(Text.assemble("page of every head: ", (str(out), "bold"), f", {size}"))
    if not names:
        model = _collected_model(folder) or "MODEL"
        hint = f"--model {model} adds the attention over the strongest texts"
        console.print(Text(hint, "dim"), soft_wrap=True)
    if browser:
        webbrowser.open(out.resolve().as_uri())


def _run(path: Path, model: str | None, folders: list[Path]) -> CorpusRun:
    """A run, with its model where there is one."""
    alike = len({folder.name for folder in folders}) < len(folders)
    name = str(path) if alike else path.resolve().name
    collection = load(path, _own_statistics(path))
    settings = RunFolder(path).settings()
    if model is None:
        model_name = _collected_model(path)
        look = "" if is_function(model_name) else model_name
        return CorpusRun(collection, name, model_name or _class_of(settings["model"]), look)
    with quietly():
        loaded = corpus_model(model)
    attention = loaded.attention_of(settings["corpus"])
    return CorpusRun(collection, name, loaded.title, loaded.look, attention)


def _own_statistics(path: Path) -> dict[str, Statistic | Reducer]:
    """Statistics of the user's, by the classes that `regard collect` was given."""
    config = path / CONFIG
    if not config.exists():
        return {}
    settings = read_toml(config).get("statistics", {})
    return {
        name: statistic_of(name, about)
        for name, about in settings.items()
        if isinstance(about, str) or "class" in about
    }


def _collected_model(path: Path) -> str:
    """The model that `regard collect` was given; nothing of a run made in Python."""
    config = path / CONFIG
    return str(read_toml(config).get("model", "")) if config.exists() else ""


def _class_of(model: Any) -> str:
    """What the manifest of a run calls its model."""
    named = model.get("class") or model.get("function") if isinstance(model, dict) else model
    return str(named or "")
