"""A collection, or two beside each other, as one HTML file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.statistics.head_types import TYPES
from regard.corpus import Collection, Estimate
from regard.corpus.collection import layer_numbers
from regard.errors import RegardError
from regard.viewer.chunks import Chunks
from regard.viewer.corpus_report.captured import AttentionOf, captured
from regard.viewer.corpus_report.details import Details
from regard.viewer.corpus_report.quantities import Quantity, all_quantities
from regard.viewer.document import Page, assembled
from regard.viewer.pack import BUDGET

_FORMAT = 1
_IN_BASE64 = 3 / 4  # bytes of data that a byte of the file holds
_CHANCE = 0.05
_COLUMNS = ("mean", "error", "number", "examples")


@dataclass(frozen=True, eq=False)
class CorpusRun:
    """A collection as the page shows it."""

    collection: Collection
    name: str  #: such as its folder
    model: str = ""  #: what the model is called
    look: str = ""  #: the value of `regard look --model`, if the model has one
    attention_of: AttentionOf | None = None  #: the attention of the model over an example


def corpus_report(
    *runs: CorpusRun,
    title: str = "",
    examples: int = 1,
    budget: int = BUDGET,
    show_progress: bool | None = None,
) -> Page:
    """The page of one run, or of two and their difference.

    Args:
        runs: one or two; two must have the same attentions.
        title: the title; the names of the runs when empty.
        examples: for how many of the strongest examples of each head the attention is captured,
            where a run has `attention_of`.
        budget: target size of the file in bytes. What is collected is always whole; attention of
            examples is left out where there is no room.
        show_progress: whether a bar shows the progress of capturing examples; None shows one in a
            terminal.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> batch = regard.corpus.Batch((torch.randn(3, 6, 8),), torch.ones(3, 6, dtype=torch.bool))
    >>> page = corpus_report(CorpusRun(regard.collect(model, [batch]), "two heads"))
    >>> page.html.startswith("<!doctype html>")
    True
    """
    if not 1 <= len(runs) <= 2:
        raise RegardError(f"corpus_report: {len(runs)} runs, expected one or two")
    sites = _sites(runs[0])
    for run in runs[1:]:
        _check_alike(runs[0], run)
    by_run = [all_quantities(run.collection) for run in runs]
    quantities = list(dict.fromkeys(quantity for numbers in by_run for quantity in numbers))
    if not quantities:
        statistics = ", ".join(runs[0].collection)
        raise RegardError(
            f"{runs[0].name}: {statistics} have no number for each head to colour a grid by; "
            "collect Figures() or Sharpness() too"
        )
    title = title or " and ".join(run.name for run in runs)
    share = int(budget * _IN_BASE64) // len(runs)
    with Chunks() as chunks:
        manifest: dict[str, Any] = {
            "format": _FORMAT,
            "title": title,
            "live": None,
            "clear": _clear(sum(sites.values())),
            "types": {name: kind.sign for name, kind in TYPES.items()},
            "layers": [
                {"site": site, "layer": layer, "heads": heads}
                for layer, (site, heads) in zip(layer_numbers(list(sites)), sites.items())
            ],
            "quantities": [quantity.as_dict() for quantity in quantities],
            "runs": [
                _run(run, sites, quantities, numbers, chunks) for run, numbers in zip(runs, by_run)
            ],
        }
        for place, run in enumerate(runs):
            shown: dict[str, Any] = {"scenes": {}, "note": ""}
            if run.attention_of is not None:
                shown["scenes"], shown["note"] = captured(
                    *(run.collection, run.attention_of, chunks),
                    budget=(place + 1) * share,
                    most=examples,
                    show_progress=show_progress,
                )
            manifest["runs"][place] |= shown
        return Page(assembled(manifest, chunks.bytes(), bundle="report"), title)


def _run(
    run: CorpusRun,
    sites: dict[str, int],
    quantities: Sequence[Quantity],
    numbers: dict[Quantity, dict[str, Estimate]],
    chunks: Chunks,
) -> dict[str, Any]:
    collection = run.collection
    details = Details(collection, chunks)
    by_site = [details.site(site) for site in sites]
    texts = details.texts()
    columns = {
        name: chunks.add(
            torch.stack(
                [_column(numbers.get(quantity, {}), sites, name) for quantity in quantities]
            ).float()
        )
        for name in _COLUMNS
    }
    return {
        "name": run.name,
        "model": run.model,
        "look": run.look,
        "documents": collection.examples,
        "tokens": collection.tokens,
        "cut": collection.state.cut,
        "failures": len(collection.failures),
        "complete": collection.complete,
        "left_out": [f"{site}: {why}" for site, why in collection.left_out.items()],
        "not_shown": list(details.not_shown),
        "statistics": {name: repr(each) for name, each in collection.state.statistics.items()},
        **columns,
        **details.types(sites),
        "sites": by_site,
        "texts": texts,
    }


def _sites(run: CorpusRun) -> dict[str, int]:
    """How many heads each attention has."""
    heads: dict[str, int] = {}
    for estimates in all_quantities(run.collection).values():
        for site, estimate in estimates.items():
            heads.setdefault(site, len(estimate.mean))
    return {site: heads[site] for site in run.collection.sites if site in heads}


def _check_alike(first: CorpusRun, second: CorpusRun) -> None:
    """Refuse two runs whose heads cannot be told to be the same."""
    mine, theirs = _sites(first), _sites(second)
    if mine == theirs:
        return
    site = next(site for site in [*mine, *theirs] if mine.get(site) != theirs.get(site))
    counts = [f"{heads[site]} heads" if site in heads else "none" for heads in (mine, theirs)]
    raise RegardError(
        f"{site}: {first.name} has {counts[0]}, {second.name} {counts[1]}: heads can be compared "
        "between runs of the same architecture"
    )


def _column(
    estimates: dict[str, Estimate], sites: dict[str, int], name: str
) -> Float[Tensor, " head"]:
    """One field of the estimates of all heads; NaN of those that have none."""
    return torch.cat(
        [
            getattr(estimates[site], name).double()
            if site in estimates
            else torch.full((heads,), math.nan, dtype=torch.float64)
            for site, heads in sites.items()
        ]
    )


def _clear(heads: int) -> float:
    """Standard errors beyond which chance brings a difference in any of so many heads with 5 %."""
    tail = torch.tensor(1 - _CHANCE / (2 * heads), dtype=torch.float64)
    return float(torch.special.ndtri(tail))
