"""Module paths, and which module is running on which line, from the Python frames.

Hooks would miss a direct call of `.forward()`, and a hook on an encoder layer turns torch's fast
path off. The innermost frame whose first argument is one of the model's modules tells both.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.anatomy.attribute_names import ATTENTION, head_counts
from regard.anatomy.wrappers import PARALLEL, plain_path

_TORCH = str(Path(torch.__file__).parent)
_OWN = ("tracing", "interception", "editing", "kernel")
_HERE = tuple(str(Path(__file__).parents[1] / package) for package in _OWN)
_SOFTMAX = re.compile("softmax|dropout", re.IGNORECASE)
_FORWARD = ("forward", "_call_impl")
_SERVES = re.compile("norm|gate|glu|score|dropout|mask|bias|position|rotary", re.IGNORECASE)

#: Our own function that runs torch's fast path of an encoder layer, without its attention module.
_LAYER = "encoder_layer"

_SNAPSHOTS = sys.version_info < (3, 13)
_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS  # locals of its own, not a module's


class CallSite(NamedTuple):
    """A running module, and the line it is on."""

    path: str
    module: Any
    source: str

    @property
    def name(self) -> str:
        """The path, or the class for the model itself."""
        return self.path or self.module_class

    @property
    def module_class(self) -> str:
        return type(self.module).__name__ if self.module is not None else "function"


class ModulePaths:
    """The paths of a model's modules, by identity."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.paths: dict[int, str] = {}
        self.modules: dict[str, nn.Module] = {}
        if model is not None:
            self.adopt(model)

    def adopt(self, model: nn.Module) -> None:
        """Add a model; the paths of a second one begin with its class."""
        before = f"{type(model).__name__}." if self.modules else ""
        strip = "module." if isinstance(model, PARALLEL) else ""
        for path, module in _named(model):
            wrapped = path[:1] == "_" or "._" in path
            plain = plain_path(path) if wrapped else path
            if strip:
                plain = "" if plain == "module" else plain.removeprefix(strip)
            if before:
                plain = f"{before}{plain}".removesuffix(".")
            self.paths.setdefault(id(module), plain)
            self.modules.setdefault(plain, module)
        if strip:  # the model itself is what is inside
            self.modules[""] = model.module  # type: ignore[assignment]
        compiled = getattr(model, "_orig_mod", None)
        if compiled is not None:
            self.modules[""] = compiled

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of every module."""
        return [
            tensor
            for module in self.modules.values()
            for held in (module._parameters, module._buffers)
            for tensor in held.values()
            if tensor is not None
        ]

    def call_site(self) -> CallSite | None:
        """The running module; None when it is not one of the model.

        Another model that runs inside a method of this one, as an assistant inside `generate`, does
        not count; a module that the model calls in its forward without owning it does.
        """
        source = ""
        frame: Any = sys._getframe(2)
        fallback = ours = None
        foreign = in_layer = False
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if file.startswith(_HERE):  # our own
                in_layer = in_layer or code.co_name == _LAYER
                frame = frame.f_back
                continue
            if not source and not file.startswith(_TORCH):
                source = f"{file.rpartition(os.sep)[2]}:{frame.f_lineno}"
            if code.co_argcount:
                first = first_argument(frame)
                path = self.paths.get(id(first))
                if path is not None:
                    ours = ours or self._parent(path, first, source)
                    if not foreign or code.co_name in _FORWARD:
                        return self.inside(ours, "self_attn") if in_layer else ours
                elif isinstance(first, nn.Module):
                    if self.model is None:
                        fallback = fallback or CallSite("", first, source)
                    elif ours is None and code.co_name in _FORWARD:
                        foreign = True
            frame = frame.f_back
        if self.model is not None:
            return None
        return fallback or CallSite("", None, source)

    def inside(self, call_site: CallSite, child: str) -> CallSite:
        """The same call in a child of the module, if there is one of that name."""
        module = getattr(call_site.module, "_modules", {}).get(child)
        if module is None or id(module) not in self.paths:
            return call_site
        return CallSite(self.paths[id(module)], module, call_site.source)

    def in_forward(self) -> bool:
        """Whether a forward pass of the model is running (`generate` between passes is not one)."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name in _FORWARD and code.co_argcount:
                first = first_argument(frame)
                if id(first) in self.paths or (self.model is None and isinstance(first, nn.Module)):
                    return True
            frame = frame.f_back
        return False

    def _parent(self, path: str, module: nn.Module, source: str) -> CallSite:
        """The call site; a bare softmax or dropout is named by its parent."""
        while path and not module._modules and _SOFTMAX.search(type(module).__name__):
            path = path.rpartition(".")[0]
            module = self.modules.get(path, module)
        return CallSite(path, module, source or "?")

    def heads(self, call_site: CallSite) -> set[int]:
        """Head counts among the attributes of the module, or of its parents."""
        counts: set[int] = set()
        path, module = call_site.path, call_site.module
        for _ in range(3):
            counts = head_counts(module)
            if counts or not path:
                break
            path = path.rpartition(".")[0]
            module = self.modules.get(path)
        return counts


