"""`regard collect`: attention statistics of a corpus, from a configuration file."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import regard
from regard.cli.collect_config import CollectConfig
from regard.cli.corpus_models import CorpusModel, corpus_model
from regard.cli.packaged import quietly
from regard.corpus import Collection, HeadFigures
from regard.corpus.run_folder import RunFolder
from regard.errors import RegardError
from regard.files import write_text

CONFIG = "collect.toml"  #: the configuration, in the folder of a run
_NAMED = 3  # documents that failed, of those that are listed
EXAMPLE = """\
# What every attention head of a model does over a corpus:
#   regard collect collect.toml && regard report minilm-run --model minilm
model = "minilm"  # or smollm2, a folder saved by transformers, module:function
out = "minilm-run"  # the folder of the run
engine = "auto"  # this process, or those of torchrun; "ray" for workers of Ray
on_error = "raise"  # "skip" leaves out documents that fail

[corpus]
# files = ["sentences-*.txt", "more.jsonl"]  # a document in each line; .parquet and .gz too
texts = [
    "The animal did not cross the street because it was too tired.",
    "The rules grew, and the dictionaries grew, and the translations stayed poor.",
    "Two women read the same book in the same room.",
    "People who study heads want to know what a head does in all texts, not in one.",
]
max_length = 128  # tokens, beyond which a document is cut; 0 for as many as the model reads
batch_size = 32
shard_size = 1024  # documents that are saved together

[statistics]  # without this part: figures, sharpness, shares, co_attention, strongest_pairs
figures = { window = 4 }
sharpness = {}
strongest_pairs = { k = 5 }
histogram = "regard:Histogram"  # the average of a reducer; one of your own is "module:Class"
"""


def collect(
    config: Annotated[Path | None, typer.Argument(help="Configuration file (TOML).")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: that of the file).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, if there is one.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting, as corpus.batch_size=8; repeatable."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, local, torchrun or ray (default: that of the file).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was collected as JSON instead.")
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print a configuration to begin with.")
    ] = False,
) -> None:
    """Collect attention statistics of a corpus, in a folder that survives a crash.

    Ctrl-C keeps the shards that are done; --resume continues there. With several processes:
    torchrun --nproc-per-node 2 -m regard collect config.toml
    """
    if example:
        print(EXAMPLE, end="")
        return
    if config is None:
        raise RegardError(
            "there is no configuration file: name one; regard collect --example prints one"
        )
    overrides = list(settings or []) + ([f"engine={engine}"] if engine else [])
    read = CollectConfig.from_file(config, overrides)
    folder = RunFolder(Path(read.out) if out is None else out)
    statistics, runner = read.named_statistics(), read.runner
    with quietly():
        model = corpus_model(read.model)
    corpus = read.corpus.read(model.tokenizer, model.longest)
    try:
        collection = regard.collect(
            _model(model, read),
            corpus,
            statistics,
            out=folder.path,
            resume=resume,
            on_error=read.on_error,
            engine=runner,
        )
    except KeyboardInterrupt:
        print(_stopped(folder), file=sys.stderr)
        raise typer.Exit(130) from None
    if os.environ.get("RANK", "0") != "0":
        return
    write_text(folder.path / CONFIG, read.toml())
    print(json.dumps(_as_dict(collection, folder.path)) if as_json else _text(collection, read))
    if not as_json:
        print(f"results: {folder.path}")
        print(f"next: {shlex.join(['regard', 'report', str(folder.path), '--model', read.model])}")


def _model(model: CorpusModel, config: CollectConfig) -> Any:
    """The model; a function that loads it where workers put it onto GPUs of theirs."""
    if config.engine == "ray" and config.ray.gpus:
        return lambda: corpus_model(config.model).model.to("cuda")
    return model.model


def _stopped(folder: RunFolder) -> str:
    """What is kept, and the command that continues."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
    command = shlex.join(["regard", *arguments, "--resume"])
    return f"stopped: {len(folder.numbers())} shards are in {folder.path}; continue with: {command}"


def _text(collection: Collection, config: CollectConfig) -> str:
    """What was collected, in a few lines."""
    counts = f"{collection.examples:,} documents, {collection.tokens:,} tokens"
    lines = [f"{config.model}: {counts}, {len(collection.sites)} attentions"]
    types = _types(collection)
    if types:
        named = ", ".join(f"{name} {count}" for name, count in types.items())
        lines.append(f"{sum(types.values())} heads: {named}")
    if collection.state.cut:
        lines.append(f"{collection.state.cut} documents were longer, and were cut")
    for failure in collection.failures[:_NAMED]:
        lines.append(f"left out: document {failure.document}: {failure.error}")
    if len(collection.failures) > _NAMED:
        rest = len(collection.failures) - _NAMED
        lines.append(f"left out: {rest} more documents, listed in failures.jsonl")
    lines += [f"not looked at: {site}: {why}" for site, why in collection.left_out.items()]
    return "\n".join(lines)


def _as_dict(collection: Collection, folder: Path) -> dict[str, Any]:
    return {
        "out": str(folder),
        "documents": collection.examples,
        "tokens": collection.tokens,
        "cut": collection.state.cut,
        "attentions": collection.sites,
        "statistics": list(collection),
        "types": _types(collection),
        "failures": [failure._asdict() for failure in collection.failures],
        "left_out": collection.left_out,
    }


def _types(collection: Collection) -> dict[str, int]:
    """How many heads there are of each type; none where types were not collected."""
    for name in collection:
        if isinstance(next(iter(collection[name].values())), HeadFigures):
            return collection.report(name).counts()
    return {}
