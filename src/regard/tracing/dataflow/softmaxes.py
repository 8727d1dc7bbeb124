"""How a softmax is spelled: as one operator, or as exponentials, sums and quotients.

Also what else multiplies, adds up and divides: dropout masks, weights times values that are summed
later, sums over edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.tracing.dataflow.axes import Dims, axis, laid_out
from regard.tracing.dataflow.candidates import FROM_PARAMETER, Candidates
from regard.tracing.dataflow.contraction import Contraction
from regard.tracing.dataflow.movement import along_dim, same_index
from regard.tracing.dataflow.pointwise import Pointwise, asks
from regard.tracing.dataflow.tags import (
    Candidate,
    ExpSum,
    LateSoftmax,
    Mark,
    Tag,
    TagStore,
    Uses,
    WeightedValues,
    WeightSum,
    stretched,
)
from regard.tracing.dataflow.writes import Writes


class Softmaxes:
    """Operators by which softmaxes, and sums of weighted values, are spelled."""

    def __init__(
        self, tags: TagStore, pointwise: Pointwise, writes: Writes, candidates: Candidates
    ) -> None:
        self.tags, self.pointwise, self.writes = tags, pointwise, writes
        self.candidates = candidates

    def softmax(self, scores: Tensor, dim: int, weights: Tensor) -> None:
        """A softmax was taken: mark it as a candidate; of nothing, it has no axes."""
        if not weights.numel():
            return
        mark = self.candidates.mark(scores, dim, weights)
        if mark is not None:
            tag = Tag()
            tag.mark, tag.factors = (
                mark,
                self.candidates.weight_factors(mark.candidate, scores, weights),
            )
            self.tags.put(weights, tag)

    def log_softmax(self, scores: Tensor, dim: int, logs: Tensor) -> None:
        mark = self.candidates.mark(scores, dim, logs)
        if mark is not None:
            tag = Tag()
            tag.log, tag.factors = (
                mark,
                self.candidates.weight_factors(mark.candidate, scores, logs),
            )
            self.tags.put(logs, tag)

    def exponential(self, logs: Tensor, output: Tensor) -> None:
        """exp of log-weights is weights; of anything else, what may yet be divided by its sum."""
        before = self.tags.tag(logs)
        tag = self.pointwise.blend((logs,), output)
        if before is not None and before.log is not None:
            tag.log, tag.mark = None, before.log
        else:
            tag.exp = tag.number
            if output is not logs and tag.sides is not None and tag.scores is None:
                tag.scores = self.tags.box(logs.detach(), self.tags.dims(logs))
        self.tags.put(output, tag)

    def log_sum_exp(self, scores: Tensor, dims: Sequence[int], output: Tensor) -> None:
        if len(dims) == 1 and scores.dim():
            dim = dims[0] % scores.dim()
            tag = self._reduced(scores, [dim], output)
            tag.total = ExpSum(frozenset((self.tags.token(scores),)), tag.widths)
            tag.normaliser = True
            self.tags.put(output, tag)

    def _recognise_softmax(
        self, above: Tensor, below: Tensor, output: Tensor, logs: bool, times: bool = False
    ) -> bool:
        """exp / sum, or scores − log-sum-exp, where one was made from the other."""
        mine, total = self.tags.tag(above), self.tags.tag(below)
        if mine is None or total is None or total.total is None:
            return False
        numbers, keys, exact, _, segments, at_edges, inverse, edge_dim = total.total
        if inverse != times:
            return False
        if numbers != {mine.number if logs else mine.exp}:
            return False
        dim = above.dim() - 1
        if segments is not None:
            if not at_edges or len(segments) != above.shape[edge_dim]:
                return False
            dim = edge_dim
        elif keys:
            dims = [tuple(origin for _, origin in pieces) for pieces in self.tags.dims(above)]
            if keys not in dims:
                return False
            dim = dims.index(keys)
        mark = self.candidates.mark(above, dim, output)
        self.candidates.finish(numbers)
        tag = Tag()
        if mark is not None:
            mark.candidate.sides, mark.candidate.segments = mine.sides, segments
            if not exact:
                mark = mark._replace(kind="partial")
            tag.log, tag.mark = (mark, None) if logs else (None, mark)
            tag.factors = self.candidates.weight_factors(mark.candidate, above, output)
        self.tags.put(output, tag)
        return True

    def subtract(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        if not self._recognise_softmax(left, right, output, logs=True):
            self.pointwise.apply((left, right), output)
            tag, before = self.tags.tag(output), self.tags.tag(left)
            # by a maximum, most likely; of one key it has the same shape
            shifted = output is not left and (stretched(right, output) or output.shape[-1:] == (1,))
            if shifted and tag is not None and before is not None and before.sides is not None:
                tag.scores = self.tags.box(left.detach(), self.tags.dims(left))

    def divide(self, numerator: Tensor, denominator: Tensor, output: Tensor) -> None:
        if not (
            self._recognise_softmax(numerator, denominator, output, logs=False)
            or self._recognise_late_softmax(numerator, denominator, output)
            or self._recognise_renormalisation(numerator, denominator, output)
        ):
            self.pointwise.apply((numerator, denominator), output, kind="partial")

    def _recognise_late_softmax(
        self, numerator: Tensor, denominator: Tensor, output: Tensor, times: bool = False
    ) -> bool:
        """Exponentials times values, divided by the sums of the exponentials."""
        mine, below = self.tags.tag(numerator), self.tags.tag(denominator)
        if mine is None or not mine.late or below is None or below.total is None:
            return False
        late = mine.late
        if {each.number for each in late} != below.total.numbers or below.total.inverse != times:
            return False
        self.candidates.finish(below.total.numbers)
        self.pointwise.apply((numerator, denominator), output)
        tag = self.tags.tag(output)
        if tag is not None:
            tag.late, tag.total = (), None
        call_site = self.candidates.observer.call_site()
        first: Contraction = late[0].contraction
        if call_site is None:
            return True
        self.candidates.flush()
        candidate = Candidate(call_site, first.weights.dim() - 1, tuple(first.weights.shape))
        candidate.sides, candidate.widths, candidate.keys = (
            late[0].sides,
            late[0].widths,
            late[0].keys,
        )
        mark = Mark(candidate)
        sums = denominator.reciprocal() if times else denominator
        weights = None if below.total.shifted else late_weights(late, candidate, sums)
        if weights is None:
            self.candidates.lose(candidate)
        elif self.candidates.observer.wants(call_site, True):
            self.candidates.settle(mark, replace(first, mark=mark), weights)
        return True

    def _recognise_renormalisation(
        self, numerator: Tensor, denominator: Tensor, output: Tensor
    ) -> bool:
        """A softmax over the queries, made to sum to 1 over the keys (slot attention)."""
        mine, below = self.tags.tag(numerator), self.tags.tag(denominator)
        if mine is None or mine.mark is None or below is None or below.weight_sum is None:
            return False
        candidate, keys = below.weight_sum
        if candidate is not mine.mark.candidate or not keys or keys == candidate.keys:
            return False
        self.pointwise.apply((numerator, denominator), output)
        after = self.tags.tag(output)
        if after is not None and after.mark is not None:
            after.mark = after.mark._replace(kind="distribution", before=None)
        candidate.keys, candidate.softmax_output = keys, None
        feature = any(origin.kind == "feature" for origin in keys)
        candidate.reason = FROM_PARAMETER if feature else None
        return True

    def multiply(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        """Dropout, a mask, weights times values that wait for their sum, or a plain product."""
        for above, below in ((left, right), (right, left)):
            if self._recognise_softmax(above, below, output, logs=False, times=True):
                return
            if self._recognise_late_softmax(above, below, output, times=True):
                return
        for weights, factor in ((left, right), (right, left)):
            tag = self.tags.tag(weights)
            if tag is None or tag.mark is None:
                continue
            theirs = self.tags.tag(factor)
            if theirs is not None and theirs.noise:
                self.pointwise.dropout(weights, output)
                return
            if self._spread(tag.mark, weights, factor, output):
                return
            self.pointwise.apply((left, right), output, kind="partial")
            return
        sides = None
        if not (self.tags.constant(left) or self.tags.constant(right)):
            sides = (self.tags.sources(left), self.tags.sources(right))
            if asks(right, left, output):
                sides = sides[::-1]
        self.pointwise.apply((left, right), output)
        tag = self.tags.tag(output)
        if tag is not None and self.tags.token(left) != self.tags.token(right):
            tag.multiplied = sides

    def _spread(self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor) -> bool:
        """Weights stretched over a feature axis of the values, to be summed over the keys."""
        over_features = stretched(weights, output) or self._of_each_feature(mark, weights)
        if not over_features and mark.candidate.segments is None:
            return False
        theirs = self.tags.tag(values)
        if theirs is not None and (theirs.of_weights or theirs.mark or theirs.log):
            return False  # an entropy
        box = self.tags.weights_box(weights, mark)
        tag = Tag()
        dims = self.tags.dims(values)
        tag.weighted_values = WeightedValues(
            mark,
            self._uses(mark, weights, dims),
            self.tags.constant(values),
            values.detach(),
            dims,
            self.tags.view(values),
            tuple(weights.shape),
            box,
        )
        tag.factors = self.pointwise.factors((weights, values), output)
        if not mark.candidate.keys and mark.candidate.segments is None:  # one key: nothing to sum
            self.candidates.settle(mark, Contraction.of_sum(tag.weighted_values, output))
        self.tags.put(output, tag)
        return True

    def _of_each_feature(self, mark: Mark, weights: Tensor) -> bool:
        """Whether every feature has weights of its own, that a linear map made (pooling)."""
        if mark.candidate.sides is not None or mark.candidate.kind == "constant":
            return False
        others = [
            origin
            for pieces in self.tags.dims(weights)
            for _, origin in pieces
            if not mark.candidate.has_key(origin)
        ]
        return any(origin.kind == "feature" for origin in others)

    def _uses(self, mark: Mark, weights: Tensor, values: Dims) -> Uses:
        """What each axis of the weights is in a product with values, place by place."""
        uses: Uses = {}
        shift = len(values) - weights.dim()
        for dim, pieces in enumerate(self.tags.dims(weights)):
            shared = dim + shift >= 0 and bool(values[dim + shift])
            for _, origin in pieces:
                key = mark.candidate.has_key(origin)
                uses[origin] = "key" if key else "shared" if shared else "row"
        return uses

    def summed(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """A sum: of exponentials, of weights times values, or of anything else."""
        tag = self.tags.tag(tensor)
        if tag is None:
            return
        wanted = [dim % tensor.dim() for dim in dims] if tensor.dim() else []
        if tag.weighted_values is not None:
            candidate = tag.weighted_values.mark.candidate
            keys = candidate.keys
            lying = [
                dim
                for dim, pieces in enumerate(self.tags.dims(tensor))
                if any(candidate.has_key(origin) for _, origin in pieces)
            ]
            if not keys or (lying and all(dim in wanted for dim in lying)):
                self.candidates.settle(
                    tag.weighted_values.mark, Contraction.of_sum(tag.weighted_values, output)
                )
            return
        if tag.exp and len(wanted) == 1 and not tag.late:
            total = self._reduced(tensor, wanted, output)
            total.total = ExpSum(frozenset((tag.exp,)), total.widths)
            self.tags.put(output, total)
        elif tag.constant:
            self.pointwise.apply((tensor,), output)
        else:
            reduced = self._reduced(tensor, wanted, output)
            reduced.sources, reduced.late = tag.sources, tag.late
            reduced.sides = tag.sides or tag.multiplied  # summed over features: scores
            if tag.total is not None:
                reduced.total = tag.total._replace(exact=False)
            reduced.of_weights = tag.of_weights or tag.mark is not None
            if tag.mark is not None:
                reduced.weight_sum = WeightSum(tag.mark.candidate, reduced.widths)
            self.tags.put(output, reduced)

    def _reduced(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> Tag:
        """A reduction over some dimensions: the others stay, what was summed is remembered."""
        tag = Tag()
        if tensor.dim():
            tensor_dims = self.tags.dims(tensor)
            gone = [tensor_dims[dim] for dim in dims]
            kept = output.dim() == tensor.dim()
            rest = [
                () if kept and dim in dims else pieces for dim, pieces in enumerate(tensor_dims)
            ]
            if not kept:
                rest = [pieces for dim, pieces in enumerate(rest) if dim not in dims]
            if len(rest) == output.dim():
                tag.factors = laid_out(rest, output)
            tag.widths = tuple(origin for pieces in gone for _, origin in pieces)
        return tag

    def reduced(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """A mean, a maximum, and other operators that make dimensions go."""
        before = self.tags.tag(tensor)
        tag = self._reduced(
            tensor, [dim % tensor.dim() for dim in dims] if tensor.dim() else [], output
        )
        tag.widths = ()
        tag.same_as = self.tags.token(tensor)  # a linear map of a mean is one of what was averaged
        if before is not None:
            if before.mark is not None:
                self.candidates.lose(before.mark.candidate)
            tag.sources, tag.constant, tag.sides = before.sources, before.constant, before.sides
            tag.normaliser, tag.of_weights = before.normaliser, before.of_weights
        self.tags.put(output, tag)

    def scattered(
        self, dim: int, index: Tensor, source: Tensor, output: Tensor, plain: bool
    ) -> None:
        """Entries added up by an index: exponentials of edges, or their weights times values.

        `plain`: onto zeros, and as they are.
        """
        tag = self.tags.tag(source)
        dim %= max(1, source.dim())
        if tag is not None and tag.exp:
            total = Tag()
            queries = along_dim(index, dim)
            total.total = ExpSum(frozenset((tag.exp,)), (), plain, segments=queries, dim=dim)
            self.tags.put(output, total)
            self.candidates.begin(
                tag, "exponentials were added up over edges, and not followed to values"
            )
            return
        spread = None if tag is None else tag.weighted_values
        segments = None if spread is None else spread.mark.candidate.segments
        edges = None if segments is None else along_dim(index, dim)
        if spread is not None and segments is not None and same_index(segments, edges):
            self.candidates.settle(spread.mark, Contraction.of_sum(spread, output))
            nodes = Tag()
            count = output.shape[dim]
            targets = [origin for origin in self.tags.chosen_from(segments) if origin.size == count]
            dims = self.tags.dims(source)
            dims[dim] = ((count, targets[0]),) if targets else axis(count, "data")
            nodes.factors = laid_out(dims, output)
            self.tags.put(output, nodes)
            return
        if spread is not None and segments is not None:
            self.candidates.lose(spread.mark.candidate)
        self.writes.written(output, source)

    def absolute_sum(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """The sum of absolute values: of exponentials, the same as their sum."""
        tag = self.tags.tag(tensor)
        if tag is not None and (tag.exp or tag.mark is not None):
            self.summed(tensor, dims, output)
        else:
            self.pointwise.apply((tensor,), output) if self.tags.constant(tensor) else None


def late_weights(late: Sequence[LateSoftmax], candidate: Candidate, sums: Tensor) -> Tensor | None:
    """Weights (batch, head, query, key) out of exponentials that were divided by their sums.

    Where they came in parts with a maximum each, and were brought to a common one later, they are
    made from the scores.
    """
    powers, scores = [], []
    for each in late:
        candidate.keys = each.keys
        contraction: Contraction = replace(each.contraction, mark=Mark(candidate))
        roles = contraction.roles(set())
        powers.append(contraction.arranged_box(each.powers, roles))
        scores.append(None if each.scores is None else contraction.arranged_box(each.scores, roles))
    exponentials = _joined(powers)
    if exponentials is not None:
        total = exponentials.sum(-1, keepdim=True)
        if len(late) == 1 or _same_numbers(total, sums):
            return exponentials / total
    logits = _joined(scores)
    return None if logits is None or len(late) == 1 else logits.softmax(-1)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Matrices with some keys each as one with all of them."""
    there = [part for part in parts if part is not None]
    if len(there) < len(parts) or any(part.shape[:3] != there[0].shape[:3] for part in there):
        return None
    return torch.cat(there, -1)


def _same_numbers(sums: Tensor, others: Tensor) -> bool:
    """Whether two tensors hold the same numbers, in whatever order their axes are."""
    ours, theirs = sums.flatten().sort().values, others.detach().flatten().sort().values
    return ours.shape == theirs.shape and torch.allclose(ours, theirs.to(ours.dtype), rtol=1e-4)
