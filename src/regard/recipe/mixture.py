"""The recipe of linear mixes of attentions: differential attention, talking heads, shaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import DtypeError, ShapeError
from regard.masks import Mask, both, clean
from regard.masks.parts import Pairs
from regard.recipe.base import Recipe, heads_of
from regard.recipe.softmaxed import Softmaxed
from regard.softmax import product
from regard.types import Kind, Mixed, Shape, Values, Weights, register_pytree

Coefficients = Float[Tensor, "head *_"]  # (head,) or (head, part head)


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(Recipe):
    """A sum of attentions over the same queries and keys, with a coefficient for each head.

    weights[h] = Σₚ Σ_g coefficients[p][h, g] · weights of parts[p][g]

    Coefficients are (head, part head), or (head,) where head h takes head h of the part alone. In
    the second form the output needs no matrix: it is the same sum of the parts' own outputs.

    `mask` and `value` are common to all parts, which hold no values. A part may have a mask of its
    own besides. One without a mask field (`Given`, `Edges`) is taken as it is.

    `Mixture.of` checks what it is given; the constructor does not.
    """

    parts: tuple[Recipe, ...]
    coefficients: tuple[Coefficients, ...]
    value: Values | None = None
    mask: Mask | None = None

    @classmethod
    def of(
        cls,
        parts: Sequence[Recipe],
        coefficients: Sequence[Tensor],
        *,
        value: Values | None = None,
        mask: Mask | None = None,
    ) -> Mixture:
        """The mix of these attentions, checked.

        Args:
            parts: recipes over the same queries and keys, without values.
            coefficients: for each part (head,), or (head, part head).
            value: (batch, head or group, key, width), common to all.
            mask: common to all; one for all heads where coefficients are (head, part head).

        >>> import torch
        >>> from regard.recipe import Dot, Mixture
        >>> q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
        >>> difference = Mixture.of([Dot(q, k), Dot(k, q)], [torch.ones(2), -0.5 * torch.ones(2)])
        >>> difference.weights().sum(-1)[0, 0, 0]
        tensor(0.5000)
        """
        mixture = cls(tuple(parts), tuple(coefficients), value, mask)
        mixture.check()
        return mixture

    def check(self) -> None:
        """Raise where parts, coefficients, values and mask do not fit each other."""
        if not self.parts or len(self.parts) != len(self.coefficients):
            raise ShapeError(
                f"Mixture: {len(self.parts)} parts and {len(self.coefficients)} coefficients, "
                "expected one for each part, and at least one part"
            )
        shape = self.shape
        for index, (part, numbers) in enumerate(zip(self.parts, self.coefficients)):
            if not isinstance(numbers, Tensor) or not numbers.is_floating_point():
                got = numbers.dtype if isinstance(numbers, Tensor) else type(numbers).__name__
                raise DtypeError(f"Mixture: coefficients[{index}] is {got}, expected floats")
            heads = part.shape.heads
            wanted = [(shape.heads, heads)] + [(shape.heads,)] * (heads == shape.heads)
            if tuple(numbers.shape) not in wanted:
                raise ShapeError(
                    f"Mixture: coefficients[{index}] is {tuple(numbers.shape)}, expected "
                    f"{' or '.join(map(str, wanted))}"
                )
            if part.shape._replace(heads=shape.heads) != shape:
                raise ShapeError(
                    f"Mixture: parts[{index}] is {tuple(part.shape)}, expected batch, queries and "
                    f"keys {shape.batch}, {shape.queries}, {shape.keys} as the first"
                )
            if part.value is not None:
                raise ShapeError(
                    f"Mixture: parts[{index}] holds values, expected none: the mixture holds them"
                )
        if self.value is not None:
            batch, groups, keys = self.value.shape[:3]
            if (batch, keys) != (shape.batch, shape.keys) or not groups or shape.heads % groups:
                raise ShapeError(
                    f"Mixture: value is {tuple(self.value.shape)}, expected ({shape.batch}, "
                    f"{shape.heads} or a divisor, {shape.keys}, width)"
                )
        if self.mask is not None:
            self.mask.check(shape)
            if not self.by_head and _differs_by_head(self.mask):
                raise ShapeError(
                    "Mixture: the mask differs from head to head, and heads are mixed: give one "
                    "for all, as allowed.any(1, keepdim=True)"
                )

    @property
    def by_head(self) -> bool:
        """Whether heads stay apart: every coefficient is (head,)."""
        return all(numbers.dim() == 1 for numbers in self.coefficients)

    @property
    def shape(self) -> Shape:
        return self.parts[0].shape._replace(heads=self.coefficients[0].shape[0])

    @property
    def kind(self) -> Kind:
        return "signed"

    @property
    def dtype(self) -> torch.dtype:
        dtype = self.parts[0].dtype
        for part in self.parts[1:]:
            dtype = torch.promote_types(dtype, part.dtype)
        return dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        return self.mix_parts([part.weights(rows, columns) for part in self._masked()])

    def mixed(self) -> Mixed:
        """Weights times values: the mixed outputs of the parts where heads stay apart."""
        if not self.by_head:
            return super().mixed()
        outputs = [part.mixed() for part in self.with_values()]
        return self.mix_parts(outputs).to(outputs[0].dtype)

    def mix_parts(self, tensors: Sequence[Tensor]) -> Tensor:
        """Σₚ Mₚ tensorₚ, each (batch, part head, query, …), in the dtype of the weights."""
        total: Tensor | None = None
        for tensor, numbers in zip(tensors, self.coefficients):
            tensor, numbers = tensor.to(self.dtype), numbers.to(self.dtype)
            if numbers.dim() == 1:
                mixed = tensor * numbers[:, None, None]
            else:  # (head, part head) · (batch, part head, query · …)
                mixed = product(numbers, tensor.flatten(2))
                mixed = mixed.view(tensor.shape[0], self.shape.heads, *tensor.shape[2:])
            total = mixed if total is None else total + mixed
        assert total is not None
        return total

    def with_values(self) -> list[Recipe]:
        """The parts with the common mask and values, each an attention by itself."""
        value = self._values()
        return [replace(part, value=value) for part in self._masked()]  # type: ignore[type-var]

    def plain(self) -> Mixture:
        """The same mix, its parts in the form that gives tiles fastest."""
        return self.each(
            lambda part: part.with_lse() if isinstance(part, Softmaxed) else part.plain()
        )

    def of_heads(self, which: Sequence[int]) -> Mixture:
        if self.by_head:
            parts = tuple(part.of_heads(which) for part in self.parts)
        else:
            parts = self.parts
        return Mixture(
            parts,
            tuple(numbers[list(which)] for numbers in self._together()),
            heads_of(self.value, which, self.shape.heads),
            None if self.mask is None else self.mask.of_heads(which),
        )

    def at(self, batch: int, head: int) -> Mixture:
        parts: list[Recipe] = []
        coefficients: list[Tensor] = []
        for part, numbers in zip(self.parts, self.coefficients):
            apart = numbers.dim() == 1
            heads = [head] if apart else range(part.shape.heads)
            row = numbers[head : head + 1] if apart else numbers[head]
            parts += [part.at(batch, other) for other in heads]
            coefficients += row.split(1)
        value = self.value
        if value is not None:
            group = head // (self.shape.heads // value.shape[1])
            value = value[batch : batch + 1, group : group + 1]
        mask = None if self.mask is None else self.mask.at(batch, head)
        return Mixture(tuple(parts), tuple(coefficients), value, mask)

    def _together(self) -> tuple[Tensor, ...]:
        """Coefficients of one form: all (head,), or all (head, part head)."""
        if self.by_head:
            return self.coefficients
        return tuple(n if n.dim() == 2 else n.diag() for n in self.coefficients)

    def _masked(self) -> list[Recipe]:
        """The parts with the common mask."""
        return [_with_mask(part, self.mask) for part in self.parts]

    def each(self, change: Callable[[Recipe], Recipe]) -> Mixture:
        """The same mix with a change to each part, made while it has the common mask."""
        changed = []
        for part, masked in zip(self.parts, self._masked()):
            after = change(masked)
            own = hasattr(after, "mask") and masked is not part
            changed.append(replace(after, mask=getattr(part, "mask", None)) if own else after)  # type: ignore[type-var]
        return replace(self, parts=tuple(changed))

    def _values(self) -> Values:
        alive = None if self.mask is None else self.mask.alive(*self.shape[2:], self.device)
        return clean(super()._values(), alive)


def _with_mask(part: Recipe, mask: Mask | None) -> Recipe:
    if mask is None or not hasattr(part, "mask"):
        return part
    return replace(part, mask=both(part.mask, mask))  # type: ignore[type-var]


def _differs_by_head(mask: Mask) -> bool:
    """Whether a mask, or one that it is made of, has an entry for each head."""
    if isinstance(mask, Pairs):
        return mask.allowed.shape[1] > 1
    held = (getattr(mask, field.name) for field in fields(mask))  # type: ignore[arg-type]
    return any(_differs_by_head(inner) for inner in held if isinstance(inner, Mask))


register_pytree(Mixture)
