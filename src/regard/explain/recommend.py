"""Which aggregation of attention to trust, on this model and these data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import UnavailableError
from regard.explain.aggregations import Token, aggregated
from regard.explain.evaluate import Attributions, Options, measure
from regard.explain.evaluation_result import Evaluation
from regard.explain.metrics import BINS
from regard.explain.tasks.passes import Model
from regard.explain.tasks.replacements import Replacement
from regard.explain.tasks.task import Task, cut, tasks_of


def recommend(
    model: Model,
    data: Any,
    target: Any = None,
    *,
    token: Token = "auto",
    attributions: Mapping[str, Any] | None = None,
    replacements: Replacement | Sequence[Replacement] | None = None,
    bins: float | Sequence[float] = BINS,
    steps: int = 10,
    seeds: int = 5,
    confidence: float = 0.95,
    seed: int = 0,
    show: bool = True,
    show_progress: bool | None = None,
    **task: Any,
) -> Evaluation:
    """Try every aggregation of attention, measure them, and print a table that ranks them.

    The verdict says so if none of them beats random. Aggregations that are unavailable on this
    model are listed with the reason.

    Args:
        model, data, target: as for `evaluate`.
        token: the position of the last layer that the target is read from: a number, as 0 for a
            class token; "last" for the last real one, as of a language model; None for the mean
            over all. "auto" tells it by the gradient of the target.
        attributions: others to compare, as for `evaluate`.
        replacements, bins, steps, seeds, confidence, seed, show_progress: as for `evaluate`.
        show: whether to print the table.
        task: `special`, `removable`, `embedding`, `input_name`, `batch_size`, as for `Task`.
    """
    tasks = tasks_of(model, data, target, **task)
    by_method, reasons = _aggregations(tasks, token)
    if not by_method:
        listed = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        raise UnavailableError(f"no aggregation is available on this model ({listed})")
    for name, attribution in (attributions or {}).items():
        by_method[name] = list(cut(attribution, tasks, name))
    options = Options(replacements, bins, steps, seeds, confidence, seed, show_progress)
    result = measure(tasks, by_method, reasons, options)
    if show:
        print(result)
    return result


def _aggregations(tasks: Sequence[Task], token: Token) -> tuple[Attributions, dict[str, str]]:
    """Attributions that every task has, and why others are unavailable."""
    by_task = [aggregated(task, token) for task in tasks]
    reasons = {name: why for _, without in by_task for name, why in without.items()}
    names = [name for name in by_task[0][0] if name not in reasons]
    return {
        name: [attributions[name].double() for attributions, _ in by_task] for name in names
    }, reasons
