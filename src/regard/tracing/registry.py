"""Recipes for custom operators, registered by their users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from regard.errors import DtypeError, RegardError, ShapeError
from regard.kernel.attend import checked_bias
from regard.masks import resolve
from regard.recipe import (
    Additive,
    Dot,
    Edges,
    Given,
    Mixture,
    Normaliser,
    Projected,
    Recipe,
    Recurrent,
    Softmaxed,
)

Reads = Callable[[tuple[Any, ...], dict[str, Any], Any], Recipe | None]
_registered: dict[str, Reads] = {}
version = 0  #: how often that changed
_ON_HEADS = "(batch, head, position, width)"


def register_recipe(operator: Any, reads: Reads | None) -> None:
    """Tell capture how to read a custom attention operator.

    Args:
        operator: an operator, its packet, or its name as "namespace::name".
        reads: a function of (args, kwargs, output) that returns the `Recipe` of a call, or None for
            a call that does not attend. Pass None to remove a registration. A recipe whose parts do
            not fit (a key of another batch, a mask of three axes) becomes a note of the trace.

    >>> import torch, regard
    >>> from regard.recipe import Dot
    >>> regard.register_recipe("mine::attend", lambda args, kwargs, out: Dot(args[0], args[1]))
    >>> regard.register_recipe("mine::attend", None)
    """
    global version
    version += 1
    name = _name(operator)
    if reads is None:
        _registered.pop(name, None)
    elif not callable(reads):
        raise RegardError(f"register_recipe: {reads!r}, expected a function (args, kwargs, output)")
    else:
        _registered[name] = reads


def registered(name: str) -> Reads | None:
    """The reader of an operator, by "namespace::name"."""
    return _registered.get(name)


def _name(operator: Any) -> str:
    if isinstance(operator, torch._ops.OpOverload):
        return operator._schema.name
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return operator._qualified_op_name
    if isinstance(operator, CustomOpDef):
        return operator._qualname
    if isinstance(operator, str) and operator.count("::") == 1:
        return operator.split(".")[0]
    raise RegardError(
        f"register_recipe: {operator!r}, expected an operator or its name as 'namespace::name'"
    )


def checked(answer: Any) -> Recipe:
    """The recipe that a reader returned, its boolean mask wrapped; raises if parts do not fit."""
    if not isinstance(answer, Recipe):
        raise DtypeError(f"gave {type(answer).__name__}, expected a Recipe or None")
    recipe: Recipe = answer
    _check_sides(recipe)
    shape = recipe.shape
    if recipe.value is not None:
        _check_key(recipe.value, "value", shape.batch, shape.heads)
        if recipe.value.shape[2] != shape.keys:
            raise ShapeError(
                f"value: axis key has size {recipe.value.shape[2]}, expected {shape.keys}"
            )
    if isinstance(recipe, Dot | Additive) and recipe.bias is not None:
        checked_bias(recipe.bias, shape)
    if isinstance(recipe, Dot) and recipe.sink is not None:
        (size,) = _sizes(recipe.sink, "sink", 1, "(head,)")
        if size != shape.heads:
            raise ShapeError(f"sink has size {size}, expected {shape.heads}, the heads")
    if isinstance(recipe, Softmaxed) and not isinstance(recipe.normalises, Normaliser):
        raise DtypeError(
            f"normaliser is {type(recipe.normaliser).__name__}, expected one, as Sparsemax()"
        )
    if isinstance(recipe, Dot | Additive | Projected):
        resolved: Recipe = replace(recipe, mask=resolve(recipe.mask, False, shape))
        return resolved
    if isinstance(recipe, Recurrent):
        recurrent: Recurrent = replace(recipe, mask=resolve(recipe.mask, False, shape))  # type: ignore[type-var]
        recurrent.check()
        return recurrent
    return recipe


def _check_sides(recipe: Recipe) -> None:
    """Check queries and keys, or their equivalent."""
    if isinstance(recipe, Given):
        _sizes(recipe.matrix, "matrix", 4, "(batch, head, query, key)")
    elif isinstance(recipe, Edges | Mixture | Recurrent):
        recipe.check()
    elif isinstance(recipe, Projected):
        _sizes(recipe.input, "input", 3, "(batch, position, width)")
    elif isinstance(recipe, Softmaxed):
        batch, heads, _, width = _sizes(recipe.query, "query", 4, _ON_HEADS)
        _check_key(recipe.key, "key", batch, heads)
        if recipe.key.shape[3] != width:
            raise ShapeError(f"key: axis width has size {recipe.key.shape[3]}, expected {width}")


def _check_key(tensor: Any, name: str, batch: int, heads: int) -> None:
    """Check keys or values, with as many heads or groups of them."""
    sizes = _sizes(tensor, name, 4, _ON_HEADS)
    if sizes[0] != batch:
        raise ShapeError(f"{name}: axis batch has size {sizes[0]}, expected {batch}")
    if not sizes[1] or heads % sizes[1]:
        raise ShapeError(f"{name}: axis head has size {sizes[1]}, expected a divisor of {heads}")


def _sizes(tensor: Any, name: str, axes: int, expected: str) -> torch.Size:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise DtypeError(f"{name} is {got}, expected a tensor of floating point numbers")
    if tensor.dim() != axes:
        raise ShapeError(
            f"{name} has {tensor.dim()} axes {tuple(tensor.shape)}, expected {axes}: {expected}"
        )
    return tensor.shape
