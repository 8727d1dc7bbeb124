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

from regard.tracing.moves import Moves
from regard.tracing.names import Names, Place
from regard.tracing.roles import Contraction
from regard.tracing.tags import (
    Axis,
    Candidate,
    Mark,
    Spread,
    Tag,
    carried,
    covering,
    new_axes,
    split_over,
    within,
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
            tag.mark = mark
            self.put(weights, tag)

    def log_softmax(self, scores: Tensor, dim: int, logs: Tensor) -> None:
        mark = self._candidate(scores, dim, logs)
        if mark is not None:
            tag = Tag()
            tag.log = mark
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
            candidate.sides = tag.sides
            if tag.constant:
                candidate.kind = "constant"
            elif within((scores.shape[dim], scores.stride(dim)), tag.features):
                candidate.reason = FROM_PARAMETER
        if not self.wanted(place, candidate.reason is None):
            return None
        return Mark(candidate, _axes(made))

    def exponential(self, logs: Tensor, made: Tensor) -> None:
        """exp of log-weights is weights; of anything else, what may yet be divided by its sum."""
        before = self.tag(logs)
        tag = self._blend((logs,), made)
        if before is not None and before.log is not None:
            axes = carried(before.log.axes, logs, made)
            if axes is not None:
                tag.log, tag.mark = None, before.log._replace(axes=axes)
        else:
            tag.exp = tag.number
        self.put(made, tag)

    def log_sum_exp(self, scores: Tensor, dims: Sequence[int], made: Tensor) -> None:
        if len(dims) == 1:
            dim = dims[0] % scores.dim()
            tag = Tag()
            tag.total = (self.token(scores), (scores.shape[dim], scores.stride(dim)), True)
            self.put(made, tag)

    def _normalised(self, above: Tensor, below: Tensor, made: Tensor, logs: bool) -> bool:
        """exp / sum, or scores − log-sum-exp, where one was made from the other."""
        mine, total = self.tag(above), self.tag(below)
        if mine is None or total is None or total.total is None:
            return False
        number, axis, exact = total.total
        if number != (mine.number if logs else mine.exp) or number == 0:
            return False
        dim = covering(axis, above)
        if axis[0] == 1:
            dim = above.dim() - 1
        if dim is None:
            return False
        mark = self._candidate(above, dim, made)
        tag = Tag()
        if mark is not None:
            mark.candidate.sides = mine.sides
            if not exact:
                mark.candidate.kind = "partial"
            tag.log, tag.mark = (mark, None) if logs else (None, mark)
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
        if not new_axes(weights, made):
            return False
        axes = carried(mark.axes, weights, made)
        if axes is None:
            return False
        shift = made.dim() - values.dim()
        over = []
        for index, axis in enumerate(axes):
            dim = covering(axis, made)
            if dim is not None and (
                dim < shift or values.shape[dim - shift] == 1 or values.stride(dim - shift) == 0
            ):
                over.append(index)
        box = self.boxed(weights, mark)
        tag = Tag()
        tag.spread = Spread(mark, axes, tuple(over), self.constant(values), values.detach(), box)
        if axes[mark.candidate.key][0] == 1:  # one key: nothing is left to sum
            self._settle(mark, Contraction.of_sum(tag.spread, made, made))
        self.put(made, tag)
        return True

    def summed(self, given: Tensor, dims: Sequence[int], made: Tensor) -> None:
        """A sum: of exponentials, of weights times values, or of anything else."""
        tag = self.tag(given)
        if tag is None:
            return
        wanted = [dim % given.dim() for dim in dims] if given.dim() else []
        if tag.spread is not None:
            key = tag.spread.axes[tag.spread.mark.candidate.key]
            single = covering(key, given)
            cut = split_over(key, given) or ([] if single is None else [single])
            if key[0] == 1 or (cut and all(dim in wanted for dim in cut)):
                self._settle(tag.spread.mark, Contraction.of_sum(tag.spread, given, made))
            return
        if tag.exp and len(wanted) == 1:
            total = Tag()
            axis = (given.shape[wanted[0]], given.stride(wanted[0]))
            total.total = (tag.exp, axis, True)
            self.put(made, total)
        elif tag.constant:
            self.pointwise((given,), made)

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
            tag.features = ((made.shape[-1], made.stride(-1)),)
            if mine is not None:
                tag.features += _rows_carried(mine.features, one, made)
                if mine.sides is not None and made.shape[-1] == 1:
                    tag.sides = mine.sides
        elif first:
            tag.sources = self._behind(other, theirs)
            tag.features = ((made.shape[-2], made.stride(-2)),)
        else:
            tag.sides = (self.sources(one), self.sources(other))
        self.put(made, tag)

    def _weighs(
        self, mark: Mark, weights: Tensor, values: Tensor, made: Tensor, swapped: bool
    ) -> Mark | None:
        """Weights in a product: with values along the softmax axis, or mixed by a parameter."""
        last = weights.dim() - 1
        contracted, rows = (last - 1, last) if swapped else (last, last - 1)
        if along(mark, weights, contracted):
            self._settle(mark, Contraction(weights, rows, values, made, mark, swapped=swapped))
        elif self.constant(values):
            return self._mixed(mark, weights, contracted, rows, made)
        else:
            self.lose(mark.candidate)
        return None

    def _mixed(
        self, mark: Mark, weights: Tensor, contracted: int, rows: int, made: Tensor
    ) -> Mark | None:
        """Weights whose heads a parameter mixes ("talking heads") are weights still."""
        axes = []
        swapped = contracted < rows
        to_rows, to_columns = (made.dim() - 1, made.dim() - 2) if swapped else (-2, -1)
        for axis in mark.axes:
            dim = covering(axis, weights)
            if dim is None:
                axes.append((1, 0))
            elif dim == contracted:
                if axis != (weights.shape[dim], weights.stride(dim)):
                    return None
                axes.append((made.shape[to_columns], made.stride(to_columns)))
            else:
                target = to_rows if dim == rows else dim
                axes.append((axis[0], made.stride(target) * (axis[1] // weights.stride(dim))))
        mark.candidate.kind = "signed"
        return Mark(mark.candidate, tuple(axes))

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


def along(mark: Mark, weights: Tensor, contracted: int) -> bool:
    """Whether a product sums along the softmax axis."""
    size, stride = mark.axes[mark.candidate.key]
    if size == 1:
        return weights.shape[contracted] == 1
    return weights.stride(contracted) == stride and weights.shape[contracted] > 1


def _axes(tensor: Tensor) -> tuple[Axis, ...]:
    return tuple(zip(tensor.shape, tensor.stride()))


def _rows_carried(features: tuple[Axis, ...], given: Tensor, made: Tensor) -> tuple[Axis, ...]:
    """Axes among the rows of a product's first factor, in its result."""
    found = []
    for axis in features:
        dim = covering(axis, given)
        if dim is not None and dim < given.dim() - 1:
            found.append((axis[0], made.stride(dim) * (axis[1] // given.stride(dim))))
    return tuple(found)
