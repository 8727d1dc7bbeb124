"""The axis alphabet and the shape aliases that signatures use.

| axis    | meaning                                            |
|---------|----------------------------------------------------|
| batch   | independent examples                               |
| head    | parallel attentions; always present in weights     |
| group   | key/value heads; divides the number of heads       |
| query   | positions that look                                |
| key     | positions that are looked at                       |
| width   | features a position; `value_width` those of values |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad

Queries = Float[Tensor, "batch head query width"]
Keys = Float[Tensor, "batch group key width"]
Values = Float[Tensor, "batch group key value_width"]
Mixed = Float[Tensor, "batch head query value_width"]
Weights = Float[Tensor, "batch head query key"]
Scores = Float[Tensor, "batch head query key"]
LogSumExp = Float[Tensor, "batch head query"]
Allowed = Bool[Tensor, "batch head query key"]
Features = Float[Tensor, "batch position width"]

Kind = Literal["distribution", "partial", "signed", "gate"]

_compiling = torch.compiler.is_compiling
_peek_transforms = torch._C._functorch.peek_interpreter_stack

#: Log-weight of a forbidden pair: its exponential is 0, and its product with 0 is 0, not NaN.
NEVER = -1e30


class Shape(NamedTuple):
    """The four sizes of an attention."""

    batch: int
    heads: int
    queries: int
    keys: int


class Block(NamedTuple):
    """A rectangle of the query-by-key plane, and the size of the whole plane.

    Queries are aligned with the *last* keys (bottom right), as with a key/value cache:
    query `i` stands at key position `i + offset`. Ends are plain numbers: a compiler would make a
    constant of a symbolic size inside a slice.
    """

    top: int
    bottom: int
    left: int
    right: int
    queries: int
    keys: int

    @classmethod
    def of(cls, rows: slice, columns: slice, queries: int, keys: int) -> Block:
        """The block of these rows and columns."""
        return cls(rows.start, rows.stop, columns.start, columns.stop, queries, keys)

    def over(self, columns: slice) -> Block:
        """The same rows over other columns."""
        return self._replace(left=columns.start, right=columns.stop)

    @property
    def rows(self) -> slice:
        return slice(self.top, self.bottom)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.right)

    @property
    def offset(self) -> int:
        return self.keys - self.queries

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def breadth(self) -> int:
        return self.right - self.left


def whole(queries: int, keys: int) -> Block:
    """The block that covers the whole plane."""
    return Block(0, queries, 0, keys, queries, keys)


def pieces(length: int, size: int, start: int = 0) -> Iterator[slice]:
    """Consecutive slices of at most `size` that cover `start` to `length`."""
    for begin in range(start, length, size):
        yield slice(begin, min(begin + size, length))


def is_eager(*tensors: Tensor) -> bool:
    """Whether these are plain tensors outside compilers, exports and transforms of torch.func.

    Only then may a tensor be kept from one call to the next, or written in place behind the back of
    whoever traces the call.
    """
    if _compiling() or in_transform():
        return False
    for tensor in tensors:  # a generator would cost more than the rest
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return False
    return True


def in_transform() -> bool:
    """Whether a transform of torch.func, or forward-mode differentiation, is under way."""
    return _peek_transforms() is not None or forward_ad._current_level >= 0


def brief(value: Any) -> str:
    """A dataclass in one line, tensors by shape and dtype."""
    from dataclasses import fields

    def shown(held: Any) -> str:
        if isinstance(held, Tensor):
            return f"{tuple(held.shape)} {str(held.dtype).removeprefix('torch.')}"
        if isinstance(held, tuple):
            return f"[{', '.join(map(shown, held))}]"
        return str(held)

    held = {field.name: getattr(value, field.name) for field in fields(value)}
    parts = [f"{name}={shown(part)}" for name, part in held.items() if part is not None]
    return f"{type(value).__name__}({', '.join(parts)})"


def register_pytree(
    cls: type[Any],
    static: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
) -> None:
    """Make a dataclass a pytree, so that `torch.compile` and `torch.export` take it.

    Fields named in `static` are part of the structure (compared, not traced); so is whether a field
    named in `optional` is there, which is no leaf where it is None. Fields named in `left_out` are
    not part of it, and have their defaults when the value is put together again.
    """
    from dataclasses import fields

    from torch.utils import _pytree

    dynamic = [field.name for field in fields(cls) if field.name not in (*static, *left_out)]

    def held(context: Any) -> list[str]:
        missing = {name for name, there in zip(optional, context[len(static) :]) if not there}
        return [name for name in dynamic if name not in missing]

    def flatten(value: Any) -> tuple[list[Any], Any]:
        there = tuple(getattr(value, name) is not None for name in optional)
        context = (*(getattr(value, name) for name in static), *there)
        return [getattr(value, name) for name in held(context)], context

    def unflatten(children: Any, context: Any) -> Any:
        return cls(**dict(zip(held(context), children)), **dict(zip(static, context)))

    def flatten_with_keys(value: Any) -> tuple[list[Any], Any]:
        children, context = flatten(value)
        keys = map(_pytree.GetAttrKey, held(context))
        return list(zip(keys, children)), context

    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
        to_dumpable_context=list,
        from_dumpable_context=tuple,
    )
