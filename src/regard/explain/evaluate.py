"""Measure attributions on a model and data, against random and against gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.explain import baselines
from regard.explain.agreement import pairwise
from regard.explain.evaluation_result import (
    BASELINES,
    METRICS,
    RANDOM,
    Evaluation,
    Measurement,
)
from regard.explain.metrics import BINS, area, at_bins, at_steps, follow, ranks, shares_of
from regard.explain.tasks.passes import Model
from regard.explain.tasks.replacements import Replacement, name_of
from regard.explain.tasks.task import Attribution, Task, cut, tasks_of
from regard.progress import progress

_GRADIENTS: dict[str, Callable[[Task], Attribution]] = {
    "gradient norm": baselines.gradient_norm,
    "input × gradient": baselines.input_gradient,
    "integrated gradients": baselines.integrated_gradients,
}
#: By method, (example, position) for each task.
Attributions = dict[str, list[Tensor]]
#: By measure (method, example); and "shares", "removed", "restored" (method, example, step).
_Measures = dict[str, Tensor]


class Options(NamedTuple):
    """How attributions are measured; see `evaluate`."""

    replacements: Replacement | Sequence[Replacement] | None
    bins: float | Sequence[float]
    steps: int
    seeds: int
    confidence: float
    seed: int
    show_progress: bool | None


def evaluate(
    model: Model,
    data: Any,
    attributions: Mapping[str, Any],
    target: Any = None,
    *,
    replacements: Replacement | Sequence[Replacement] | None = None,
    bins: float | Sequence[float] = BINS,
    steps: int = 10,
    seeds: int = 5,
    confidence: float = 0.95,
    seed: int = 0,
    show_progress: bool | None = None,
    **task: Any,
) -> Evaluation:
    """How faithful attributions are, beside random ones and those by gradients.

    Args:
        model: a module, or any function that calls one.
        data: inputs as for `Task`, or a list of such batches.
        attributions: by name, a tensor (example, position), or (example, position, width) as
            Captum's, which is added up; a list with one for each batch where data is a list.
        target: as for `Task`; or a list with one for each batch.
        replacements: ways to take positions out, one or several. Out of attention, where a mask
            and tokens to attend to are there, else the mean embedding, when None.
        bins: shares of positions for comprehensiveness and sufficiency.
        steps: of the deletion and insertion curves.
        seeds: how many random attributions the mean of "random" is over.
        confidence: of the intervals.
        seed: of random attributions, of ties, and of the intervals.
        show_progress: whether to draw a bar; when None, in a terminal where rich is installed.
        task: `special`, `removable`, `embedding`, `input_name`, `batch_size`, as for `Task`.
    """
    if not isinstance(attributions, Mapping):
        raise RegardError(
            f"attributions: a {type(attributions).__name__}, expected tensors by name, "
            'as {"mine": attribution}'
        )
    tasks = tasks_of(model, data, target, **task)
    by_method = {
        name: list(cut(attribution, tasks, name)) for name, attribution in attributions.items()
    }
    clashes = set(by_method) & set(BASELINES)
    if clashes:
        raise RegardError(f"attributions: {sorted(clashes)} are names of baselines; take others")
    options = Options(replacements, bins, steps, seeds, confidence, seed, show_progress)
    return measure(tasks, by_method, {}, options)


def measure(
    tasks: Sequence[Task],
    attributions: Attributions,
    unavailable: Mapping[str, str],
    options: Options,
) -> Evaluation:
    """`evaluate` with tasks and attributions."""
    seeds, seed = options.seeds, options.seed
    if seeds < 1:
        raise RegardError(f"seeds={seeds}, expected at least 1")
    reasons = dict(unavailable)
    by_gradient, no_gradient = gradient_baselines(tasks)
    attributions = {**attributions, **by_gradient}
    reasons.update(no_gradient)
    replacements = _replacements(options.replacements, tasks)
    random = _random_attributions(tasks, seeds, seed)
    all_values = [
        [*(method[i] for method in attributions.values()), *random[i]] for i in range(len(tasks))
    ]
    total = len(replacements) * sum(len(task) for task in tasks)
    measurements = {}
    with progress("removing positions", total, options.show_progress) as advance:
        for replacement in replacements:
            by_task = [
                _measures(task, values, replacement, options._replace(seed=seed + i), advance)
                for i, (task, values) in enumerate(zip(tasks, all_values))
            ]
            for measurement in _measurements(
                [*attributions, RANDOM], name_of(replacement), by_task, seeds
            ):
                measurements[measurement.replacement, measurement.method] = measurement
    left_out = sum(int((~task.removable.any(1)).sum()) for task in tasks)
    return Evaluation(
        measured=measurements,
        methods=[*attributions, RANDOM],
        agreement=_agreement(tasks, attributions, random),
        unavailable=reasons,
        examples=sum(len(task) for task in tasks),
        left_out=left_out,
        target=repr(tasks[0].target),
        confidence=options.confidence,
        seed=seed,
    )


def gradient_baselines(tasks: Sequence[Task]) -> tuple[Attributions, dict[str, str]]:
    """Attributions by gradients, and why others could not be had."""
    attributions: Attributions = {}
    reasons: dict[str, str] = {}
    for name, function in _GRADIENTS.items():
        try:
            attributions[name] = [function(task).double() for task in tasks]
        except RegardError as error:
            reasons[name] = str(error)
    return attributions, reasons


def _replacements(replacements: Any, tasks: Sequence[Task]) -> list[Replacement]:
    if replacements is None:
        usual = {name_of(task.usual_replacement()): task.usual_replacement() for task in tasks}
        return [usual.get("mean embedding") or tasks[0].usual_replacement()]
    chosen = list(replacements) if isinstance(replacements, list | tuple) else [replacements]
    for replacement in chosen:
        if not callable(replacement):
            raise RegardError(
                f"replacements: {replacement!r}, expected some such as explain.AttentionMask()"
            )
    names = [name_of(replacement) for replacement in chosen]
    if not chosen or len(set(names)) < len(names):
        raise RegardError(f"replacements: {names}, expected at least one, each with its own name")
    return chosen


def _random_attributions(tasks: Sequence[Task], seeds: int, seed: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        [
            torch.rand(task.removable.shape, generator=generator, dtype=torch.float64).to(
                task.removable.device
            )
            for _ in range(seeds)
        ]
        for task in tasks
    ]


def _measures(
    task: Task,
    attributions: Sequence[Attribution],
    replacement: Replacement,
    options: Options,
    advance: Callable[[float], None],
) -> _Measures:
    """Every method's measures on one task, from one run over all removals they need."""
    ranked = ranks(torch.stack(list(attributions)), task.removable, options.seed)
    few = at_bins(task.removable, options.bins)
    many = at_steps(task.removable, options.steps)
    counts = torch.cat([few, many, few, many], 1)
    half = few.shape[1] + many.shape[1]
    scores = follow(
        task,
        ranked,
        counts,
        replacement,
        alone=[False] * half + [True] * half,
        advance=lambda share: advance(share * len(task)),
    )
    without, removed, only, restored = scores.split([few.shape[1], many.shape[1]] * 2, dim=2)
    shares = shares_of(many).expand_as(removed)
    values = {
        "comprehensiveness": (task.original[:, None] - without).mean(2),
        "sufficiency": (task.original[:, None] - only).mean(2),
        "deletion": area(shares, removed),
        "insertion": area(shares, restored),
    }
    nothing = ~task.removable.any(1).cpu()
    curves = {"shares": shares, "removed": removed, "restored": restored}
    return {name: value.masked_fill(nothing, torch.nan) for name, value in values.items()} | {
        name: curve.masked_fill(nothing[:, None], torch.nan) for name, curve in curves.items()
    }


