"""The data flow of one capture, made of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.tracing.dataflow.candidates import Candidates, Observer
from regard.tracing.dataflow.moves import Moves
from regard.tracing.dataflow.pointwise import Pointwise
from regard.tracing.dataflow.products import Products
from regard.tracing.dataflow.softmaxes import Softmaxes
from regard.tracing.dataflow.tags import TagStore
from regard.tracing.dataflow.writes import Writes

Rule = Callable[["DataFlow", Any, Any, Any], None]  # data flow, args, kwargs, output


class DataFlow:
    """Follows numbers through the operators of a run, and reports attention to an observer.

    Args:
        observer: the capture.
        graph: whether weights before dropout stay in the autograd graph.
        rules: operators between two products that make attention without a softmax.
    """

    def __init__(
        self, observer: Observer, graph: bool = False, rules: frozenset[str] = frozenset()
    ) -> None:
        self.tags = TagStore(graph)
        self.candidates = Candidates(self.tags, observer)
        self.pointwise = Pointwise(self.tags)
        self.moves = Moves(self.tags, self.pointwise)
        self.writes = Writes(self.tags, self.candidates)
        self.softmaxes = Softmaxes(self.tags, self.pointwise, self.writes, self.candidates)
        self.products = Products(self.tags, self.moves, self.candidates, rules)

    def follow(self, operator: str, rule: Rule, args: Any, kwargs: Any, out: Any) -> None:
        """An operator has run: pass its tags on."""
        self.pointwise.operator = operator
        rule(self, args, kwargs, out)
