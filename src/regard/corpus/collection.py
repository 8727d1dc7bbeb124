"""What was collected of a corpus."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regard.aggregate import Report
from regard.aggregate.statistics.report import HeadRow, rows_of
from regard.corpus.corpus import Failure
from regard.corpus.estimates import Estimate
from regard.corpus.state import State
from regard.corpus.statistics.figures import HeadFigures
from regard.errors import RegardError


class Collection(Mapping[str, dict[str, Any]]):
    """Results of all statistics: `collection["sharpness"]` is a dictionary of them by attention."""

    def __init__(self, state: State, *, complete: bool = True) -> None:
        self.state = state
        self.complete = complete  #: False if shards are missing
        self._results: dict[str, dict[str, Any]] = {}

    @property
    def sites(self) -> list[str]:
        """The names of the attentions, as in a trace."""
        return list(self.state.sites)

    @property
    def examples(self) -> int:
        """How many documents were read."""
        return self.state.examples

    @property
    def tokens(self) -> int:
        """How many tokens they have."""
        return self.state.tokens

    @property
    def failures(self) -> list[Failure]:
        """Documents that were left out."""
        return self.state.failures

    @property
    def left_out(self) -> dict[str, str]:
        """Attentions that were not looked at, and why."""
        return self.state.left_out

    def __iter__(self) -> Iterator[str]:
        return iter(self.state.statistics)

    def __len__(self) -> int:
        return len(self.state.statistics)

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self.state.statistics:
            near = difflib.get_close_matches(str(name), list(self), n=1)
            hint = f", such as {near[0]!r}" if near else ""
            raise KeyError(f"no statistic is named {name!r}{hint}; there are {', '.join(self)}")
        if name not in self._results:
            self._results[name] = {site: self._result(name, site) for site in self.sites}
        return self._results[name]

    def _result(self, name: str, site: str) -> Any:
        parts = self.state.sites[site][name]
        if empty := [part for part, held in parts.items() if not held.arrays]:
            raise RegardError(f"{name}: {site}: nothing was added to {empty[0]!r}")
        return self.state.statistics[name].result(parts)

    def __repr__(self) -> str:
        counts = f"{self.examples} documents, {self.tokens} tokens, {len(self.sites)} attentions"
        cut = f", {self.state.cut} documents cut" if self.state.cut else ""
        failed = f", {len(self.failures)} documents left out" if self.failures else ""
        missing = "" if self.complete else ", shards are missing"
        return f"Collection({', '.join(self)}: {counts}{cut}{failed}{missing})"

    def report(self, name: str = "figures") -> Report:
        """The table of all heads, as `trace.report()`, over the corpus.

        Args:
            name: of the statistic `Figures`.
        """
        rows: list[HeadRow] = []
        numbers = layer_numbers(self.sites)
        for layer, (site, figures) in zip(numbers, self[name].items()):
            if not isinstance(figures, HeadFigures):
                raise RegardError(f"report: {name!r} is {type(figures).__name__}, not Figures")
            means = {figure: estimate.mean for figure, estimate in figures.figures.items()}
            rows.extend(rows_of(layer, site, figures.types, means))
        notes = [f"{site}: left out, {why}" for site, why in self.left_out.items()]
        return Report(rows, notes=notes, sites=numbers != _of_paths(self.sites))

    def table(self, name: str) -> dict[str, list[Any]]:
        """The estimates of a statistic as columns, as `pandas.DataFrame` takes them: a row for each
        head and quantity, with its mean, its error and what it is a mean over."""
        columns: dict[str, list[Any]] = {
            column: []
            for column in (
                "layer",
                "head",
                "site",
                "quantity",
                "mean",
                "error",
                "number",
                "examples",
            )
        }
        for layer, (site, result) in zip(layer_numbers(self.sites), self[name].items()):
            for quantity, estimate in estimates_of(result, ""):
                for head, values in enumerate(zip(*(part.tolist() for part in estimate[:4]))):
                    row = (layer, head, site, quantity, *values)
                    for column, value in zip(columns.values(), row):
                        column.append(value)
        return columns


def estimates_of(result: Any, name: str) -> Iterator[tuple[str, Estimate]]:
    """Estimates of one number a head, by name, wherever they are in a result."""
    if isinstance(result, Estimate):
        if result.mean.dim() == 1:
            yield name, result
        elif result.mean.dim() == 2:
            for column in range(result.mean.shape[1]):
                yield f"{name}[{column}]", Estimate(*(value[:, column] for value in result[:4]))
        return
    fields = result if isinstance(result, Mapping) else getattr(result, "__dict__", None)
    if fields is None and hasattr(result, "_asdict"):
        fields = result._asdict()
    for field, value in (fields or {}).items():
        yield from estimates_of(value, f"{name}.{field}".lstrip("."))


def layer_numbers(sites: Sequence[str]) -> list[int]:
    """The number of each layer: the first one in its path where these are distinct, else from 0."""
    numbers = _of_paths(sites)
    return numbers if len(set(numbers)) == len(numbers) else list(range(len(sites)))


def _of_paths(sites: Sequence[str]) -> list[int]:
    paths = [site.partition("#")[0].split(".") for site in sites]
    return [next((int(part) for part in path if part.isdigit()), -1) for path in paths]