def first_argument(frame: Any) -> Any:
    """The first argument of a running function, or None."""
    return argument(frame)


def frame_of(codes: Container[int]) -> FrameType | None:
    """The innermost frame that runs one of some code objects, given by id, up to a module call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        if id(frame.f_code) in codes:
            return frame
        frame = frame.f_back
    return None


def argument(frame: Any, name: str | None = None) -> Any:
    """A variable of a running function, by default its first argument; None if it has none.

    Up to Python 3.12 reading `f_locals` leaves a snapshot in the frame until it returns, which
    keeps tensors alive that the function deletes. So the snapshot is emptied, unless that could be
    noticed: someone else holds it (`locals()` returned it), or a debugger or profiler may write it
    back. Names that `exec` left there stay.
    """
    code, frame_locals = frame.f_code, frame.f_locals
    variables = _variables.get(id(code))
    if variables is None:
        if len(_variables) > 1000:
            _variables.clear()
        variables = _variables[id(code)] = _variables_of(code)
    value = frame_locals.get(variables.first if name is None else name)
    alone = _SNAPSHOTS and sys.getrefcount(frame_locals) == 3  # ours, the frame's and the call's
    watched = sys.gettrace() is not None or sys.getprofile() is not None
    if alone and not watched:
        frame_locals.update(variables.nothing)
    return value


class _Variables(NamedTuple):
    """The variable names of a function."""

    first: str
    nothing: dict[str, None]  # each of them
    code: Any  # held, so that its id is not reused


_variables: dict[int, _Variables] = {}  # by id of the code object, whose hash is slow


def _variables_of(code: Any) -> _Variables:
    own = code.co_flags & _FUNCTION == _FUNCTION
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars) if own else ()
    return _Variables(code.co_varnames[0] if code.co_varnames else "", dict.fromkeys(names), code)


def attention_modules(module_paths: ModulePaths) -> dict[int, str]:
    """Paths of modules that are attention by class or name, by id; not of torch.nn's helpers."""
    paths = {}
    for path, module in module_paths.modules.items():
        by_class = _by_class(type(module))  # type: ignore[arg-type]
        name = path.rpartition(".")[2]
        if by_class or (by_class is None and module._modules and _is_attention_name(name)):
            paths[id(module)] = path
    return paths


def _is_attention_name(name: str) -> bool:
    """Whether a name is that of attention, and not of a layer beside it."""
    return bool(ATTENTION.search(name)) and not _SERVES.search(name)


@functools.lru_cache(maxsize=1024)
def _by_class(kind: type) -> bool | None:
    """Whether modules of a class are attention; None if their name may tell."""
    if kind.__module__.startswith("torch.") and not issubclass(kind, nn.MultiheadAttention):
        return False
    if _SERVES.search(kind.__name__):
        return False
    return True if ATTENTION.search(kind.__name__) else None


def related(path: str, other: str) -> bool:
    """Whether one path is inside the other; the empty path of the model itself is in none."""
    if not path or path == other:
        return True
    inside = f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")
    return bool(other) and inside


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """`named_modules`, three times as fast."""
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        children = module._modules
        if children:
            before = f"{path}." if path else ""
            waiting += [
                (before + name, child)
                for name, child in reversed(children.items())
                if child is not None
            ]
