"""`regard.collect`: statistics of a model's attention over a corpus."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torch import nn

from regard.corpus import statistics as families
from regard.corpus.collection import Collection
from regard.corpus.corpus import Corpus
from regard.corpus.engines import Local, RayOptions, engine_of
from regard.corpus.engines.base import Task, why_nothing
from regard.corpus.observing import Model, weights_digest
from regard.corpus.run_folder import RunFolder
from regard.corpus.state import State
from regard.corpus.statistic import Statistic, settings_of
from regard.corpus.token_table import CATEGORIES
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.progress import progress

Statistics = Sequence[Statistic | Reducer] | Mapping[str, Statistic | Reducer]


def collect(
    model: Model,
    corpus: Any,
    statistics: Statistics | None = None,
    *,
    tokenizer: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    where: Any = None,
    engine: Literal["auto", "local", "torchrun", "ray"] | RayOptions = "auto",
    show_progress: bool | None = None,
) -> Collection:
    """Collect statistics of a model's attention over a corpus, in bounded memory.

    The model reads the corpus batch by batch, in eval mode; each batch is added up and dropped.
    What a shard of the corpus adds is written to `out`, whole or not at all, so that a run that was
    killed continues where it stopped, and ends with the same numbers to the last bit on the same
    machine.

    Args:
        model: the model, or a function that runs it on the inputs of a batch by name; or a function
            without parameters that loads it.
        corpus: documents, as `Corpus` takes them, or a `Corpus`, which has options of its own.
        statistics: a list of them, or a dictionary by name; a `Reducer` is averaged over examples.
            `default_statistics` when None.
        tokenizer: one of transformers, which texts need.
        out: a folder for results; None keeps them in memory.
        resume: whether to continue what is in `out`; it may be empty.
        on_error: "skip" leaves out documents that fail and lists them in `failures`; "raise" stops.
        where: which attentions, as for `regard.capture`; all when None.
        engine: "local" runs the model in this process. "torchrun" divides the shards among the
            processes that torchrun started, which all return the whole collection; `out` must be a
            folder that they see. "ray" gives shards to workers of Ray, which read them themselves;
            `regard.corpus.RayOptions` says how many, and where. "auto" is "torchrun" where there
            are several such processes.
        show_progress: a progress bar; None shows one in a terminal.

    >>> import torch, regard
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> embedding = torch.nn.Embedding(10, 8)
    >>> def model(input_ids, attention_mask):
    ...     hidden = attention_mask == 0
    ...     return layer.eval()(embedding(input_ids), src_key_padding_mask=hidden)
    >>> found = regard.collect(model, [[1, 2, 3], [4, 5], [6, 7, 8, 9]])
    >>> found
    Collection(figures, sharpness, strongest_pairs: 3 documents, 9 tokens, 1 attentions)
    >>> found["sharpness"][found.sites[0]].entropy.number
    tensor([9., 9.], dtype=torch.float64)
    """
    if on_error not in ("raise", "skip"):
        raise RegardError(f"collect: on_error={on_error!r}, expected 'raise' or 'skip'")
    if resume and out is None:
        raise RegardError("collect: resume=True needs out=, the folder of the run")
    if not callable(model) or isinstance(model, type):
        raise RegardError(f"collect: model is {model!r:.60}, expected a model or a function")
    chosen = engine_of(engine)
    if out is None and chosen.needs_out:
        raise RegardError(
            f"collect: engine={chosen.name!r} needs out=, a folder that all processes see; with "
            "engine='local' each process collects everything for itself"
        )
    corpus = _corpus(corpus, tokenizer)
    named = _named(default_statistics(corpus) if statistics is None else statistics)
    task = Task(model, corpus, named, where, on_error == "skip")
    total = State(named)
    with ExitStack() as stack:
        show_progress = show_progress if chosen.leads else False
        advance = stack.enter_context(progress("collect", corpus.source.size, show_progress))
        folder = None
        if out is not None or not isinstance(chosen, Local):
            path = out or stack.enter_context(TemporaryDirectory(prefix="regard-"))
            folder = RunFolder(Path(path))
            chosen.begin(folder, _settings(model, corpus, named, where, on_error), resume)
            folder.check_end(chosen.fill(task, folder, advance))
            states = folder.states(named)
        else:
            states = chosen.states(task, advance)
        for state in states:
            total.merge(state)
        if not total.sites:
            raise RegardError(why_nothing(total))
        if folder is not None and chosen.leads:
            folder.finish(total)
    return Collection(total)


def default_statistics(corpus: Corpus) -> list[Statistic]:
    """What is collected where nothing is asked: the figures and types of heads, their sharpness and
    their strongest examples; with a tokenizer also shares and weights between categories."""
    labelled: list[Statistic] = []
    if corpus.table is not None:
        labelled = [families.Shares(["punctuation", "word"]), families.CoAttention(CATEGORIES)]
    return [
        families.Figures(),
        families.Sharpness(),
        *labelled,
        families.StrongestPairs(),
    ]


def load(out: str | Path, statistics: Statistics = ()) -> Collection:
    """What was collected in a folder; of a run that is not finished, what there is so far.

    Args:
        out: the folder.
        statistics: those of the run that do not come with regard, which a file cannot make.
    """
    folder = RunFolder(Path(out))
    if not folder.manifest.exists():
        raise RegardError(
            f"{folder.path} has no {folder.manifest.name}: nothing was collected there"
        )
    own = _named(statistics)
    collected = folder.settings()["statistics"]
    for name, about in json.loads(json.dumps(_statistic_settings(own))).items():
        if name not in collected:
            raise RegardError(
                f"load: {folder.path} has no {name!r}, there are {', '.join(collected)}"
            )
        if about != collected[name]:
            raise RegardError(
                f"load: {name!r} was collected as {_brief(collected[name])}, the one that was "
                f"passed is {_brief(about)}"
            )
    named = {
        name: own[name] if name in own else _loaded(name, **about)
        for name, about in collected.items()
    }
    state = folder.result(named)
    if state is not None:
        return Collection(state)
    state = State(named)
    for shard in folder.states(named):
        state.merge(shard)
    return Collection(state, complete=False)


def _loaded(name: str, **about: Any) -> Statistic:
    """A statistic of the library from what the manifest says of it: enough to read what it added
    up, where models and reducers among its settings are not needed."""
    kind = getattr(families, about["class"], None)
    if kind is None:
        raise RegardError(
            f"load: {name!r} is a {about['class']}, which a file cannot make; pass it, as "
            f"load(out, {{{name!r}: {about['class']}(...)}})"
        )
    statistic: Statistic = kind.__new__(kind)
    vars(statistic).update(about["settings"])
    return statistic


def _corpus(corpus: Any, tokenizer: Any) -> Corpus:
    if not isinstance(corpus, Corpus):
        return Corpus(corpus, tokenizer)
    if tokenizer is not None:
        raise RegardError(
            "collect: tokenizer=: the Corpus has its own, as Corpus(texts, tokenizer)"
        )
    return corpus


def _named(statistics: Statistics) -> dict[str, Statistic]:
    """Statistics by name; reducers averaged."""
    if isinstance(statistics, Mapping):
        if wrong := [name for name in statistics if "/" in name]:
            raise RegardError(f"statistics: {wrong[0]!r}, expected a name without '/'")
        return {name: _statistic(each) for name, each in statistics.items()}
    if isinstance(statistics, str) or not isinstance(statistics, Iterable):
        raise RegardError(f"statistics: {statistics!r}, expected a list, as [Sharpness()]")
    named: dict[str, Statistic] = {}
    for each in map(_statistic, statistics):
        if each.name in named:
            raise RegardError(
                f"statistics: two are named {each.name!r}; give names of your own, as "
                f"{{'first': {each!r}, ...}}"
            )
        named[each.name] = each
    return named


def _statistic(each: Any) -> Statistic:
    if isinstance(each, Reducer):
        return families.Average(each)
    if not isinstance(each, Statistic):
        what = f"the class {each.__name__}" if isinstance(each, type) else repr(each)
        raise RegardError(f"statistics: {what}, expected objects, as Sharpness() or Histogram()")
    return each


# -- settings


def _settings(
    model: Model, corpus: Corpus, statistics: Mapping[str, Statistic], where: Any, on_error: str
) -> dict[str, Any]:
    """What decides about the numbers: a run that continues must have the same."""
    return {
        "model": _described(model),
        "corpus": corpus.settings,
        "statistics": _statistic_settings(statistics),
        "where": _described(where),
        "on_error": on_error,
    }


def _statistic_settings(statistics: Mapping[str, Statistic]) -> dict[str, Any]:
    return {
        name: {
            "class": type(each).__name__,
            "settings": {key: _described(value) for key, value in settings_of(each).items()},
        }
        for name, each in statistics.items()
    }


def _brief(about: Mapping[str, Any]) -> str:
    """The settings of a statistic as it is written in Python."""
    settings = (f"{name}={value!r}" for name, value in about["settings"].items())
    return f"{about['class']}({', '.join(settings)})"


def _described(value: Any) -> Any:
    """A setting as JSON writes it: a model by class and a digest of its parameters, others that
    JSON does not know by their text."""
    if isinstance(value, nn.Module):
        return {"class": type(value).__name__, "digest": weights_digest(value)}
    if inspect.isroutine(value):
        owner = getattr(value, "__self__", None)
        return {"function": value.__qualname__} | (
            {"digest": weights_digest(owner)} if isinstance(owner, nn.Module) else {}
        )
    try:
        json.dumps(value)
    except TypeError:
        return {"text": repr(value)}
    return value
