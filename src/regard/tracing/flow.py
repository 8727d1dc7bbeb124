"""Which softmax is attention, and of what: followed through the operators of a run.

A softmax is a *candidate*. Its result is followed through dropout, casts, copies, masks and
products, and it is attention when it meets values, that are not parameters, in a product along
the softmax axis. A softmax over an axis that comes from a parameter (classes, experts, codes) is
not; neither is one whose values come from parameters alone, unless its scores do too (learned
queries that attend to each other before they have seen the input).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.record.held import detached
from regard.tracing.axes import (
    Dims,
    Factor,
    Origin,
    Piece,
    axis,
    dims_of,
    laid_out,
    merged,
    other_places,
)
from regard.tracing.movement import along_dim, same_index
from regard.tracing.moves import end_of, entries_of
from regard.tracing.names import Names, Place
from regard.tracing.pointwise import asks
from regard.tracing.roles import Contraction
from regard.tracing.tags import (
    Candidate,
    Late,
    Mark,
    Pairing,
    Spread,
    Tag,
    Total,
    Uses,
    WeightSum,
    stretched,
)
from regard.tracing.writing import Writing

FROM_PARAMETER = "the softmax axis comes from a parameter, as in a classifier, router or codebook"
PARAMETER_SCORES = "the scores are parameters: they do not look at what they weigh"
ALONE = "a softmax over one entry, of scores that are no product"
JOINS = "the scores are log-sum-exps of other scores: it joins softmaxes of parts"
INVERTED = "the softmax is multiplied by itself, as a kernel is that is inverted"
PARAMETER_VALUES = "the values are parameters or constants"

Accepted = Callable[[Candidate, Contraction, Tensor | None], None]


class Flow(Writing):
    """The rules by which a softmax becomes attention."""

    def __init__(
        self,
        names: Names,
        accepted: Accepted,
        rejected: Callable[[Candidate], None],
        wanted: Callable[[Place, bool], bool],
        graph: bool = False,
        rules: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(graph)
        self.rules = rules  # what else is attention: operators between two products
        self.unfinished: dict[object, tuple[Place, str]] = {}  # exponentials without sums yet
        self.unasked: dict[tuple[str, str], tuple[Place, tuple[str, ...]]] = {}  # by path and line
        self.names, self.accepted, self.rejected, self.wanted = names, accepted, rejected, wanted
        self.lost: dict[str, Candidate] = {}  # by path: softmaxes of products that met no values
        self._latest: Candidate | None = None
        self.sliced: Contraction | None = None  # some keys of a softmax; others may meet values yet
        self.scalar_sum: Contraction | None = None  # unless weights are divided by it, or meet more

    def softmax(self, scores: Tensor, dim: int, weights: Tensor) -> None:
        """A softmax was taken: mark it as a candidate; of nothing, it has no axes."""
        if not weights.numel():
            return
        mark = self._candidate(scores, dim, weights)
        if mark is not None:
            tag = Tag()
            tag.mark, tag.factors = mark, self._weight_factors(mark.candidate, scores, weights)
            self.put(weights, tag)

    def log_softmax(self, scores: Tensor, dim: int, logs: Tensor) -> None:
        mark = self._candidate(scores, dim, logs)
        if mark is not None:
            tag = Tag()
            tag.log, tag.factors = mark, self._weight_factors(mark.candidate, scores, logs)
            self.put(logs, tag)

    def _candidate(self, scores: Tensor, dim: int, output: Tensor) -> Mark | None:
        self.flush()
        if output.dim() == 0:
            return None
        place = self.names.place()
        if place is None:
            return None
        dim %= output.dim()
        candidate = Candidate(place, dim, tuple(output.shape))
        tag = self.tag(scores)
        if tag is not None:
            candidate.sides, candidate.widths = tag.sides, tag.widths
            if tag.constant:
                candidate.kind = "constant"
            elif any(origin.kind == "feature" for _, origin in self.dims(scores)[dim]):
                candidate.reason = FROM_PARAMETER
            elif tag.normaliser:
                candidate.reason = JOINS
            elif output.shape[dim] == 1 and tag.sides is None and not tag.widths:
                candidate.reason = ALONE
        if not self.wanted(place, candidate.reason is None):
            return None
        return Mark(candidate)

    def _weight_factors(
        self, candidate: Candidate, scores: Tensor, output: Tensor
    ) -> tuple[Factor, ...]:
        """The axes of the weights, each with an origin of its own: query and key may share one."""
        dims: Dims = [
            tuple((size, Origin(origin.kind, size, origin)) for size, origin in pieces)
            for pieces in self.dims(scores)
        ]
        candidate.keys = tuple(origin for _, origin in dims[candidate.key])
        candidate.origins = tuple(origin for pieces in dims for _, origin in pieces)
        self.let_go()
        if candidate.reason is None:
            candidate.softmax_output = self.box(output if self.graph else detached(output), dims)
            self._latest = candidate
        return laid_out(dims, output)

    def exponential(self, logs: Tensor, output: Tensor) -> None:
        """exp of log-weights is weights; of anything else, what may yet be divided by its sum."""
        before = self.tag(logs)
        tag = self._blend((logs,), output)
        if before is not None and before.log is not None:
            tag.log, tag.mark = None, before.log
        else:
            tag.exp = tag.number
            if output is not logs and tag.sides is not None and tag.scores is None:
                tag.scores = self.box(logs.detach(), self.dims(logs))
        self.put(output, tag)

    def log_sum_exp(self, scores: Tensor, dims: Sequence[int], output: Tensor) -> None:
        if len(dims) == 1 and scores.dim():
            dim = dims[0] % scores.dim()
            tag = self._reduced(scores, [dim], output)
            tag.total = Total(frozenset((self.token(scores),)), tag.widths)
            tag.normaliser = True
            self.put(output, tag)

    def _recognise_softmax(
        self, above: Tensor, below: Tensor, output: Tensor, logs: bool, times: bool = False
    ) -> bool:
        """exp / sum, or scores − log-sum-exp, where one was made from the other."""
        mine, total = self.tag(above), self.tag(below)
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
            dims = [tuple(origin for _, origin in pieces) for pieces in self.dims(above)]
            if keys not in dims:
                return False
            dim = dims.index(keys)
        mark = self._candidate(above, dim, output)
        self._finish(numbers)
        tag = Tag()
        if mark is not None:
            mark.candidate.sides, mark.candidate.segments = mine.sides, segments
            if not exact:
                mark = mark._replace(kind="partial")
            tag.log, tag.mark = (mark, None) if logs else (None, mark)
            tag.factors = self._weight_factors(mark.candidate, above, output)
        self.put(output, tag)
        return True

    def subtract(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        if not self._recognise_softmax(left, right, output, logs=True):
            self.pointwise((left, right), output)
            tag, before = self.tag(output), self.tag(left)
            # by a maximum, most likely; of one key it has the same shape
            shifted = output is not left and (stretched(right, output) or output.shape[-1:] == (1,))
            if shifted and tag is not None and before is not None and before.sides is not None:
                tag.scores = self.box(left.detach(), self.dims(left))

    def divide(self, numerator: Tensor, denominator: Tensor, output: Tensor) -> None:
        below = self.tag(denominator)
        if below is not None and below.weight_sum is not None:
            self._drop_scalar_sum(below.weight_sum.candidate)
        if not (
            self._recognise_softmax(numerator, denominator, output, logs=False)
            or self._recognise_late_softmax(numerator, denominator, output)
            or self._recognise_renormalisation(numerator, denominator, output)
        ):
            self.pointwise((numerator, denominator), output, kind="partial")

    def _recognise_late_softmax(
        self, numerator: Tensor, denominator: Tensor, output: Tensor, times: bool = False
    ) -> bool:
        """Exponentials times values, divided by the sums of the exponentials."""
        mine, below = self.tag(numerator), self.tag(denominator)
        if mine is None or not mine.late or below is None or below.total is None:
            return False
        late = mine.late
        if {each.number for each in late} != below.total.numbers or below.total.inverse != times:
            return False
        self._finish(below.total.numbers)
        self.pointwise((numerator, denominator), output)
        tag = self.tag(output)
        if tag is not None:
            tag.late, tag.total = (), None
        place = self.names.place()
        first: Contraction = late[0].contraction
        if place is None:
            return True
        self.flush()
        candidate = Candidate(place, first.weights.dim() - 1, tuple(first.weights.shape))
        candidate.sides, candidate.widths, candidate.keys = (
            late[0].sides,
            late[0].widths,
            late[0].keys,
        )
        mark = Mark(candidate)
        sums = denominator.reciprocal() if times else denominator
        weights = None if below.total.shifted else late_weights(late, candidate, sums)
        if weights is None:
            self.lose(candidate)
        elif self.wanted(place, True):
            self._settle(mark, replace(first, mark=mark), weights)
        return True

    def _recognise_renormalisation(
        self, numerator: Tensor, denominator: Tensor, output: Tensor
    ) -> bool:
        """A softmax over the queries, made to sum to 1 over the keys (slot attention)."""
        mine, below = self.tag(numerator), self.tag(denominator)
        if mine is None or mine.mark is None or below is None or below.weight_sum is None:
            return False
        candidate, keys = below.weight_sum
        if candidate is not mine.mark.candidate or not keys or keys == candidate.keys:
            return False
        self.pointwise((numerator, denominator), output)
        after = self.tag(output)
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
            tag = self.tag(weights)
            if tag is None or tag.mark is None:
                continue
            theirs = self.tag(factor)
            if theirs is not None and theirs.noise:
                self.dropout(weights, output)
                return
            if self._spread(tag.mark, weights, factor, output):
                return
            self.pointwise((left, right), output, kind="partial")
            self._weigh_scalars(tag.mark, weights, factor, output)
            return
        sides = None
        if not (self.constant(left) or self.constant(right)):
            sides = (self.sources(left), self.sources(right))
            if asks(right, left, output):
                sides = sides[::-1]
        self.pointwise((left, right), output)
        tag = self.tag(output)
        if tag is not None and self.token(left) != self.token(right):
            tag.multiplied = sides
        broadcast = stretched(left, output) or stretched(right, output)
        if tag is not None and broadcast and output is not left:
            tag.powers = self._powers(left, right) or self._powers(right, left)

    def _spread(self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor) -> bool:
        """Weights stretched over a feature axis of the values, to be summed over the keys."""
        over_features = stretched(weights, output) or self._of_each_feature(mark, weights)
        if not over_features and mark.candidate.segments is None:
            return False
        theirs = self.tag(values)
        if theirs is not None and (theirs.of_weights or theirs.mark or theirs.log):
            return False  # an entropy
        tag = Tag()
        tag.spread = self._spread_of(mark, weights, values)
        tag.factors = self._spread_out((weights, values), output)
        if not mark.candidate.keys and mark.candidate.segments is None:  # one key: nothing to sum
            self._settle(mark, Contraction.of_sum(tag.spread, output))
        self.put(output, tag)
        return True

    def _weigh_scalars(self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor) -> None:
        """Values without features, the same for all queries; or a mask of the keys."""
        tag = self.tag(output)
        fits = values.is_floating_point() and not stretched(weights, output)
        fits = fits and output is not weights
        if tag is not None and fits and not self.constant(values):
            spread = self._spread_of(mark, weights, values)
            tag.scalars = spread if "row" in spread.uses.values() else None

    def _powers(self, powers: Tensor, values: Tensor) -> tuple[Tag, Spread] | None:
        """Exponentials times values, that may be summed over keys."""
        tag = self.tag(powers)
        if tag is None or not tag.exp or self.constant(values):
            return None
        return tag, self._spread_of(Mark(Candidate(None, 0, ())), powers, values)

    def _spread_of(self, mark: Mark, weights: Tensor, values: Tensor) -> Spread:
        dims = self.dims(values)
        return Spread(
            mark,
            self._uses(mark, self.dims(weights), dims),
            self.constant(values),
            values.detach(),
            dims,
            self.view(values),
            tuple(weights.shape),
            self.boxed(weights, mark),
        )

    def _of_each_feature(self, mark: Mark, weights: Tensor) -> bool:
        """Whether every feature has weights of its own, that a linear map made (pooling)."""
        if mark.candidate.sides is not None or mark.candidate.kind == "constant":
            return False
        others = [
            origin
            for pieces in self.dims(weights)
            for _, origin in pieces
            if not mark.candidate.has_key(origin)
        ]
        return any(origin.kind == "feature" for origin in others)

    def _uses(self, mark: Mark, weights: Dims, values: Dims) -> Uses:
        """What each axis of the weights is in a product with values, place by place."""
        uses: Uses = {}
        shift = len(values) - len(weights)
        for dim, pieces in enumerate(weights):
            shared = dim + shift >= 0 and bool(values[dim + shift])
            for _, origin in pieces:
                key = mark.candidate.has_key(origin)
                uses[origin] = "key" if key else "shared" if shared else "row"
        return uses

    def summed(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """A sum: of exponentials, of weights times values, or of anything else."""
        tag = self.tag(tensor)
        if tag is None:
            return
        wanted = [dim % tensor.dim() for dim in dims] if tensor.dim() else []
        spread = tag.spread or tag.scalars
        if spread is not None:
            candidate = spread.mark.candidate
            lying = [
                dim
                for dim, pieces in enumerate(self.dims(tensor))
                if any(candidate.has_key(origin) for _, origin in pieces)
            ]
            contraction = Contraction.of_sum(spread, output)
            if tag.spread is None:
                self.scalar_sum = contraction if lying == wanted else None
            elif not candidate.keys or (lying and all(dim in wanted for dim in lying)):
                self._settle(spread.mark, contraction)
        if tag.spread is not None:
            return
        if tag.exp and len(wanted) == 1 and not tag.late:
            total = self._reduced(tensor, wanted, output)
            total.total = Total(frozenset((tag.exp,)), total.widths)
            if tag.powers is not None:
                total.late = self._late_sum(*tag.powers, wanted[0] - tensor.dim(), output)
            self.put(output, total)
        elif tag.constant:
            self.pointwise((tensor,), output)
        else:
            reduced = self._reduced(tensor, wanted, output)
            reduced.sources, reduced.late = tag.sources, tag.late
            reduced.sides = tag.sides or tag.multiplied  # summed over features: scores
            if tag.total is not None:
                reduced.total = tag.total._replace(exact=False)
            reduced.of_weights = tag.of_weights or tag.mark is not None
            if tag.mark is not None:
                reduced.weight_sum = WeightSum(tag.mark.candidate, reduced.widths)
            self.put(output, reduced)

    def _reduced(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> Tag:
        """A reduction over some dimensions: the others stay, what was summed is remembered."""
        tag = Tag()
        if tensor.dim():
            tensor_dims = self.dims(tensor)
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
        before = self.tag(tensor)
        tag = self._reduced(
            tensor, [dim % tensor.dim() for dim in dims] if tensor.dim() else [], output
        )
        tag.widths = ()
        tag.same_as = self.token(tensor)  # a linear map of a mean is one of what was averaged
        if before is not None:
            if before.mark is not None:
                self.lose(before.mark.candidate)
            tag.sources, tag.constant, tag.sides = before.sources, before.constant, before.sides
            tag.normaliser, tag.of_weights = before.normaliser, before.of_weights
        self.put(output, tag)

    def scattered(
        self, dim: int, index: Tensor, source: Tensor, output: Tensor, plain: bool
    ) -> None:
        """Entries added up by an index: exponentials of edges, or their weights times values.

        `plain`: onto zeros, and as they are.
        """
        tag = self.tag(source)
        dim %= max(1, source.dim())
        if tag is not None and tag.exp:
            total = Tag()
            queries = along_dim(index, dim)
            total.total = Total(frozenset((tag.exp,)), (), plain, segments=queries, dim=dim)
            self.put(output, total)
            self._begin(tag, "exponentials were added up over edges, and not followed to values")
            return
        spread = None if tag is None else tag.spread
        segments = None if spread is None else spread.mark.candidate.segments
        edges = None if segments is None else along_dim(index, dim)
        if spread is not None and segments is not None and same_index(segments, edges):
            self._settle(spread.mark, Contraction.of_sum(spread, output))
            nodes = Tag()
            count = output.shape[dim]
            targets = [origin for origin in self.chosen_from(segments) if origin.size == count]
            dims = self.dims(source)
            dims[dim] = ((count, targets[0]),) if targets else axis(count, "data")
            nodes.factors = laid_out(dims, output)
            self.put(output, nodes)
            return
        if spread is not None and segments is not None:
            self.lose(spread.mark.candidate)
        self.written(output, source)

    def absolute_sum(self, tensor: Tensor, dims: Sequence[int], output: Tensor) -> None:
        """The sum of absolute values: of exponentials, the same as their sum."""
        tag = self.tag(tensor)
        if tag is not None and (tag.exp or tag.mark is not None):
            self.summed(tensor, dims, output)
        else:
            self.pointwise((tensor,), output) if self.constant(tensor) else None

    def product(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        """A matrix product (…, m, c) × (…, c, n): attention, a linear map, or scores."""
        mine, theirs = self.tag(left), self.tag(right)
        tag = Tag()
        first = mine is not None and mine.constant
        second = theirs is not None and theirs.constant
        marks = [each.mark for each in (mine, theirs) if each is not None and each.mark is not None]
        same = len(marks) == 2 and marks[0].candidate is marks[1].candidate
        if second:
            tag.entries = entries_of(left, -1)
        elif first:
            tag.entries = entries_of(right, -2)
        tag.of_weights = same or all(map(_is_of_weights, (mine, theirs)))
        if same:
            tag.mark = _power(*marks)
        elif not tag.of_weights:
            if mine is not None and mine.mark is not None:
                tag.mark = self._weighs(mine.mark, left, right, output, swapped=False)
            if theirs is not None and theirs.mark is not None:
                tag.mark = self._weighs(theirs.mark, right, left, output, swapped=True) or tag.mark
        elsewhere = not (first or second) and self.meet_others(left, right)
        if not (first or second):
            powers = [each for each in (mine, theirs) if each is not None and _are_powers(each)]
            if len(powers) == 2:  # one side may be gated by exponentials: the other has scores
                powers = [each for each in powers if each.pairing is not None] or powers
            for each, tensor, values in ((mine, left, right), (theirs, right, left)):
                swapped = tensor is right
                if each is not None and each in powers:
                    tag.late += (self._late(each, tensor, values, output, swapped),)
                elif each is not None and each.pairing is not None and each.mark is None:
                    self._unnormalised(each, tensor, values, output, swapped)
        if first and second:
            tag.constant, tag.sources = True, self._behind(left, mine)
        elif second:
            tag.sources = self._behind(left, mine)
            if mine is not None and mine.moved is not None:
                tag.moved = self._mapped(left, output, -1)
            if mine is not None and mine.sides is not None and output.shape[-1] == 1:
                tag.sides, tag.widths = mine.sides, mine.widths
        elif first:
            tag.sources = self._behind(right, theirs)
            if theirs is not None and theirs.moved is not None:
                tag.moved = self._mapped(right, output, -2)
        else:
            # of other examples: other places, and another input
            right_side = frozenset((tag.number,)) if elsewhere else self.sources(right)
            tag.sides = (self.sources(left), right_side)
            if output.shape[-1] == 1:  # keys times a single query
                tag.sides = tag.sides[::-1]
            if mine is not None and mine.moved is not None and self._of_parameters(right):
                tag.moved = self._mapped(left, output, -1)  # a map chosen for each edge
        if first and second:
            tag.factors, tag.widths = self._product_factors(left, right, output, False, second)
        else:
            tag.factors, contracted = self._product_factors(
                left, right, output, first, second, elsewhere
            )
            if tag.mark is not None and not (first or second or same):
                self._new_keys(tag, output)
            elif not (first or second or same):
                tag.pairing = _pairing(dims_of(output, tag.factors))
            if output.dim() > 2 or not (first or second):  # no plain projection
                tag.widths = contracted
        self.put(output, tag)

    def distances(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        """Between rows of two tensors: axes and inputs are those of a product."""
        self.product(left, right.mT, output)
        tag = self.tag(output)
        if tag is not None:
            tag.pairing = None  # their exponentials may be a transport's, too

    def meet_others(self, left: Tensor, right: Tensor) -> bool:
        """Whether examples of one batch are paired with other examples of it."""
        mine, theirs = self.tag(left), self.tag(right)
        if mine is not None and theirs is not None and mine.sources == theirs.sources:
            maps = sorted(each.entries for each in (mine, theirs) if each.entries is not None)
            if len(maps) == 2 and end_of(maps[0]) <= maps[1][0]:  # of two pieces of one storage
                return True
        dims = [self.sliced_dims(tensor)[:-2] for tensor in (left, right)]
        return any(map(other_places, *dims))

    def _of_parameters(self, tensor: Tensor) -> bool:
        """Whether all axes are those of parameters, as of ones that were chosen by an index."""
        origins = [origin for pieces in self.dims(tensor) for _, origin in pieces]
        return all(origin.ancestor.kind == "parameter" for origin in origins)

    def _product_factors(
        self,
        left: Tensor,
        right: Tensor,
        output: Tensor,
        first: bool,
        second: bool,
        elsewhere: bool = False,
    ) -> tuple[tuple[Factor, ...], tuple[Origin, ...]]:
        """Axes of a matrix product, and those summed over; `first`, `second`: is it a constant?
        `elsewhere`: do rows and columns belong to different examples?"""
        mine, theirs = self.sliced_dims(left), self.sliced_dims(right)
        dims: Dims = []
        for index, size in enumerate(output.shape[:-2]):
            left_pieces, right_pieces = mine[index], theirs[index]
            alone = (first and not right_pieces) or (second and not left_pieces)
            if alone:  # an axis of the parameter
                dims.append(axis(size, "feature"))
            elif first or second:
                sides = (right_pieces, left_pieces) if first else (left_pieces, right_pieces)
                dims.append(_each_of_a_parameter(*sides))
            else:
                dims.append(merged([[left_pieces], [right_pieces]], firm=False)[0])
        rows, columns = output.shape[-2:]
        fixed = first or second
        dims.append(_side(mine[-2], rows, first, fixed))
        if elsewhere:
            dims.append(axis(columns, "data"))
        else:
            dims.append(_side(theirs[-1], columns, second, fixed))
        contracted = tuple(origin for pieces in (mine[-1], theirs[-2]) for _, origin in pieces)
        return laid_out(dims, output), contracted

    def _weighs(
        self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> Mark | None:
        """Weights in a product: with values along the softmax axis, or mixed by a parameter."""
        last = weights.dim() - 1
        contracted = last - 1 if swapped else last
        dims = self.dims(weights)
        theirs = self.tag(values)
        candidate = mark.candidate
        other_weights = theirs is not None and theirs.mark is not None
        if mark.power and (other_weights or not along(candidate, weights, dims, contracted)):
            self._invert(candidate)
        elif along(candidate, weights, dims, contracted):
            if theirs is not None and theirs.of_weights and not theirs.constant:
                return Mark(candidate)  # times the inverse of a kernel: weights yet, of other keys
            self._settle(mark, self._contraction(mark, weights, values, output, swapped))
        elif self.constant(values):  # heads mixed by a parameter ("talking heads") are weights yet
            return Mark(candidate, kind="signed")
        else:
            self.lose(candidate)
        return None

    def _contraction(
        self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> Contraction:
        last = weights.dim() - 1
        contracted, rows = (last - 1, last) if swapped else (last, last - 1)
        dims = _told_apart(self.dims(weights))
        uses: Uses = {
            origin: "key" if dim == contracted else "row" if dim == rows else "shared"
            for dim, pieces in enumerate(dims)
            for _, origin in pieces
        }
        return Contraction(
            weights,
            dims,
            uses,
            values,
            self.dims(values),
            self.view(values),
            output,
            mark,
            swapped=swapped,
        )

    def _unnormalised(
        self, tag: Tag, scores: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> None:
        """Scores that met values with no softmax between: attention where somebody asked for it."""
        assert tag.pairing is not None
        contracted = {origin for _, origin in self.dims(scores)[-2 if swapped else -1]}
        rows, columns, steps = tag.pairing
        if not contracted or contracted not in (set(rows), set(columns)):
            return
        place = self.names.place()
        if place is None:
            return
        if not self.rules & {"any", *(steps or ("none",))}:
            if steps:
                self.unasked.setdefault((place.path, place.source), (place, steps))
            return
        candidate = Candidate(place, scores.dim() - 1, tuple(scores.shape))
        candidate.kind, candidate.sides, candidate.widths = "signed", tag.sides, tag.widths
        candidate.keys = tuple(contracted)
        mark = Mark(candidate)
        if self.wanted(place, True):
            self._settle(mark, self._contraction(mark, scores, values, output, swapped))

    def _begin(self, powers: Tag, text: str) -> None:
        """Exponentials on their way to be attention: said, if the last step never comes."""
        place = self.names.place()
        if place is not None:
            self.unfinished.setdefault(powers.exp, (place, text))

    def unfollowed(self, text: str) -> None:
        """Something like attention ran that no rule follows: said at the end."""
        place = self.names.place()
        if place is not None:
            self.unfinished.setdefault((place.path, place.source), (place, text))

    def _finish(self, powers: Iterable[int]) -> None:
        for number in powers:
            self.unfinished.pop(number, None)

    def _late(
        self, tag: Tag, powers: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> Late:
        contraction = self._contraction(
            Mark(Candidate(None, 0, ())), powers.detach(), values.detach(), output, swapped
        )
        keys = tuple(origin for origin, use in contraction.uses.items() if use == "key")
        if tag.pairing is not None:
            self._begin(
                tag, "exponentials of a product met values, and were not divided by their sum"
            )
        box = self.box(contraction.weights, contraction.dims)
        return Late(tag.exp, keys, contraction, box, tag.scores, tag.sides, tag.widths)

    def _late_sum(self, tag: Tag, spread: Spread, dim: int, output: Tensor) -> tuple[Late, ...]:
        """The same, place by place and summed along a dimension, counted from the last."""
        dims = spread.box.dims
        keys = tuple(origin for _, origin in dims[dim]) if -dim <= len(dims) else ()
        if not keys or any(origin.kind == "feature" for origin in keys):
            return ()
        spread.mark.candidate.keys = keys
        uses = self._uses(spread.mark, dims, spread.value_dims)
        contraction = Contraction.of_sum(spread._replace(uses=uses), output)
        return (Late(tag.exp, keys, contraction, spread.box, tag.scores, tag.sides, tag.widths),)

    def _invert(self, candidate: Candidate) -> None:
        if not candidate.done:
            candidate.done, candidate.reason, candidate.softmax_output = True, INVERTED, None
            self.rejected(candidate)

    def _new_keys(self, tag: Tag, output: Tensor) -> None:
        """Weights times the inverse of a kernel: the keys are the columns of the product."""
        assert tag.mark is not None and tag.factors is not None
        candidate = tag.mark.candidate
        tag.mark, candidate.softmax_output = tag.mark._replace(kind="signed"), None
        candidate.keys = tuple(origin for _, origin in dims_of(output, tag.factors)[-1])

    def let_go(self) -> None:
        """No longer hold what the last softmax made: slices of it meet values at once or never."""
        if self._latest is not None:
            self._latest.softmax_output, self._latest = None, None

    def flush(self) -> None:
        """What has met values with some of its keys alone is attention to those."""
        contraction, self.sliced = self.sliced, None
        if contraction is not None:
            self._accept(contraction, None)
        contraction, self.scalar_sum = self.scalar_sum, None
        if contraction is not None and not contraction.mark.candidate.done:
            contraction.mark.candidate.done = True
            self._accept(contraction, None)

    def _drop_scalar_sum(self, candidate: Candidate) -> None:
        if self.scalar_sum is not None and self.scalar_sum.mark.candidate is candidate:
            self.scalar_sum = None

    def _settle(self, mark: Mark, contraction: Contraction, weights: Tensor | None = None) -> None:
        candidate = mark.candidate
        if self.sliced is not None and self.sliced.mark.candidate is candidate:
            joint = self.sliced.joined(contraction)
            if joint is not None:
                self.sliced = None
                self._accept(joint, None)
            return
        self._drop_scalar_sum(candidate)
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
        if self.lost.get(candidate.place.path) is candidate:
            del self.lost[candidate.place.path]
        constant = contraction.constant
        if constant is None:
            constant = self.constant(contraction.values)
            if constant and candidate.sides and candidate.sides[0] & candidate.sides[1]:
                # learned queries that attend to each other, their places told by the input
                constant = not self.tag(contraction.values).sources  # type: ignore[union-attr]
        if candidate.kind == "constant":
            candidate.kind = "distribution"
            if not constant:  # a learned mix of layers, or of positions whatever is there
                candidate.reason = PARAMETER_SCORES
        elif candidate.reason is None and constant:
            candidate.reason = PARAMETER_VALUES
        elif candidate.reason == FROM_PARAMETER and not constant and contraction.same_parameter():
            candidate.reason = None  # learned tokens that have gathered the input before
        if candidate.reason is not None:
            self.rejected(candidate)
        else:
            self.accepted(candidate, contraction, weights)

    def lose(self, candidate: Candidate) -> None:
        """A softmax of products of two inputs, as attention has, went where it is not followed."""
        if candidate.sides is not None and candidate.reason is None and not candidate.done:
            self.lost[candidate.place.path] = candidate


def _pairing(dims: Dims) -> Pairing | None:
    """Rows and columns of a product, where both are places and not features."""
    rows, columns = (tuple(origin for _, origin in pieces) for pieces in dims[-2:])
    both = (*rows, *columns)
    return Pairing(rows, columns) if rows and columns and all(map(_of_places, both)) else None


def _of_places(origin: Origin) -> bool:
    ancestor = origin.ancestor
    last = (
        ancestor.dim is not None and ancestor.dim[1] >= 3 and ancestor.dim[0] + 1 == ancestor.dim[1]
    )
    return ancestor.kind in ("data", "gathered") and not last


def _are_powers(tag: Tag) -> bool:
    """Whether exponentials may be divided by their sum yet; not those of 1 / (1 + exp(−s))."""
    sigmoid = tag.pairing is not None and tag.pairing.steps[-1:] == ("reciprocal",)
    return bool(tag.exp) and not sigmoid


def _is_of_weights(tag: Tag | None) -> bool:
    """Whether something may be on its way to become the inverse of a softmax."""
    if tag is None:
        return False
    return tag.constant or (tag.of_weights and (tag.mark is None or tag.mark.power))


def _power(left: Mark, right: Mark) -> Mark:
    """Weights times themselves: two steps of attention, a penalty, or a kernel to be inverted."""
    kind = left.kind if left.kind == right.kind else "signed"
    return Mark(left.candidate, kind=kind, power=True)


def along(candidate: Candidate, weights: Tensor, dims: Dims, contracted: int) -> bool:
    """Whether a product sums along the softmax axis."""
    if not candidate.keys:
        return weights.shape[contracted] == 1
    pieces = dims[contracted]
    return bool(pieces) and all(candidate.has_key(origin) for _, origin in pieces)


def late_weights(late: Sequence[Late], candidate: Candidate, sums: Tensor) -> Tensor | None:
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


def _told_apart(dims: Dims) -> Dims:
    """Parts of one axis in several dimensions get origins of their own."""
    seen: set[Origin] = set()
    result: Dims = []
    for pieces in dims:
        apart = []
        for size, origin in pieces:
            if origin in seen:
                origin = Origin(origin.kind, size, origin)
            seen.add(origin)
            apart.append((size, origin))
        result.append(tuple(apart))
    return result


def _each_of_a_parameter(
    pieces: tuple[Piece, ...], constant: tuple[Piece, ...]
) -> tuple[Piece, ...]:
    """An axis along which an input was repeated, for each of several maps: features of theirs."""
    if [size for size, _ in pieces] != [size for size, _ in constant]:
        return pieces
    return tuple(
        axis(size, "feature")[0]
        if mine.kind == "expanded" and theirs.kind == "parameter"
        else (size, mine)
        for (size, mine), (_, theirs) in zip(pieces, constant)
    )


def _side(pieces: tuple[Piece, ...], size: int, constant: bool, fixed: bool) -> tuple[Piece, ...]:
    """Rows or columns of a product: of a constant they are features; in a product of two inputs
    each is an axis of its own, and features are places, as channels that attend to channels."""
    if constant:
        apart = tuple((count, Origin("feature", count, origin)) for count, origin in pieces)
        return apart or axis(size, "feature")
    if fixed:
        return pieces
    return tuple(
        (count, Origin("data" if origin.kind == "feature" else origin.kind, count, origin))
        for count, origin in pieces
    )
