"""Softmaxes that may be attention: from the operator that makes one to its verdict.

A softmax is a *candidate*. Its result is followed through dropout, casts, copies, masks and
products. It is attention once it meets values in a product along the softmax axis, unless these
values are parameters. A softmax over an axis that comes from a parameter (classes, experts, codes)
is not; neither is one whose values come from parameters alone, unless its scores do too (learned
queries that attend to each other before they have seen the input).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor

from regard.record.stored_attention import detached
from regard.tracing.dataflow.axes import Dims, Factor, Origin, laid_out
from regard.tracing.dataflow.axis_roles import Contraction
from regard.tracing.dataflow.tags import Candidate, Mark, Tag, TagStore
from regard.tracing.module_paths import CallSite

FROM_PARAMETER = "the softmax axis comes from a parameter, as in a classifier, router or codebook"
PARAMETER_SCORES = "the scores are parameters: they do not depend on the input"
ALONE = "a softmax over a single entry, whose scores are not a product"
JOINS = "the scores are log-sum-exps of other scores: it combines partial softmaxes"
INVERTED = "the softmax is multiplied by itself, as a kernel to be inverted"
PARAMETER_VALUES = "the values are parameters or constants"


@runtime_checkable
class Observer(Protocol):
    """What the data flow asks of a capture, and reports to it."""

    def call_site(self) -> CallSite | None:
        """Where the model is; None outside its modules."""

    def wants(self, call_site: CallSite, attention: bool = True) -> bool:
        """Whether a filter lets this site through."""

    def accept(
        self, candidate: Candidate, contraction: Contraction, weights: Tensor | None
    ) -> None:
        """A candidate is attention; `weights` where they were normalised after the product."""

    def reject(self, candidate: Candidate) -> None:
        """A candidate is not attention: `candidate.reason` says why."""


class Candidates:
    """The candidates of one capture, and what became of them."""

    def __init__(self, tags: TagStore, observer: Observer) -> None:
        self.tags, self.observer = tags, observer
        self.lost: dict[str, Candidate] = {}  # by path: softmaxes of products that met no values
        self.unfinished: dict[object, tuple[CallSite, str]] = {}  # exponentials without sums yet
        self.unasked: dict[
            tuple[str, str], tuple[CallSite, tuple[str, ...]]
        ] = {}  # by path and line
        self.sliced: Contraction | None = None  # some keys of a softmax; others may meet values yet
        self.scalar_sum: Contraction | None = None  # attention unless weights are divided by it
        self._latest: Candidate | None = None

    def mark(self, scores: Tensor, dim: int, output: Tensor) -> Mark | None:
        self.flush()
        if output.dim() == 0:
            return None
        call_site = self.observer.call_site()
        if call_site is None:
            return None
        dim %= output.dim()
        candidate = Candidate(call_site, dim, tuple(output.shape))
        tag = self.tags.tag(scores)
        if tag is not None:
            candidate.scores = (self.tags.token(scores), self.tags.view(scores))
            candidate.sides, candidate.widths = tag.sides, tag.widths
            if tag.constant:
                candidate.kind = "constant"
            elif any(origin.kind == "feature" for _, origin in self.tags.dims(scores)[dim]):
                candidate.reason = FROM_PARAMETER
            elif tag.normaliser:
                candidate.reason = JOINS
            elif output.shape[dim] == 1 and tag.sides is None and not tag.widths:
                candidate.reason = ALONE
        if not self.observer.wants(call_site, candidate.reason is None):
            return None
        return Mark(candidate)

    def weight_factors(
        self, candidate: Candidate, scores: Tensor, output: Tensor
    ) -> tuple[Factor, ...]:
        """The axes of the weights, with new origins: query and key may share theirs."""
        dims: Dims = [
            tuple((size, Origin(origin.kind, size, origin)) for size, origin in pieces)
            for pieces in self.tags.dims(scores)
        ]
        candidate.keys = tuple(origin for _, origin in dims[candidate.key])
        candidate.origins = tuple(origin for pieces in dims for _, origin in pieces)
        candidate.dims = dims
        self.let_go()
        if candidate.reason is None:
            candidate.softmax_output = self.tags.box(
                output if self.tags.graph else detached(output), dims
            )
            self._latest = candidate
        return laid_out(dims, output)

    def begin(self, powers: Tag, text: str) -> None:
        """Exponentials that may become attention; reported if the last step never comes."""
        call_site = self.observer.call_site()
        if call_site is not None:
            self.unfinished.setdefault(powers.exp, (call_site, text))

    def unfollowed(self, text: str) -> None:
        """An operator like attention that no rule follows; reported at the end."""
        call_site = self.observer.call_site()
        if call_site is not None:
            self.unfinished.setdefault((call_site.path, call_site.source), (call_site, text))

    def finish(self, powers: Iterable[int]) -> None:
        for number in powers:
            self.unfinished.pop(number, None)

    def invert(self, candidate: Candidate) -> None:
        if not candidate.done:
            candidate.done, candidate.reason, candidate.softmax_output = True, INVERTED, None
            self.observer.reject(candidate)

    def let_go(self) -> None:
        """Release the output of the last softmax: slices of it meet values at once or never."""
        if self._latest is not None:
            self._latest.softmax_output, self._latest = None, None

    def flush(self) -> None:
        """A softmax that met values with some of its keys alone is attention to those; one whose
        sum with scalar values did not divide the weights is attention too."""
        contraction, self.sliced = self.sliced, None
        if contraction is not None:
            self._accept(contraction, None)
        contraction, self.scalar_sum = self.scalar_sum, None
        if contraction is not None and not contraction.mark.candidate.done:
            contraction.mark.candidate.done = True
            self._accept(contraction, None)

    def keep_scalar_sum(self, contraction: Contraction) -> None:
        """Weights met scalars, which may be values, or a mask of the keys: what follows tells."""
        pending = self.scalar_sum
        if pending is not None and pending.mark.candidate is not contraction.mark.candidate:
            self.flush()
        self.scalar_sum = contraction

    def drop_scalar_sum(self, candidate: Candidate) -> None:
        """The scalars were a mask: weights are divided by the sum, or meet other values."""
        if self.scalar_sum is not None and self.scalar_sum.mark.candidate is candidate:
            self.scalar_sum = None

    def settle(self, mark: Mark, contraction: Contraction, weights: Tensor | None = None) -> None:
        candidate = mark.candidate
        if self.sliced is not None and self.sliced.mark.candidate is candidate:
            joint = self.sliced.joined(contraction)
            if joint is not None:
                self.sliced = None
                self._accept(joint, None)
            return
        self.drop_scalar_sum(candidate)
        self.flush()
        if candidate.done:
            return
        candidate.done = True
        for other in mark.others:
            other.done, other.softmax_output = True, None
        if weights is None and contraction.sliced:
            self.sliced = contraction
        else:
            self._accept(contraction, weights)

    def _accept(self, contraction: Contraction, weights: Tensor | None) -> None:
        candidate = contraction.mark.candidate
        candidate.softmax_output = None
        if self.lost.get(candidate.call_site.path) is candidate:
            del self.lost[candidate.call_site.path]
        constant = contraction.constant
        if constant is None:
            constant = self.tags.constant(contraction.values)
            if constant and candidate.sides and candidate.sides[0] & candidate.sides[1]:
                # learned queries that attend to each other, positioned by the input
                constant = not self.tags.tag(contraction.values).sources  # type: ignore[union-attr]
        if candidate.kind == "constant":
            candidate.kind = "distribution"
            if not constant:  # a learned mix of layers or of positions
                candidate.reason = PARAMETER_SCORES
        elif candidate.reason is None and constant:
            candidate.reason = PARAMETER_VALUES
        elif candidate.reason == FROM_PARAMETER and not constant and contraction.same_parameter():
            candidate.reason = None  # learned tokens that gathered the input before
        if candidate.reason is not None:
            self.observer.reject(candidate)
        else:
            self.observer.accept(candidate, contraction, weights)

    def lose(self, candidate: Candidate) -> None:
        """A softmax of a product of two inputs went where it is not followed."""
        if candidate.sides is not None and candidate.reason is None and not candidate.done:
            self.lost[candidate.call_site.path] = candidate
