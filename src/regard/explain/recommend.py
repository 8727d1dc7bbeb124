"""Which aggregation of attention to trust, on this model and these data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import UnavailableError
from regard.explain.aggregations import Token, aggregated
from regard.explain.evaluate import Found, measure
from regard.explain.evaluation import Evaluation
from regard.explain.metrics import BINS
from regard.explain.replacements import Replacement
from regard.explain.running import Model
from regard.explain.task import Task, cut, tasks_of


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

    It says so when none of them beats random. Those that cannot be had on this model are named
    with the reason.

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
    found, reasons = _aggregations(tasks, token)
    if not found:
        whole = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        raise UnavailableError(f"no aggregation can be had on this model ({whole})")
    for name, given in (attributions or {}).items():
        found[name] = list(cut(given, tasks, name))
    result = measure(
        tasks,
        found,
        reasons,
        replacements=replacements,
        bins=bins,
        steps=steps,
        seeds=seeds,
        confidence=confidence,
        seed=seed,
        show_progress=show_progress,
    )
    if show:
        print(result)
    return result


def _aggregations(tasks: Sequence[Task], token: Token) -> tuple[Found, dict[str, str]]:
    """Attributions that every task has, and why others could not be had."""
    answers = [aggregated(task, token) for task in tasks]
    reasons = {name: why for _, without in answers for name, why in without.items()}
    names = [name for name in answers[0][0] if name not in reasons]
    return {name: [found[name].double() for found, _ in answers] for name in names}, reasons
