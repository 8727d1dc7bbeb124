"""Matrix products: attention, a linear map, or scores, by what is known of the two factors."""

from __future__ import annotations

from torch import Tensor

from regard.tracing.dataflow.axes import (
    Dims,
    Factor,
    Origin,
    Piece,
    axis,
    dims_of,
    laid_out,
    merged,
    other_positions,
)
from regard.tracing.dataflow.axis_roles import Contraction
from regard.tracing.dataflow.candidates import Candidates
from regard.tracing.dataflow.moves import Moves, end_of, entries_of
from regard.tracing.dataflow.tags import Candidate, LateSoftmax, Mark, Pairing, Tag, TagStore, Uses


class Products:
    """Matrix products, and what is read like one."""

    def __init__(
        self, tags: TagStore, moves: Moves, candidates: Candidates, rules: frozenset[str]
    ) -> None:
        self.tags, self.moves, self.candidates = tags, moves, candidates
        self.rules = rules  # operators between two products that make attention without a softmax

    def product(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        """A matrix product (…, m, c) × (…, c, n): attention, a linear map, or scores."""
        left_tag, right_tag = self.tags.tag(left), self.tags.tag(right)
        tag = Tag()
        first = left_tag is not None and left_tag.constant
        second = right_tag is not None and right_tag.constant
        marks = [
            each.mark
            for each in (left_tag, right_tag)
            if each is not None and each.mark is not None
        ]
        same = len(marks) == 2 and marks[0].candidate is marks[1].candidate
        if second:
            tag.entries = entries_of(left, -1)
        elif first:
            tag.entries = entries_of(right, -2)
        tag.of_weights = same or all(map(_is_of_weights, (left_tag, right_tag)))
        if same:
            tag.mark = _power(*marks)
        elif not tag.of_weights:
            if left_tag is not None and left_tag.mark is not None:
                tag.mark = self._weighs(left_tag.mark, left, right, output, swapped=False)
            if right_tag is not None and right_tag.mark is not None:
                tag.mark = (
                    self._weighs(right_tag.mark, right, left, output, swapped=True) or tag.mark
                )
        elsewhere = not (first or second) and self.meet_others(left, right)
        if not (first or second):
            powers = [
                each for each in (left_tag, right_tag) if each is not None and _are_powers(each)
            ]
            if len(powers) == 2:  # one side may be gated by exponentials; the other has scores
                powers = [each for each in powers if each.pairing is not None] or powers
            for each, tensor, values in ((left_tag, left, right), (right_tag, right, left)):
                swapped = tensor is right
                if each is not None and each in powers:
                    tag.late += (self._late(each, tensor, values, output, swapped),)
                elif each is not None and each.pairing is not None and each.mark is None:
                    self._unnormalised(each, tensor, values, output, swapped)
        if first and second:
            tag.constant, tag.sources = True, self.moves.behind(left, left_tag)
        elif second:
            tag.sources = self.moves.behind(left, left_tag)
            if left_tag is not None and left_tag.moved is not None:
                tag.moved = self.moves.mapped(left, output, -1)
            if left_tag is not None and left_tag.sides is not None and output.shape[-1] == 1:
                tag.sides, tag.widths = left_tag.sides, left_tag.widths
        elif first:
            tag.sources = self.moves.behind(right, right_tag)
            if right_tag is not None and right_tag.moved is not None:
                tag.moved = self.moves.mapped(right, output, -2)
        else:
            # of other examples: another input
            right_side = frozenset((tag.number,)) if elsewhere else self.tags.sources(right)
            tag.sides = (self.tags.sources(left), right_side)
            if output.shape[-1] == 1:  # keys times a single query
                tag.sides = tag.sides[::-1]
            if left_tag is not None and left_tag.moved is not None and self._of_parameters(right):
                tag.moved = self.moves.mapped(left, output, -1)  # a map chosen for each edge
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
        self.tags.put(output, tag)

    def distances(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        """Distances between rows of two tensors, with the axes and inputs of a product."""
        self.product(left, right.mT, output)
        tag = self.tags.tag(output)
        if tag is not None:
            tag.pairing = None  # their exponentials may belong to optimal transport

    def meet_others(self, left: Tensor, right: Tensor) -> bool:
        """Whether examples of one batch are paired with other examples of it."""
        left_tag, right_tag = self.tags.tag(left), self.tags.tag(right)
        if left_tag is not None and right_tag is not None and left_tag.sources == right_tag.sources:
            tags = (left_tag, right_tag)
            maps = sorted(tag.entries for tag in tags if tag.entries is not None)
            if len(maps) == 2 and end_of(maps[0]) <= maps[1][0]:  # of two pieces of one storage
                return True
        dims = [self.tags.sliced_dims(tensor)[:-2] for tensor in (left, right)]
        return any(map(other_positions, *dims))

    def _of_parameters(self, tensor: Tensor) -> bool:
        """Whether all axes come from parameters, as after an index into a parameter."""
        origins = [origin for pieces in self.tags.dims(tensor) for _, origin in pieces]
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
        """Axes of a matrix product, and those summed over. `first`, `second`: that factor is
        constant; `elsewhere`: rows and columns belong to different examples."""
        left_dims, right_dims = self.tags.sliced_dims(left), self.tags.sliced_dims(right)
        dims: Dims = []
        for index, size in enumerate(output.shape[:-2]):
            left_pieces, right_pieces = left_dims[index], right_dims[index]
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
        dims.append(_side(left_dims[-2], rows, first, fixed))
        if elsewhere:
            dims.append(axis(columns, "data"))
        else:
            dims.append(_side(right_dims[-1], columns, second, fixed))
        contracted = tuple(
            origin for pieces in (left_dims[-1], right_dims[-2]) for _, origin in pieces
        )
        return laid_out(dims, output), contracted

    def _weighs(
        self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> Mark | None:
        """Weights in a product: with values along the softmax axis, or mixed by a parameter."""
        last = weights.dim() - 1
        contracted = last - 1 if swapped else last
        dims = self.tags.dims(weights)
        value_tag = self.tags.tag(values)
        candidate = mark.candidate
        other_weights = value_tag is not None and value_tag.mark is not None
        if mark.power and (other_weights or not along(candidate, weights, dims, contracted)):
            self.candidates.invert(candidate)
        elif along(candidate, weights, dims, contracted):
            if value_tag is not None and value_tag.of_weights and not value_tag.constant:
                return Mark(candidate)  # times the inverse of a kernel: weights of other keys
            self.candidates.settle(mark, self._contraction(mark, weights, values, output, swapped))
        elif self.tags.constant(
            values
        ):  # heads mixed by a parameter ("talking heads") are weights yet
            return Mark(candidate, kind="signed")
        else:
            self.candidates.lose(candidate)
        return None

    def _contraction(
        self, mark: Mark, weights: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> Contraction:
        last = weights.dim() - 1
        contracted, rows = (last - 1, last) if swapped else (last, last - 1)
        dims = _told_apart(self.tags.dims(weights))
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
            self.tags.dims(values),
            self.tags.view(values),
            output,
            mark,
            swapped=swapped,
        )

    def _unnormalised(
        self, tag: Tag, scores: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> None:
        """Scores that met values without a softmax: attention if `rules` ask for it."""
        assert tag.pairing is not None
        contracted = {origin for _, origin in self.tags.dims(scores)[-2 if swapped else -1]}
        rows, columns, steps = tag.pairing
        if not contracted or contracted not in (set(rows), set(columns)):
            return
        call_site = self.candidates.observer.call_site()
        if call_site is None:
            return
        if not self.rules & {"any", *(steps or ("none",))}:
            if steps:
                self.candidates.unasked.setdefault(
                    (call_site.path, call_site.source), (call_site, steps)
                )
            return
        candidate = Candidate(call_site, scores.dim() - 1, tuple(scores.shape))
        candidate.kind, candidate.sides, candidate.widths = "signed", tag.sides, tag.widths
        candidate.keys = tuple(contracted)
        mark = Mark(candidate)
        if self.candidates.observer.wants(call_site, True):
            self.candidates.settle(mark, self._contraction(mark, scores, values, output, swapped))

    def _late(
        self, tag: Tag, powers: Tensor, values: Tensor, output: Tensor, swapped: bool
    ) -> LateSoftmax:
        contraction = self._contraction(
            Mark(Candidate(None, 0, ())), powers.detach(), values.detach(), output, swapped
        )
        keys = tuple(origin for origin, use in contraction.uses.items() if use == "key")
        if tag.pairing is not None:
            self.candidates.begin(
                tag, "exponentials of a product met values, and were not divided by their sum"
            )
        box = self.tags.box(contraction.weights, contraction.dims)
        return LateSoftmax(tag.exp, keys, contraction, box, tag.scores, tag.sides, tag.widths)

    def _new_keys(self, tag: Tag, output: Tensor) -> None:
        """Weights times the inverse of a kernel: the keys are the columns of the product."""
        assert tag.mark is not None and tag.factors is not None
        candidate = tag.mark.candidate
        tag.mark, candidate.softmax_output = tag.mark._replace(kind="signed"), None
        candidate.keys = tuple(origin for _, origin in dims_of(output, tag.factors)[-1])


def _pairing(dims: Dims) -> Pairing | None:
    """Rows and columns of a product, if both are positions and not features."""
    rows, columns = (tuple(origin for _, origin in pieces) for pieces in dims[-2:])
    both = (*rows, *columns)
    return Pairing(rows, columns) if rows and columns and all(map(_is_positional, both)) else None


def _is_positional(origin: Origin) -> bool:
    ancestor = origin.ancestor
    last = (
        ancestor.dim is not None and ancestor.dim[1] >= 3 and ancestor.dim[0] + 1 == ancestor.dim[1]
    )
    return ancestor.kind in ("data", "gathered") and not last


def _are_powers(tag: Tag) -> bool:
    """Whether exponentials may still be divided by their sum; not those of 1 / (1 + exp(−s))."""
    sigmoid = tag.pairing is not None and tag.pairing.steps[-1:] == ("reciprocal",)
    return bool(tag.exp) and not sigmoid


def _is_of_weights(tag: Tag | None) -> bool:
    """Whether this may become the inverse of a softmax."""
    if tag is None:
        return False
    return tag.constant or (tag.of_weights and (tag.mark is None or tag.mark.power))


def _power(left: Mark, right: Mark) -> Mark:
    """Weights times themselves: two steps of attention, a penalty, or a kernel to invert."""
    kind = left.kind if left.kind == right.kind else "signed"
    return Mark(left.candidate, kind=kind, power=True)


def along(candidate: Candidate, weights: Tensor, dims: Dims, contracted: int) -> bool:
    """Whether a product sums along the softmax axis."""
    if not candidate.keys:
        return weights.shape[contracted] == 1
    pieces = dims[contracted]
    return bool(pieces) and all(candidate.has_key(origin) for _, origin in pieces)


def _told_apart(dims: Dims) -> Dims:
    """Give parts of one axis that lie in several dimensions an origin each."""
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
    """An axis along which an input was repeated for several maps: features of theirs."""
    if [size for size, _ in pieces] != [size for size, _ in constant]:
        return pieces
    return tuple(
        axis(size, "feature")[0]
        if mine.kind == "expanded" and theirs.kind == "parameter"
        else (size, mine)
        for (size, mine), (_, theirs) in zip(pieces, constant)
    )


def _side(pieces: tuple[Piece, ...], size: int, constant: bool, fixed: bool) -> tuple[Piece, ...]:
    """Rows or columns of a product. Those of a constant are features; in a product of two inputs
    features become positions, as for channels that attend to channels."""
    if constant:
        apart = tuple((count, Origin("feature", count, origin)) for count, origin in pieces)
        return apart or axis(size, "feature")
    if fixed:
        return pieces
    return tuple(
        (count, Origin("data" if origin.kind == "feature" else origin.kind, count, origin))
        for count, origin in pieces
    )
