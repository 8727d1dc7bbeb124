"""Spellings of a softmax: one operator, or exponentials, sums and quotients.

The same operators also apply dropout masks, multiply weights with values that are summed later, and
add up over edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.tracing.dataflow.axes import Dims, axis, laid_out
from regard.tracing.dataflow.axis_roles import Contraction
from regard.tracing.dataflow.candidates import FROM_PARAMETER, Candidates
from regard.tracing.dataflow.entry_maps import along_dim, same_index
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
        """Mark the result of a softmax as a candidate; an empty one has no axes."""
        if weights.numel():
            self._put_weights(self.candidates.mark(scores, dim, weights), scores, weights)

    def log_softmax(self, scores: Tensor, dim: int, logs: Tensor) -> None:
        """The same of its logarithm."""
        self._put_weights(self.candidates.mark(scores, dim, logs), scores, logs, logs=True)

    def _put_weights(
        self, mark: Mark | None, scores: Tensor, output: Tensor, logs: bool = False
    ) -> None:
        if mark is not None:
            tag = Tag()
            tag.log, tag.mark = (mark, None) if logs else (None, mark)
            tag.factors = self.candidates.weight_factors(mark.candidate, scores, output)
            self.tags.put(output, tag)

    def exponential(self, logs: Tensor, output: Tensor) -> None:
        """exp of log-weights is weights; of anything else, it may be divided by its sum later."""
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
        """exp / sum (or exp · 1 / sum, with `times`), or scores − log-sum-exp (`logs`)."""
        tag, sum_tag = self.tags.tag(above), self.tags.tag(below)
        if tag is None or sum_tag is None or sum_tag.total is None:
            return False
        numbers, keys, exact, _, segments, at_edges, inverse, edge_dim = sum_tag.total
        if inverse != times or numbers != {tag.number if logs else tag.exp}:
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
        if mark is None:
            self.tags.put(output, Tag())
            return True
        mark.candidate.sides, mark.candidate.segments = tag.sides, segments
        mark = mark if exact else mark._replace(kind="partial")
        self._put_weights(mark, above, output, logs)
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
        sum_tag = self.tags.tag(denominator)
        if sum_tag is not None and sum_tag.weight_sum is not None:
            self.candidates.drop_scalar_sum(sum_tag.weight_sum.candidate)
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
        tag, sum_tag = self.tags.tag(numerator), self.tags.tag(denominator)
        total = None if sum_tag is None else sum_tag.total
        if tag is None or not tag.late or total is None:
            return False
        late = tag.late
        if {each.number for each in late} != total.numbers or total.inverse != times:
            return False
        self.candidates.finish(total.numbers)
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
        candidate.sides, candidate.widths = late[0].sides, late[0].widths
        candidate.keys = late[0].keys
        mark = Mark(candidate)
        sums = denominator.reciprocal() if times else denominator
        weights = None if total.shifted else late_weights(late, candidate, sums)
        if weights is None:
            self.candidates.lose(candidate)
        elif self.candidates.observer.wants(call_site, True):
            self.candidates.settle(mark, replace(first, mark=mark), weights)
        return True

    def _recognise_renormalisation(
        self, numerator: Tensor, denominator: Tensor, output: Tensor
    ) -> bool:
        """A softmax over the queries, normalised again over the keys (slot attention)."""
        tag, sum_tag = self.tags.tag(numerator), self.tags.tag(denominator)
        if tag is None or tag.mark is None or sum_tag is None or sum_tag.weight_sum is None:
            return False
        candidate, keys = sum_tag.weight_sum
        if candidate is not tag.mark.candidate or not keys or keys == candidate.keys:
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
        """Dropout, a mask, weights times values to be summed later, or a plain product."""
        for above, below in ((left, right), (right, left)):
            if self._recognise_softmax(above, below, output, logs=False, times=True):
                return
            if self._recognise_late_softmax(above, below, output, times=True):
                return
        for weights, factor in ((left, right), (right, left)):
            tag = self.tags.tag(weights)
            if tag is None or tag.mark is None:
                continue
            factor_tag = self.tags.tag(factor)
            if factor_tag is not None and factor_tag.noise:
                self.pointwise.dropout(weights, output)
                return
            if self._spread(tag.mark, weights, factor, output):
                return
            self.pointwise.apply((left, right), output, kind="partial")
            self._weigh_scalars(tag.mark, weights, factor, output)
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
        broadcast = stretched(left, output) or stretched(right, output)
        if tag is not None and broadcast and output is not left:
            tag.weighted_powers = self._weighted_powers(left, right)
            tag.weighted_powers = tag.weighted_powers or self._weighted_powers(right, left)

    def _spread(self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor) -> bool:
        """Weights broadcast over a feature axis of the values, to be summed over the keys."""
        over_features = stretched(weights, output) or self._of_each_feature(mark, weights)
        if not over_features and mark.candidate.segments is None:
            return False
        value_tag = self.tags.tag(values)
        if value_tag is not None and (value_tag.of_weights or value_tag.mark or value_tag.log):
            return False  # an entropy
        if mark.candidate.scores == (self.tags.token(values), self.tags.view(values)):
            return False  # a soft maximum: scores weighted by their own softmax
        tag = Tag()
        tag.weighted_values = self._weighted_values(mark, weights, values)
        tag.factors = self.pointwise.factors((weights, values), output)
        if not mark.candidate.keys and mark.candidate.segments is None:  # one key: nothing to sum
            self.candidates.settle(mark, Contraction.of_sum(tag.weighted_values, output))
        self.tags.put(output, tag)
        return True

    def _weigh_scalars(self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor) -> None:
        """Values without features, the same for all queries; or a mask of the keys."""
        tag = self.tags.tag(output)
        fits = values.is_floating_point() and not stretched(weights, output)
        fits = fits and stretched(values, output) and output is not weights
        if tag is not None and fits and not self.tags.constant(values):
            scalars = self._weighted_values(mark, weights, values)
            tag.weighted_scalars = scalars if "row" in scalars.uses.values() else None

    def _weighted_powers(self, powers: Tensor, values: Tensor) -> tuple[Tag, WeightedValues] | None:
        """Exponentials times values, which may be summed over keys."""
        tag = self.tags.tag(powers)
        if tag is None or not tag.exp or self.tags.constant(values):
            return None
        return tag, self._weighted_values(Mark(Candidate(None, 0, ())), powers, values)

    def _weighted_values(self, mark: Mark, weights: Tensor, values: Tensor) -> WeightedValues:
        dims = self.tags.dims(values)
        return WeightedValues(
            mark,
            _uses(mark, self.tags.dims(weights), dims),
            self.tags.constant(values),
            values.detach(),
            dims,
            self.tags.view(values),
            tuple(weights.shape),
            self.tags.weights_box(weights, mark),
        )

    def _of_each_feature(self, mark: Mark, weights: Tensor) -> bool:
        """Whether every feature has its own weights, from a linear map (pooling)."""
        if mark.candidate.sides is not None or mark.candidate.kind == "constant":
            return False
        others = [
            origin
            for pieces in self.tags.dims(weights)
            for _, origin in pieces
            if not mark.candidate.has_key(origin)
        ]
        return any(origin.kind == "feature" for origin in others)

    def summed(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """A sum of exponentials, of weights times values, or of anything else."""
        tag = self.tags.tag(tensor)
        if tag is None:
            return
        reduced_dims = [dim % tensor.dim() for dim in dims] if tensor.dim() else []
        spread = tag.weighted_values or tag.weighted_scalars
        if spread is not None:
            candidate = spread.mark.candidate
            key_dims = [
                dim
                for dim, pieces in enumerate(self.tags.dims(tensor))
                if any(candidate.has_key(origin) for _, origin in pieces)
            ]
            contraction = Contraction.of_sum(spread, output)
            if tag.weighted_values is None:
                if key_dims == reduced_dims:
                    self.candidates.keep_scalar_sum(contraction)
            elif not candidate.keys or (key_dims and set(key_dims) <= set(reduced_dims)):
                self.candidates.settle(spread.mark, contraction)
        if tag.weighted_values is not None:
            return
        if tag.exp and len(reduced_dims) == 1 and not tag.late:
            total = self._reduced(tensor, reduced_dims, output)
            total.total = ExpSum(frozenset((tag.exp,)), total.widths)
            if tag.weighted_powers is not None:
                dim = reduced_dims[0] - tensor.dim()
                total.late = _late_sum(*tag.weighted_powers, dim, output)
            self.tags.put(output, total)
        elif tag.constant:
            self.pointwise.apply((tensor,), output)
        else:
            reduced = self._reduced(tensor, reduced_dims, output)
            reduced.sources, reduced.late = tag.sources, tag.late
            reduced.sides = tag.sides or tag.multiplied  # summed over features: scores
            if tag.total is not None:
                reduced.total = tag.total._replace(exact=False)
            reduced.of_weights = tag.of_weights or tag.mark is not None
            if tag.mark is not None:
                reduced.weight_sum = WeightSum(tag.mark.candidate, reduced.widths)
            self.tags.put(output, reduced)

    def _reduced(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> Tag:
        """The tag of a reduction: the remaining dimensions, and the summed ones as `widths`."""
        tag = Tag()
        if tensor.dim():
            tensor_dims = self.tags.dims(tensor)
            gone = [tensor_dims[dim] for dim in dims]
            keeps_dims = output.dim() == tensor.dim()
            rest = [
                () if keeps_dims and dim in dims else pieces
                for dim, pieces in enumerate(tensor_dims)
            ]
            if not keeps_dims:
                rest = [pieces for dim, pieces in enumerate(rest) if dim not in dims]
            if len(rest) == output.dim():
                tag.factors = laid_out(rest, output)
            tag.widths = tuple(origin for pieces in gone for _, origin in pieces)
        return tag

    def reduced(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """A mean, a maximum, or another reduction."""
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
        """Entries added up by an index: exponentials of edges, or weights times values.

        `plain`: onto zeros, and unscaled.
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
        """The sum of absolute values, which for exponentials and weights is the sum."""
        tag = self.tags.tag(tensor)
        if tag is not None and (tag.exp or tag.mark is not None):
            self.summed(tensor, dims, output)
        elif self.tags.constant(tensor):
            self.pointwise.apply((tensor,), output)


