"""Recipes for operators that regard cannot know: somebody's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from regard.errors import RegardError
from regard.recipe import Recipe

Reads = Callable[[tuple[Any, ...], dict[str, Any], Any], Recipe | None]
_registered: dict[str, Reads] = {}
version = 0  #: how often that changed


def register_recipe(operator: Any, reads: Reads | None) -> None:
    """Tell capture how to read an operator of your own.

    Args:
        operator: an operator, its packet, or its name as "namespace::name".
        reads: a function of (args, kwargs, output) that gives the call's `Recipe`, or None for a
            call that does not attend. None in its place takes the registration back. What does not
            fit (a key of another batch, a mask of three axes) becomes a note of the trace.

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
