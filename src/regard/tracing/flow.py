"""Which softmax is attention, and of what: followed through the operators of a run.

A softmax is a *candidate*. Its result is followed through dropout, casts, copies, masks and
products, and it is attention when it meets values, that are not parameters, in a product along
the softmax axis. A softmax over an axis that comes from a parameter (classes, experts, codes) is
not; neither is one whose values come from parameters alone, unless its scores do too (learned
queries that attend to each other before they have seen the input).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from regard.tracing.axes import Dims, Factor, Origin, OriginKind, Piece, axis, laid_out, merged
from regard.tracing.moves import Moves
from regard.tracing.names import Names, Place
from regard.tracing.roles import Contraction
from regard.tracing.tags import (
    Candidate,
    Mark,
    Spread,
    Tag,
    Total,
    Uses,
    stretched,
)

FROM_PARAMETER = "the softmax axis comes from a parameter, as in a classifier, router or codebook"
PARAMETER_SCORES = "the scores are parameters: they do not look at what they weigh"
PARAMETER_VALUES = "the values are parameters or constants"

Found = Callable[[Candidate, Contraction], None]


class Flow(Moves):
    """The rules by which a softmax becomes attention."""

    def __init__(
        self,
        names: Names,
        found: Found,
        rejected: Callable[[Candidate], None],
        wanted: Callable[[Place, bool], bool],
        graph: bool = False,
    ) -> None:
        super().__init__(graph)
        self.names, self.found, self.rejected, self.wanted = names, found, rejected, wanted
        self.lost: dict[str, Candidate] = {}  # by path: softmaxes of products that met no values

    def softmax(self, scores: Tensor, dim: int, weights: Tensor) -> None:
        """A softmax was taken: mark it as a candidate."""
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

    def _candidate(self, scores: Tensor, dim: int, made: Tensor) -> Mark | None:
        if made.dim() == 0:
            return None
        place = self.names.place()
        if place is None:
            return None
        dim %= made.dim()
        candidate = Candidate(place, dim, tuple(made.shape))
        tag = self.tag(scores)
        if tag is not None:
            candidate.sides, candidate.widths = tag.sides, tag.widths
            if tag.constant:
                candidate.kind = "constant"
            elif any(origin.kind == "feature" for _, origin in self.dims(scores)[dim]):
                candidate.reason = FROM_PARAMETER
        if not self.wanted(place, candidate.reason is None):
            return None
        return Mark(candidate)

    def _weight_factors(
        self, candidate: Candidate, scores: Tensor, made: Tensor
    ) -> tuple[Factor, ...]:
        """The axes of the weights, each with an origin of its own: query and key may share one."""
        dims: Dims = [
            tuple((size, Origin(origin.kind, size, origin)) for size, origin in pieces)
            for pieces in self.dims(scores)
        ]
        candidate.keys = tuple(origin for _, origin in dims[candidate.key])
        return laid_out(dims, made)

    def exponential(self, logs: Tensor, made: Tensor) -> None:
        """exp of log-weights is weights; of anything else, what may yet be divided by its sum."""
        before = self.tag(logs)
        tag = self._blend((logs,), made)
        if before is not None and before.log is not None:
            tag.log, tag.mark = None, before.log
        else:
            tag.exp = tag.number
        self.put(made, tag)

    def log_sum_exp(self, scores: Tensor, dims: Sequence[int], made: Tensor) -> None:
        if len(dims) == 1:
            dim = dims[0] % scores.dim()
            tag = self._reduced(scores, [dim], made)
            tag.total = Total(self.token(scores), tag.widths)
            self.put(made, tag)

    def _normalised(self, above: Tensor, below: Tensor, made: Tensor, logs: bool) -> bool:
        """exp / sum, or scores − log-sum-exp, where one was made from the other."""
        mine, total = self.tag(above), self.tag(below)
        if mine is None or total is None or total.total is None:
            return False
        number, keys, exact = total.total
        if number != (mine.number if logs else mine.exp) or number == 0:
            return False
        dim = above.dim() - 1
        if keys:
            dims = [tuple(origin for _, origin in pieces) for pieces in self.dims(above)]
            if keys not in dims:
                return False
            dim = dims.index(keys)
        mark = self._candidate(above, dim, made)
        tag = Tag()
        if mark is not None:
            mark.candidate.sides = mine.sides
            if not exact:
                mark.candidate.kind = "partial"
            tag.log, tag.mark = (mark, None) if logs else (None, mark)
            tag.factors = self._weight_factors(mark.candidate, above, made)
        self.put(made, tag)
        return True

    def subtract(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        if not self._normalised(one, other, made, logs=True):
            self.pointwise((one, other), made)

    def divide(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        if not self._normalised(one, other, made, logs=False):
            self.pointwise((one, other), made, kind="partial")

    def multiply(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """Dropout, a mask, weights times values that wait for their sum, or a plain product."""
        if self._normalised(one, other, made, logs=False):
            return
        if self._normalised(other, one, made, logs=False):
            return
        for weights, factor in ((one, other), (other, one)):
            tag = self.tag(weights)
            if tag is None or tag.mark is None:
                continue
            theirs = self.tag(factor)
            if theirs is not None and theirs.noise:
                self.dropout(weights, made)
                return
            if self._spread(tag.mark, weights, factor, made):
                return
            self.pointwise((one, other), made, kind="partial")
            return
        self.pointwise((one, other), made)

    def _spread(self, mark: Mark, weights: Tensor, values: Tensor, made: Tensor) -> bool:
        """Weights stretched over a feature axis of the values, to be summed over the keys."""
        if not stretched(weights, made):
            return False
        box = self.boxed(weights, mark)
        tag = Tag()
        dims = self.dims(values)
        tag.spread = Spread(
            mark,
            self._uses(mark, weights, dims, made),
            self.constant(values),
            values.detach(),
            dims,
            self.view(values),
            box,
        )
        tag.factors = self._spread_out((weights, values), made)
        if not mark.candidate.keys:  # one key: nothing is left to sum
            self._settle(mark, Contraction.of_sum(tag.spread, made, made))
        self.put(made, tag)
        return True

    def _uses(self, mark: Mark, weights: Tensor, values: Dims, made: Tensor) -> Uses:
        """What each axis of the weights is in a product with values, place by place."""
        uses: Uses = {}
        shift = len(values) - weights.dim()
        for dim, pieces in enumerate(self.dims(weights)):
            shared = dim + shift >= 0 and bool(values[dim + shift])
            for _, origin in pieces:
                key = origin in mark.candidate.keys
                uses[origin] = "key" if key else "shared" if shared else "row"
        return uses

    def summed(self, given: Tensor, dims: Sequence[int], made: Tensor) -> None:
        """A sum: of exponentials, of weights times values, or of anything else."""
        tag = self.tag(given)
        if tag is None:
            return
        wanted = [dim % given.dim() for dim in dims] if given.dim() else []
        if tag.spread is not None:
            keys = tag.spread.mark.candidate.keys
            lying = [
                dim
                for dim, pieces in enumerate(self.dims(given))
                if any(origin in keys for _, origin in pieces)
            ]
            if not keys or (lying and all(dim in wanted for dim in lying)):
                self._settle(tag.spread.mark, Contraction.of_sum(tag.spread, given, made))
            return
        if tag.exp and len(wanted) == 1:
            total = self._reduced(given, wanted, made)
            total.total = Total(tag.exp, total.widths)
            self.put(made, total)
        elif tag.constant:
            self.pointwise((given,), made)
        else:
            reduced = self._reduced(given, wanted, made)
            reduced.sources, reduced.sides = tag.sources, tag.sides
            self.put(made, reduced)

    def _reduced(self, given: Tensor, dims: Sequence[int], made: Tensor) -> Tag:
        """A reduction over some dimensions: the others stay, what was summed is remembered."""
        tag = Tag()
        if given.dim():
            known = self.dims(given)
            gone = [known[dim] for dim in dims]
            kept = made.dim() == given.dim()
            rest = [() if kept and dim in dims else pieces for dim, pieces in enumerate(known)]
            if not kept:
                rest = [pieces for dim, pieces in enumerate(rest) if dim not in dims]
            if len(rest) == made.dim():
                tag.factors = laid_out(rest, made)
            tag.widths = tuple(origin for pieces in gone for _, origin in pieces)
        return tag

    def reduced(self, given: Tensor, dims: Sequence[int], made: Tensor) -> None:
        """A mean, a maximum, and other operators that make dimensions go."""
        before = self.tag(given)
        tag = self._reduced(given, [dim % given.dim() for dim in dims] if given.dim() else [], made)
        tag.widths = ()
        if before is not None:
            if before.mark is not None:
                self.lose(before.mark.candidate)
            tag.sources, tag.constant = before.sources, before.constant
        self.put(made, tag)

    def absolute_sum(self, given: Tensor, dims: Sequence[int], made: Tensor) -> None:
        """The sum of absolute values: of exponentials, the same as their sum."""
        tag = self.tag(given)
        if tag is not None and tag.exp:
            self.summed(given, dims, made)
        else:
            self.pointwise((given,), made) if self.constant(given) else None

    def product(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """A matrix product (…, m, c) × (…, c, n): attention, a linear map, or scores."""
        mine, theirs = self.tag(one), self.tag(other)
        tag = Tag()
        first = mine is not None and mine.constant
        second = theirs is not None and theirs.constant
        if mine is not None and mine.mark is not None:
            tag.mark = self._weighs(mine.mark, one, other, made, swapped=False)
        if theirs is not None and theirs.mark is not None:
            tag.mark = self._weighs(theirs.mark, other, one, made, swapped=True) or tag.mark
        if first and second:
            tag.constant, tag.sources = True, self._behind(one, mine)
        elif second:
            tag.sources = self._behind(one, mine)
            if mine is not None and mine.moved is not None:
                tag.moved = self._mapped(one, made, -1)
            if mine is not None and mine.sides is not None and made.shape[-1] == 1:
                tag.sides, tag.widths = mine.sides, mine.widths
        elif first:
            tag.sources = self._behind(other, theirs)
            if theirs is not None and theirs.moved is not None:
                tag.moved = self._mapped(other, made, -2)
        else:
            tag.sides = (self.sources(one), self.sources(other))
        if not (first and second):
            tag.factors, contracted = self._product_factors(one, other, made, first, second)
            if not (first or second):
                tag.widths = contracted
        self.put(made, tag)

    def _product_factors(
        self, one: Tensor, other: Tensor, made: Tensor, first: bool, second: bool
    ) -> tuple[tuple[Factor, ...], tuple[Origin, ...]]:
        """Axes of a matrix product, and those summed over; `first`, `second`: is it a constant?"""
        mine, theirs = self.dims(one), self.dims(other)
        dims: Dims = []
        for index, size in enumerate(made.shape[:-2]):
            left, right = mine[index], theirs[index]
            if (first and not right) or (second and not left):  # an axis of the parameter alone
                dims.append(axis(size, "feature"))
            elif first or second:
                dims.append(right if first else left)
            else:
                dims.append(merged([[left], [right]], firm=False)[0])
        rows, columns = made.shape[-2:]
        fixed = first or second
        dims.append(_side(mine[-2], rows, "feature" if first else None, fixed))
        dims.append(_side(theirs[-1], columns, "feature" if second else None, fixed))
        contracted = tuple(origin for pieces in (mine[-1], theirs[-2]) for _, origin in pieces)
        return laid_out(dims, made), contracted

    def _weighs(
        self, mark: Mark, weights: Tensor, values: Tensor, made: Tensor, swapped: bool
    ) -> Mark | None:
        """Weights in a product: with values along the softmax axis, or mixed by a parameter."""
        last = weights.dim() - 1
        contracted, rows = (last - 1, last) if swapped else (last, last - 1)
        dims = self.dims(weights)
        if along(mark.candidate, weights, dims, contracted):
            uses: Uses = {
                origin: "key" if dim == contracted else "row" if dim == rows else "shared"
                for dim, pieces in enumerate(dims)
                for _, origin in pieces
            }
            contraction = Contraction(
                weights,
                dims,
                uses,
                values,
                self.dims(values),
                self.view(values),
                made,
                mark,
                swapped=swapped,
            )
            self._settle(mark, contraction)
        elif self.constant(values):  # heads mixed by a parameter ("talking heads") are weights yet
            mark.candidate.kind = "signed"
            return Mark(mark.candidate)
        else:
            self.lose(mark.candidate)
        return None

    def _settle(self, mark: Mark, contraction: Contraction) -> None:
        candidate = mark.candidate
        if candidate.done:
            return
        candidate.done = True
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
        if candidate.reason is not None:
            self.rejected(candidate)
        else:
            self.found(candidate, contraction)

    def lose(self, candidate: Candidate) -> None:
        """A softmax of products of two inputs, as attention has, went where it is not followed."""
        if candidate.sides is not None and candidate.reason is None and not candidate.done:
            self.lost[candidate.place.path] = candidate


def along(candidate: Candidate, weights: Tensor, dims: Dims, contracted: int) -> bool:
    """Whether a product sums along the softmax axis."""
    if not candidate.keys:
        return weights.shape[contracted] == 1
    pieces = dims[contracted]
    return bool(pieces) and all(origin in candidate.keys for _, origin in pieces)


def _side(
    pieces: tuple[Piece, ...], size: int, kind: OriginKind | None, fixed: bool
) -> tuple[Piece, ...]:
    """Rows or columns of a product: of a constant they are features; in a product of two inputs
    each is an axis of its own, and features are places, as channels that attend to channels."""
    if kind is not None:
        return axis(size, kind)
    if fixed:
        return pieces
    return tuple(
        (count, Origin("data" if origin.kind == "feature" else origin.kind, count, origin))
        for count, origin in pieces
    )