def _uses(mark: Mark, weights: Dims, values: Dims) -> Uses:
    """The use of each axis of the weights in an elementwise product with values."""
    uses: Uses = {}
    shift = len(values) - len(weights)
    for dim, pieces in enumerate(weights):
        shared = dim + shift >= 0 and bool(values[dim + shift])
        for _, origin in pieces:
            key = mark.candidate.has_key(origin)
            uses[origin] = "key" if key else "shared" if shared else "row"
    return uses


def _late_sum(
    powers: Tag, weighted: WeightedValues, dim: int, output: Tensor
) -> tuple[LateSoftmax, ...]:
    """Exponentials times values, summed along a dimension, which is counted from the last."""
    dims = weighted.box.dims
    keys = tuple(origin for _, origin in dims[dim]) if -dim <= len(dims) else ()
    if not keys or any(origin.kind == "feature" for origin in keys):
        return ()
    weighted.mark.candidate.keys = keys
    uses = _uses(weighted.mark, dims, weighted.value_dims)
    contraction = Contraction.of_sum(weighted._replace(uses=uses), output)
    late = LateSoftmax(
        powers.exp, keys, contraction, weighted.box, powers.scores, powers.sides, powers.widths
    )
    return (late,)


def late_weights(late: Sequence[LateSoftmax], candidate: Candidate, sums: Tensor) -> Tensor | None:
    """Weights (batch, head, query, key) of a softmax that was normalised after the product.

    Chunks with a maximum each, rescaled later (online softmax), are computed from the scores.
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


def _joined(chunks: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenate chunks along the keys."""
    matrices = [chunk for chunk in chunks if chunk is not None]
    if len(matrices) < len(chunks) or len({matrix.shape[:3] for matrix in matrices}) > 1:
        return None
    return torch.cat(matrices, -1)


def _same_numbers(sums: Tensor, others: Tensor) -> bool:
    """Whether two tensors hold the same numbers, whatever the order of their axes."""
    ours, theirs = sums.flatten().sort().values, others.detach().flatten().sort().values
    return ours.shape == theirs.shape and torch.allclose(ours, theirs.to(ours.dtype), rtol=1e-4)
