"""Kernels in front of the operators that attend, or by which attention is spelled.

They are registered once per process, at the first use, and stay, at a dispatch key above autograd
that torch reserves for its own tests; every other operator falls through. Only a thread that
includes the key in its local set runs them; nothing changes for other threads, not even while the
kernels are registered.

A *listener* is told of an operator after it ran. The key is off while the operator runs: what is
inside it, and what a listener computes, is not reported. A transform of torch.func restores the key
and calls the operator again on its inner tensors; then that call is reported, and the outer one is
not.

An *interceptor* runs instead of an operator. It is off while it runs, and listeners are on: they
are told of the operators that the interceptor runs. It sees `kernel.fused.attention` whole, as an
operator whose arguments are a recipe and a dropout: what that is cut into depends on lengths.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from regard.interception.process import LOCK
from regard.kernel import blockwise, fused, image_windows

_NAME = "TESTING_ONLY_GenericMode"
_KEY: Any = torch._C._parse_dispatch_key(_NAME)
_include = torch._C._dispatch_tls_set_dispatch_key_included

#: Fused attention operators.
OPERATORS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    blockwise.OPERATOR,
    image_windows.OPERATOR,
)
#: Operators by which models spell attention.
SPELLINGS = (
    "_softmax",
    "_safe_softmax",
    "_log_softmax",
    "_masked_softmax",
    "logsumexp",
    "exp",
    "exp_",
)
_OUT = ("_softmax", "_log_softmax", "logsumexp", "exp")  # have an `out=` overload
#: Composite operators that an interceptor sees whole; a listener is told of their parts.
COMPOSITE = (
    "scaled_dot_product_attention",
    "softmax.int",
    "softmax.int_out",
    "special_softmax",
)

#: Called after an operator of this thread, with its name, the names of its arguments, its args,
#: kwargs and output. It must not raise.
Listener = Callable[[str, tuple[str, ...], tuple[Any, ...], dict[str, Any], Any], None]


class Operator(NamedTuple):
    """An operator that an interceptor stands for."""

    name: str
    names: tuple[str, ...]  # of its arguments, in order
    run: Callable[..., Any]  # the operator itself


#: Runs instead of an operator of this thread, with its args and kwargs; returns its output.
Interceptor = Callable[[Operator, tuple[Any, ...], dict[str, Any]], Any]


class _ThreadState(threading.local):
    listeners: tuple[Listener, ...] = ()
    reports = 0  # how many operators were reported
    interceptor: Interceptor | None = None
    changes = 0  # how many operators an interceptor changed
    intercepting = False  # whether an interceptor runs

    @property
    def needs_key(self) -> bool:
        return bool(self.listeners) or self.interceptor is not None


_here = _ThreadState()
_libraries: list[Any] = []
_refused = False


def available() -> bool:
    """Register the kernels if needed; False if the key is taken."""
    global _refused
    with LOCK:
        if not _libraries and not _refused:
            if torch._C._dispatch_has_backend_fallback(_KEY):
                _refused = True
            else:
                _register()
        return not _refused


def listen(listener: Listener) -> None:
    """Report these operators in this thread from now on; requires `available()`."""
    _fall_through()
    _here.listeners = (*_here.listeners, listener)
    _include(_KEY, True)


def unlisten(listener: Listener) -> None:
    """Stop reporting. The last listener of the thread removes the key."""
    _here.listeners = tuple(other for other in _here.listeners if other != listener)
    _include(_KEY, _here.needs_key)


@contextmanager
def intercepted(interceptor: Interceptor) -> Iterator[None]:
    """Run these operators of this thread through a function; requires `available()`."""
    _fall_through()
    before = _exchange(interceptor)
    _include(_KEY, True)
    try:
        yield
    finally:
        _exchange(before)
        _include(_KEY, _here.needs_key)


def note_change() -> None:
    """Count an operator that an interceptor changed."""
    _here.changes += 1


def changes() -> int:
    """How many operators of this thread interceptors changed so far."""
    return _here.changes


def intercepting() -> bool:
    """Whether this thread runs what an interceptor puts in place of an operator."""
    return _here.intercepting


@contextmanager
def silent() -> Iterator[None]:
    """Neither report nor intercept operators of this thread."""
    listeners, _here.listeners = _here.listeners, ()
    interceptor = _exchange(None)
    _include(_KEY, False)
    try:
        yield
    finally:
        _here.listeners = listeners
        _exchange(interceptor)
        _include(_KEY, _here.needs_key)


def _register() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        others = torch.library.Library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, _NAME)
        kernels = torch.library.Library("aten", "IMPL")
        own = torch.library.Library("regard", "IMPL")
        for name in (*OPERATORS, *SPELLINGS):
            library = own if name.startswith("regard::") else kernels
            library.impl(name.removeprefix("regard::"), _kernel(_operator(name)), _NAME)
        for name in (f"{name}.out" for name in _OUT):
            kernels.impl(name, _kernel(_operator(name)), _NAME)
        for name in COMPOSITE:
            kernels.impl(name, _composite_kernel(_operator(name)), _NAME, with_keyset=True)
    _libraries.extend([others, kernels, own])


def _operator(name: str) -> Operator:
    function = _overload(name)
    names = tuple(argument.name for argument in function._schema.arguments)
    return Operator(name, names, function._op)


def _overload(name: str) -> Any:
    space = torch.ops.regard if name.startswith("regard::") else torch.ops.aten
    base, _, overload = name.removeprefix("regard::").partition(".")
    return getattr(getattr(space, base), overload or "default")


def _kernel(operator: Operator) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if _here.interceptor is not None:
            return _intercept(operator, args, kwargs)
        reports = _here.reports
        _include(_KEY, False)
        try:
            output = operator.run(*args, **kwargs)
            if _here.reports == reports:
                _here.reports += 1
                for listener in _here.listeners:
                    listener(operator.name, operator.names, args, kwargs, output)
        finally:  # a guard that is left late may restore the key after the last listener
            _include(_KEY, _here.needs_key)
        return output

    return kernel


def _composite_kernel(operator: Operator) -> Callable[..., Any]:
    function, below = _overload(operator.name), torch._C._dispatch_keyset_full_after(_KEY)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.interceptor is not None:
            return _intercept(operator, args, kwargs)
        return function.redispatch(keys & below, *args, **kwargs)  # the key stays on for its parts

    return kernel


def _intercept(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    interceptor = _exchange(None)
    assert interceptor is not None
    _include(_KEY, bool(_here.listeners))
    _here.intercepting = True  # none is on meanwhile, so this is the outermost
    try:
        return interceptor(operator, args, kwargs)
    finally:
        _here.intercepting = False
        _exchange(interceptor)
        _include(_KEY, True)


def _exchange(interceptor: Interceptor | None) -> Interceptor | None:
    """Set the interceptor of this thread; returns the one before."""
    before, _here.interceptor = _here.interceptor, interceptor
    fused.here.instead = None if interceptor is None else _intercept_attention
    return before


_ATTENTION = Operator(fused.OPERATOR, ("recipe", "dropout"), fused.attention)


def _intercept_attention(recipe: Any, dropout: float) -> Any:
    return _intercept(_ATTENTION, (recipe, dropout), {})


def _fall_through() -> None:
    """Register a fallthrough for each higher-order operator: they dispatch in Python.

    Flex attention is one of them, and is reported.
    """
    default = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if _KEY not in default:
        default.append(_KEY)  # for those defined later
        for operator in list(torch._ops._higher_order_ops.values()):
            if _KEY not in operator.py_kernels:
                operator.fallthrough(_KEY)
    flex = torch._ops._higher_order_ops.get("flex_attention")
    if flex is not None and _KEY not in flex.py_kernels:
        flex.py_impl(_KEY)(_kernel(Operator("flex_attention", (), flex)))
        flex.non_fallthrough_keys = flex.non_fallthrough_keys.add(_KEY)
