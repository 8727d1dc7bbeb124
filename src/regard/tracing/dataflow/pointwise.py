"""Tags through elementwise operators: arithmetic, masks, dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.tracing.dataflow.axes import Factor, axis, laid_out, merged
from regard.tracing.dataflow.entry_maps import Again, Movement, expanded
from regard.tracing.dataflow.tags import (
    NOBODY,
    Mark,
    NegatedMask,
    Tag,
    TagStore,
    covers,
    joined,
    joined_late,
    joined_totals,
    stretched,
)
from regard.types import Kind

_LINEAR = {
    "add", "sub", "rsub", "mul", "div", "neg", "masked_fill", "where", "clone", "_to_copy", "copy",
    "contiguous", "tril", "triu", "nan_to_num", "native_dropout",
}  # fmt: skip
_COPIES = {"clone", "_to_copy", "copy", "contiguous", "clamp", "clamp_min", "add", "reciprocal"}
_LINEAR_OF_SUMS = _LINEAR | _COPIES


class Pointwise:
    """Elementwise operators: the result has, entry by entry, what its inputs have there."""

    def __init__(self, tags: TagStore) -> None:
        self.tags = tags
        self.operator = ""  # the operator that is being followed

    def apply(
        self,
        inputs: Sequence[Tensor],
        output: Tensor,
        *,
        shifted: bool = False,
        kind: Kind = "signed",
    ) -> None:
        """Any elementwise operator; `kind` is what weights become."""
        tag = self.blend(inputs, output)
        if tag.mark is not None and tag.mark.kind != "signed":
            tag.mark = tag.mark._replace(kind=kind)
        if shifted and tag.total is not None:  # weights divided by it sum to less than 1
            tag.total = tag.total._replace(exact=False, shifted=True)
        self.tags.put(output, tag)

    def add(self, left: Tensor, right: Tensor, output: Tensor) -> None:
        """A sum; of two linear maps, broadcast, the inside of additive attention."""
        tag = self.blend((left, right), output)
        if tag.mark is not None:
            tag.mark = tag.mark._replace(kind="signed")
        if left.shape != output.shape or right.shape != output.shape:
            tags = self.tags.tag(left), self.tags.tag(right)
            sides = [NOBODY if each is None else each.sources for each in tags]
            if all(sides):
                left_side, right_side = sides
                swapped = asks(right, left, output)
                tag.sides = (right_side, left_side) if swapped else (left_side, right_side)
        self.tags.put(output, tag)

    def dropout(self, weights: Tensor, output: Tensor) -> None:
        """The output is followed, the input is recorded."""
        tag = self.tags.tag(weights)
        if tag is None or tag.mark is None:
            self.apply((weights,), output)
            return
        after = Tag()
        after.mark = tag.mark._replace(before=self.tags.weights_box(weights, tag.mark))
        after.factors = self.factors((weights,), output)
        self.tags.put(output, after)

    def dropout_copy(self, weights: Tensor, copy: Tensor) -> None:
        """Dropout is about to happen in place; `copy` has the weights before it."""
        tag = self.tags.tag(weights)
        assert tag is not None and tag.mark is not None
        if tag.mark.before is None:
            box = self.tags.box(copy, self.tags.dims(weights))
            after = Tag()
            after.mark, after.factors = tag.mark._replace(before=box), tag.factors
            self.tags.put(weights, after)

    def noise(self, output: Tensor) -> None:
        """Random numbers: weights multiplied by them are weights after dropout."""
        tag = Tag()
        tag.noise = True
        self.tags.put(output, tag)

    def fixed(self, output: Tensor, *, zero: bool = False) -> None:
        """A new constant; or one written into part of a tensor, which keeps its tag."""
        before = self.tags.tag(output)
        if before is not None and not covers(output):
            if before.mark is not None:
                before.mark = before.mark._replace(kind="partial")
            return
        tag = Tag()
        tag.constant, tag.zero = True, zero
        self.tags.put(output, tag)

    def opposite(self, mask: Tensor, output: Tensor) -> None:
        """The negation of a boolean mask."""
        self.tags.ensured(output).negated_mask = NegatedMask(
            mask.detach(), tuple(output.shape), output.stride()
        )

    def filled(self, tensor: Tensor, mask: Tensor, value: Any, output: Tensor) -> None:
        """`masked_fill`; zeros filled with -inf by a negated mask are that mask."""
        negated, zeros = self.tags.tag(mask), self.tags.tag(tensor)
        negated_mask = None if negated is None else negated.negated_mask
        allowed = None if negated_mask is None else negated_mask.allowed_by(mask)
        empty = zeros is not None and zeros.zero and value == -math.inf
        if empty and allowed is not None and allowed.shape == output.shape:
            tag = Tag()
            tag.negated_mask = NegatedMask(allowed, tuple(output.shape), output.stride())
            self.tags.put(output, tag)
            return
        self.apply((tensor,), output, kind="partial")

    def blend(self, inputs: Sequence[Tensor], output: Tensor) -> Tag:
        """The tag of a result, from those of its inputs."""
        tagged_inputs = [(tensor, self.tags.tag(tensor)) for tensor in inputs]
        blended = Tag()
        constant, sources = True, NOBODY
        for tensor, tag in tagged_inputs:
            if tag is None:  # unknown: a source of its own
                constant = False
                sources = joined(sources, frozenset((self.tags.token(tensor),)))
            else:
                constant = constant and tag.constant
                sources = joined(sources, tag.sources)
        blended.sources = sources
        blended.noise = any(tag is not None and tag.noise for _, tag in tagged_inputs) and all(
            tag is not None and (tag.noise or tag.constant) for _, tag in tagged_inputs
        )
        if constant:
            blended.constant = True
            blended.widths = next(
                (tag.widths for _, tag in tagged_inputs if tag and tag.widths), ()
            )
            if any(tag is not None and tag.factors is not None for _, tag in tagged_inputs):
                blended.factors = self.factors(inputs, output)
            return blended
        operator = self.operator.removesuffix("_")
        for tensor, tag in tagged_inputs:
            if tag is None:
                continue
            if tag.sides is not None and blended.sides is None:
                blended.sides = tag.sides
            if tag.widths and not blended.widths:
                blended.widths = tag.widths
            if tag.multiplied is not None and operator in _LINEAR:
                blended.multiplied = tag.multiplied
            if tag.pairing is not None and blended.pairing is None:
                blended.pairing = tag.pairing
                steps = tag.pairing.steps
                if operator not in _LINEAR and operator not in steps:
                    blended.pairing = tag.pairing._replace(steps=(*steps, operator))
            if tag.exp:
                blended.exp = blended.number
            if tag.total is not None and operator in _LINEAR_OF_SUMS:
                blended.total = joined_totals(
                    blended.total, tag.total, len(tagged_inputs) == 1 and operator in _COPIES
                )
                if operator == "reciprocal":
                    blended.total = blended.total._replace(inverse=not tag.total.inverse)
            if operator in _LINEAR_OF_SUMS:
                blended.late = joined_late(blended.late, tag.late)
            if tag.entries is not None and blended.entries is None:
                blended.entries = tag.entries
            blended.normaliser = blended.normaliser or tag.normaliser
            if tag.scores is not None:
                blended.scores = tag.scores
            if tag.mark is not None and not _only_adds(tag.mark, blended.mark):
                blended.mark = _joined_marks(blended.mark, _carried(tag.mark, tensor, output))
            if tag.log is not None:
                blended.log = _carried(tag.log, tensor, output)
        blended.factors = self.factors(inputs, output)
        blended.of_weights = all(
            tag is not None and (tag.constant or tag.of_weights or tag.mark is not None)
            for _, tag in tagged_inputs
        )
        for tensor, tag in tagged_inputs:
            if tag is not None and tag.moved is not None and not tag.constant:
                blended.moved = self.movement(tensor, output, expanded(output.shape))
                break
        if blended.late or blended.total is not None:
            blended.exp = 0
        if len(tagged_inputs) == 1 and tagged_inputs[0][1] is not None and operator in _COPIES:
            blended.weight_sum = tagged_inputs[0][1].weight_sum
        return blended

    def movement(self, source: Tensor, output: Tensor, again: Again) -> Movement | None:
        """How an operator moved the entries of a tensor; `again` repeats it on numbers."""
        if self.tags.tag(source) is None or output.layout != torch.strided:
            return None
        return Movement.into(output, [self.tags.view(source)], again)

    def factors(self, inputs: Sequence[Tensor], output: Tensor) -> tuple[Factor, ...] | None:
        """The factors of an elementwise result."""
        if output.layout != torch.strided:
            return None
        tags = [(tensor, self.tags.tag(tensor)) for tensor in inputs if tensor.dim()]
        moving = [pair for pair in tags if pair[1] is None or not pair[1].constant] or tags
        if not moving:
            return None
        if len(moving) == 1:
            tensor, tag = moving[0]
            whole = tag is not None and tag.factors is not None and covers(tensor)
            if tag is not None and whole and _alike(tensor, output):
                return tag.factors
        # weights before scores, scores before the rest: theirs are the axes that count
        moving.sort(key=lambda pair: -_rank(pair[1]))
        firm = _rank(moving[0][1]) > 0
        dims = merged([self.tags.sliced_dims(tensor) for tensor, _ in moving], firm)
        if len(dims) > output.dim():
            return None
        dims = [()] * (output.dim() - len(dims)) + dims
        for index, pieces in enumerate(dims):
            if not pieces and output.shape[index] > 1:  # stretched by a constant
                dims[index] = self._constant_dim(tags, index - output.dim(), output.shape[index])
        return laid_out(dims, output)

    def _constant_dim(self, tags: Sequence[Any], index: int, size: int) -> Any:
        for tensor, _ in tags:
            if tensor.dim() >= -index and tensor.shape[index] == size:
                pieces = self.tags.dims(tensor)[index]
                if pieces:
                    return pieces
        return axis(size, "expanded")


def _alike(source: Tensor, output: Tensor) -> bool:
    same = source.shape == output.shape and source.stride() == output.stride()
    return same and source.element_size() == output.element_size()


def _rank(tag: Tag | None) -> int:
    if tag is None:
        return 0
    of_input = tag.mark is not None and tag.mark.candidate.kind != "constant"
    return 2 if of_input or tag.log is not None else int(tag.sides is not None or bool(tag.mark))


def _only_adds(mark: Mark, to: Mark | None) -> bool:
    """Whether a softmax of parameters, as of positions, is blended with one of an input: the
    result has the weights of the latter."""
    constant = mark.candidate.kind == "constant"
    return constant and to is not None and to.candidate.kind != "constant"


def _joined_marks(mark: Mark | None, other: Mark) -> Mark:
    """The mark of two softmaxes in one tensor, such as their difference: the first's axes."""
    if mark is None or mark.candidate is other.candidate or mark.candidate.kind == "constant":
        return other
    return mark._replace(others=(*mark.others, other.candidate, *other.others))


def _carried(mark: Mark, source: Tensor, output: Tensor) -> Mark:
    """The mark of an elementwise result of weights."""
    return mark._replace(before=None) if stretched(source, output) else mark


def asks(query: Tensor, key: Tensor, output: Tensor) -> bool:
    """Whether one of two broadcast tensors is a single query, and the other has all positions."""
    return stretched(query, output) and not stretched(key, output)