def _measurements(
    methods: Sequence[str], replacement: str, by_task: Sequence[_Measures], seeds: int
) -> list[Measurement]:
    """One for each method, over all tasks; the last `seeds` of them are the random ones."""
    whole = {name: torch.cat([measures[name] for measures in by_task], 1) for name in by_task[0]}
    measurements = []
    for number, method in enumerate(methods):
        last = method == RANDOM
        which = slice(number, number + seeds if last else number + 1)
        means = {name: value[which].mean(0) for name, value in whole.items()}
        measurements.append(
            Measurement(
                method,
                replacement,
                {name: means[name] for name in METRICS},
                means["shares"].nanmean(0),
                means["removed"].nanmean(0),
                means["restored"].nanmean(0),
            )
        )
    return measurements


def _agreement(
    tasks: Sequence[Task], attributions: Attributions, random: Sequence[Sequence[Tensor]]
) -> Float[Tensor, "method method"]:
    examples = []
    for i, task in enumerate(tasks):
        stacked = torch.stack([*(values[i] for values in attributions.values()), random[i][0]])
        for example, removable in enumerate(task.removable):
            if bool(removable.any()):
                examples.append(pairwise(stacked[:, example, removable]).cpu())
    if not examples:
        return torch.full([len(attributions) + 1] * 2, torch.nan, dtype=torch.float64)
    return torch.stack(examples).nanmean(0)
