"""`regard.patch` and `regard.knockout`: change one place after another, and see what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.editing.changes import Change, forbid, replace, replace_values
from regard.editing.edit import edit
from regard.editing.effects import Effects, effects_of
from regard.editing.selection import Positions
from regard.errors import RegardError, ShapeError
from regard.progress import progress
from regard.record import Site, Trace
from regard.record.tokens import Tokens
from regard.tracing import capture

#: Inputs of a model: a tensor, positional arguments, or arguments by name.
Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
Metric = Callable[[Any], Tensor | float]
What = Literal["weights", "values", "output"]


@torch.no_grad()
def patch(
    model: nn.Module,
    clean: Inputs,
    corrupted: Inputs,
    *,
    metric: Metric,
    what: What = "weights",
    by: Literal["head", "position"] = "head",
    where: Any = None,
    show: bool | None = None,
) -> Effects:
    """Which attention carries what tells two inputs apart: activation patching.

    The model runs on the corrupted input once for each site and head (or query position), with
    that one's attention taken from the clean run. An effect of 1 brings the metric back to that of
    the clean run, 0 leaves it (Vig et al. 2020; Wang et al. 2023).

    Args:
        model: the model; it runs without gradients.
        clean: its input: a tensor, a tuple of arguments, or a mapping of arguments by name.
        corrupted: another of the same length.
        metric: a number from the model's output, as the difference of two logits.
        what: what is taken from the clean run: "weights", "values", or "output", which is both. The
            latter two need fused attention.
        by: "head" for sites × heads; "position" for sites × query positions, all heads together.
        where: which sites, as in `regard.capture`.
        show: whether to show a bar; when None, on a terminal.

    >>> import torch, regard
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> clean, corrupted = torch.randn(2, 1, 4, 8)
    >>> effects = regard.patch(model, clean, corrupted, metric=lambda out: out[0, -1, 0])
    >>> tuple(effects.values.shape)
    (2, 2)
    """
    if what not in ("weights", "values", "output"):
        raise RegardError(f"patch: what={what!r}, expected 'weights', 'values' or 'output'")
    if by not in ("head", "position"):
        raise RegardError(f"patch: by={by!r}, expected 'head' or 'position'")
    if by == "position" and what != "weights":
        raise RegardError(f"patch: by='position' needs what='weights', not {what!r}")
    trace, target = _measure(model, clean, metric, values=what != "weights", where=where)
    like, reference = _measure(model, corrupted, metric, values=False, where=where)
    _check_pair(trace, like, target, reference)
    sites = [record.site for record in trace]
    count = max(record.shape.heads if by == "head" else record.shape.queries for record in trace)
    values = []
    with progress("patching", len(sites) * count, show) as advance:
        for record in trace:
            row = []
            size = record.shape.heads if by == "head" else record.shape.queries
            for number in range(count):
                effect = float("nan")
                if number < size:
                    selected: dict[str, Any] = {"heads" if by == "head" else "queries": number}
                    changes = _taken(trace, record.site, what, selected)
                    patched = _run_edited(model, corrupted, metric, changes, like)
                    effect = (patched - reference) / (target - reference)
                row.append(effect)
                advance()
            values.append(row)
    names = [site.name for site in sites]
    return Effects(effects_of(values), names, range(count), "site", by, reference, target)


@torch.no_grad()
def knockout(
    model: nn.Module,
    inputs: Inputs,
    edges: Mapping[str, tuple[Positions, Positions]],
    *,
    metric: Metric,
    window: int = 1,
    tokens: Tokens | None = None,
    where: Any = None,
    show: bool | None = None,
) -> Effects:
    """Which edges between groups of tokens matter, and in which layers (Geva et al. 2023).

    For each group of edges, and each window of sites, the model runs with these queries forbidden
    to attend to these keys. An effect is the difference of the metric.

    Args:
        model: the model; it runs without gradients.
        inputs: its input, as for `patch`.
        edges: for each name the queries and the keys, as `{"last → subject": (-1, "Paris")}`.
        metric: a number from the model's output, as the log-probability of an answer.
        window: how many neighbouring sites are changed at once, around that of the column: for 3
            one before and one after, for 2 one after; fewer at the ends.
        tokens: tokens for positions, for edges between words.
        where: which sites, as in `regard.capture`; all self-attention by default.
        show: whether to show a bar; when None, on a terminal.

    >>> import torch, regard
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    >>> x = torch.randn(1, 4, 8)
    >>> edges = {"last to first": (-1, 0), "last to itself": (-1, -1)}
    >>> effects = regard.knockout(model, x, edges, metric=lambda out: out[0, -1, 0])
    >>> tuple(effects.values.shape)
    (2, 3)
    """
    if window < 1:
        raise RegardError(f"knockout: window={window}, expected a number of sites from 1")
    if (
        not edges
        or not isinstance(edges, Mapping)
        or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in edges.values())
    ):
        raise RegardError(
            f"knockout: edges={edges!r}, expected names with queries and keys, as "
            "{'last → subject': (-1, [2, 3])}"
        )
    like, reference = _measure(model, inputs, metric, values=False, where=where)
    records = [record for record in like if where is not None or record.attends != "cross"]
    names = list(dict.fromkeys(record.site.name for record in records))
    if not names:
        raise RegardError("knockout: the model has no self-attention here; name sites with where=")
    values = []
    with progress("knocking out", len(edges) * len(names), show) as advance:
        for edge, (queries, keys) in edges.items():
            row = []
            for centre in range(len(names)):
                start = max(0, centre - (window - 1) // 2)
                chosen = _Named(tuple(names[start : centre + window // 2 + 1]))
                try:
                    change = forbid(queries=queries, keys=keys, where=chosen)
                    metric_without = _run_edited(model, inputs, metric, [change], like, tokens)
                except RegardError as error:
                    error.args = (f"knockout: edges {edge!r}: {error}",)
                    raise
                row.append(metric_without - reference)
                advance()
            values.append(row)
    return Effects(effects_of(values), list(edges), names, "edges", "site", reference)


def _measure(
    model: nn.Module, inputs: Inputs, metric: Metric, *, values: bool, where: Any
) -> tuple[Trace, float]:
    """The trace of a plain run, and its metric."""
    with capture(model, values=values, where=where) as trace:
        output = _run(model, inputs)
    return trace, _number(metric, output)


def _run_edited(
    model: nn.Module,
    inputs: Inputs,
    metric: Metric,
    changes: list[Change],
    like: Trace,
    tokens: Tokens | None = None,
) -> float:
    with edit(model, *changes, like=like, tokens=tokens):
        output = _run(model, inputs)
    return _number(metric, output)


def _run(model: nn.Module, inputs: Inputs) -> Any:
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, str) or not isinstance(inputs, Sequence):
        raise RegardError(
            f"inputs: {inputs!r:.60}, expected a tensor, a tuple of arguments or arguments by name"
        )
    return model(*inputs)


def _number(metric: Metric, output: Any) -> float:
    value = metric(output)
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ShapeError(f"metric: a tensor of shape {tuple(value.shape)}, expected one number")
    if not isinstance(value, Tensor | int | float):
        raise RegardError(f"metric: it returned {value!r:.60}, expected one number")
    return float(value)


def _taken(trace: Trace, site: Site, what: What, selected: dict[str, Any]) -> list[Change]:
    """The changes that take one part of a site's attention from a trace."""
    where = _Named((site.name,))
    changes = []
    if what != "values":
        changes.append(replace(trace, where=where, **selected))
    if what != "weights":
        changes.append(replace_values(trace, where=where, **selected))
    return changes


class _Named(NamedTuple):
    """Sites by name, as a `where=`."""

    names: tuple[str, ...]

    def __call__(self, site: Site) -> bool:
        return site.name in self.names

    def __repr__(self) -> str:
        return repr(self.names[0] if len(self.names) == 1 else list(self.names))


def _check_pair(clean: Trace, corrupted: Trace, target: float, reference: float) -> None:
    if not len(clean):
        raise RegardError("patch: no attention was seen; where= may be too narrow")
    for one, other in zip(clean, corrupted):
        if one.shape != other.shape:
            raise ShapeError(
                f"patch: '{one.name}' is {tuple(one.shape)} on the clean input and "
                f"{tuple(other.shape)} on the corrupted one, expected inputs of one length"
            )
    if target == reference:
        raise RegardError(
            f"patch: the metric is {target:.4g} on both inputs, so nothing tells them apart"
        )
