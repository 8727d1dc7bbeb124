"""Every method's faithfulness, with intervals, as a table and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.explain.intervals import RESAMPLES, Interval, bootstrap, sign_flips
from regard.record.table import html_list, html_table, text_table

#: Measures, and whether higher is better.
METRICS = {"comprehensiveness": True, "sufficiency": False, "deletion": False, "insertion": True}
RANDOM = "random"
BASELINES = (RANDOM, "gradient norm", "input × gradient", "integrated gradients")
_HEADS = {
    "comprehensiveness": "comprehensiveness ↑",
    "sufficiency": "sufficiency ↓",
    "deletion": "deletion area ↓",
    "insertion": "insertion area ↑",
}


@dataclass(frozen=True, eq=False)
class Measurement:
    """One method with one replacement: values of each example, and the mean curves."""

    method: str
    replacement: str
    values: Mapping[str, Float[Tensor, " example"]]  #: by measure; NaN where nothing was removable
    shares: Float[Tensor, " step"]  #: of positions, at each step of the curves
    deletion: Float[Tensor, " step"]
    insertion: Float[Tensor, " step"]

    def __repr__(self) -> str:
        means = [f"{name} {float(values.nanmean()):.3f}" for name, values in self.values.items()]
        return f"Measurement({self.method!r}, {self.replacement!r}: {', '.join(means)})"


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How faithful each method is on a model and data.

    A method **beats random** when a paired randomisation test says so: with each example's
    difference to random given a random sign, a mean as large comes up less often than
    (1 − confidence) / 2 divided by the number of methods (Bonferroni: one of many would win by
    luck). Pairing examples is more sensitive than comparing two intervals. Few examples cannot
    pass.

    Attributes:
        measured: by replacement and method.
        methods: names of all methods, as in `agreement`.
        agreement: Kendall's τ_b of each method with each, the mean over examples.
        examples: how many there are.
        unavailable: methods that are unavailable, and why.
        left_out: examples without a removable position.
        target: what was explained.
        confidence: of the intervals.
        seed: of what was drawn.
    """

    measured: Mapping[tuple[str, str], Measurement]
    methods: Sequence[str]
    agreement: Float[Tensor, "method method"]
    examples: int
    unavailable: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0
    target: str = ""
    confidence: float = 0.95
    seed: int = 0

    @property
    def replacements(self) -> list[str]:
        """Names of the replacements, in the order they were given."""
        return list(dict.fromkeys(replacement for replacement, _ in self.measured))

    def of(self, method: str, replacement: str | None = None) -> Measurement:
        """What one method gave; with the first replacement when None."""
        key = (self.replacements[0] if replacement is None else replacement, method)
        if key not in self.measured:
            raise RegardError(
                f"{method!r} with {key[0]!r} was not measured; there are {', '.join(self.methods)} "
                f"with {', '.join(self.replacements)}"
            )
        return self.measured[key]

    def interval(
        self, method: str, metric: str = "comprehensiveness", replacement: str | None = None
    ) -> Interval:
        """The mean of a measure, and its interval over examples."""
        values = self.of(method, replacement).values[checked_metric(metric)]
        return bootstrap(values, confidence=self.confidence, seed=self.seed)

    def over(
        self,
        method: str,
        other: str,
        metric: str = "comprehensiveness",
        replacement: str | None = None,
    ) -> Interval:
        """By how much a method is better than another, example by example; above 0 is better."""
        gain = self._gain(method, other, metric, replacement)
        return bootstrap(gain, confidence=self.confidence, seed=self.seed)

    def beats(
        self,
        method: str,
        other: str,
        metric: str = "comprehensiveness",
        replacement: str | None = None,
    ) -> bool:
        """Whether a method is better than another by more than chance; see above."""
        gain = self._gain(method, other, metric, replacement)
        resamples = max(RESAMPLES, int(10 / self._level))
        return sign_flips(gain, resamples=resamples, seed=self.seed) <= self._level

    def beats_random(
        self, method: str, metric: str = "comprehensiveness", replacement: str | None = None
    ) -> bool:
        """Whether a method is better than random by more than chance; see above."""
        return self.beats(method, RANDOM, metric, replacement)

    @property
    def _level(self) -> float:
        return (1 - self.confidence) / 2 / max(1, len(self.methods) - 1)

    def _gain(
        self, method: str, other: str, metric: str, replacement: str | None
    ) -> Float[Tensor, " example"]:
        own, rival = (
            self.of(name, replacement).values[checked_metric(metric)] for name in (method, other)
        )
        return own - rival if METRICS[metric] else rival - own

    def ranking(
        self, metric: str = "comprehensiveness", replacement: str | None = None
    ) -> list[str]:
        """Methods, best first."""
        means = {
            method: float(self.of(method, replacement).values[checked_metric(metric)].nanmean())
            for method in self.methods
        }
        return sorted(self.methods, key=lambda method: means[method], reverse=METRICS[metric])

    def best(self, metric: str = "comprehensiveness", replacement: str | None = None) -> str | None:
        """The best method that is no baseline and beats random; None where there is none."""
        for method in self.ranking(metric, replacement):
            if method not in BASELINES and self.beats_random(method, metric, replacement):
                return method
        return None

    def verdict(self, metric: str = "comprehensiveness") -> str:
        """In words, which method to take, a line for each replacement."""
        lines = [self._verdict(metric, replacement) for replacement in self.replacements]
        winners = {self.best(metric, replacement) for replacement in self.replacements}
        if len(winners) > 1:
            lines.append("The replacements do not agree on the best method: the choice matters.")
        return "\n".join(lines)

    def _verdict(self, metric: str, replacement: str) -> str:
        best = self.best(metric, replacement)
        needed = math.ceil(-math.log2(self._level))
        if self.examples - self.left_out < needed:
            return (
                f"{replacement}: too few examples to tell any method from random; at least "
                f"{needed} are needed."
            )
        if best is None:
            return (
                f"{replacement}: NONE of the methods beats random on {metric}. Do not take any of "
                "them for an explanation of this model on these data."
            )
        mean = self.interval(best, metric, replacement).mean
        chance = self.interval(RANDOM, metric, replacement).mean
        line = f"{replacement}: {best} is the most faithful "
        line += f"({metric} {mean:.3f}, random {chance:.3f})."
        ranked = self.ranking(metric, replacement)
        ahead = [name for name in ranked[: ranked.index(best)] if name in BASELINES]
        level = [
            name
            for name in ranked[ranked.index(best) + 1 :]
            if name not in BASELINES and not self.beats(best, name, metric, replacement)
        ]
        if level:
            line += f" Not told apart from it: {', '.join(level)}."
        if ahead:
            line += f" Without attention, {' and '.join(ahead)} did better."
        return line

    # -- tables

    def rows(
        self, metric: str = "comprehensiveness", replacement: str | None = None
    ) -> list[list[str]]:
        """A row of words for each method, best first."""
        return [
            [
                method,
                *[str(self.interval(method, name, replacement)) for name in METRICS],
                "" if method == RANDOM
                else "yes" if self.beats_random(method, metric, replacement) else "no",
            ]
            for method in self.ranking(metric, replacement)
        ]  # fmt: skip

    @cached_property
    def _tables(self) -> dict[str, list[list[str]]]:
        head = ["method", *_HEADS.values(), "beats random"]
        return {name: [head, *self.rows(replacement=name)] for name in self.replacements}

    def _title(self) -> str:
        out = f", {self.left_out} left out (nothing to remove)" if self.left_out else ""
        return (
            f"{self.examples} examples{out}; target: {self.target}; intervals of "
            f"{100 * self.confidence:g} % over examples"
        )

    def _remarks(self) -> list[str]:
        reasons = [f"not computed: {name}: {why}" for name, why in self.unavailable.items()]
        return [*self.verdict().split("\n"), *reasons]

    def __repr__(self) -> str:
        lines = [self._title()]
        for name, table in self._tables.items():
            lines += ["", f"removed: {name}", text_table(table)]
        return "\n".join([*lines, "", *self._remarks()])

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self._title())}</p>"]
        for name, table in self._tables.items():
            parts.append(f"<p>removed: {escape(name)}</p>{html_table(table)}")
        return "".join(parts) + html_list(self._remarks())


def checked_metric(metric: str) -> str:
    """The name of a measure, or an error with all of them."""
    if metric not in METRICS:
        raise RegardError(f"metric={metric!r}, expected one of {', '.join(METRICS)}")
    return metric
