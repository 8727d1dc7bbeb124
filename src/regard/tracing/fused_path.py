"""The cheaper path: a hook on the fused operators alone, for models that use nothing else.

A dispatch mode costs some microseconds for every operator, which token-by-token decoding of a
small model feels. Kernels registered at `BackendSelect`, just above the backends and below
autograd, cost nothing where they are not called. They cannot follow data, so they serve only a
model whose first pass showed fused attention and no other; an operator of another spelling that
comes up later is noticed, and the full path takes over from the next pass.

Only one kernel can stand in front of an operator, so all captures of a process share them.

Torch's table of kernels may not change while another thread looks into it: an operator that runs
there at that moment fails. So kernels are put in place, and taken away, only while every other
thread of Python waits; where one runs, captures read fully, and kernels nobody listens to stay.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch._C import DispatchKey

from regard.tracing.operators import Reader, reader_of

OPERATORS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
#: Operators by which a model spells attention itself, or that attend and are read elsewhere.
SPELLINGS = (
    "_softmax",
    "_safe_softmax",
    "_log_softmax",
    "_masked_softmax",
    "logsumexp",
    "exp",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
)


@runtime_checkable
class Listener(Protocol):
    """A capture on the cheaper path."""

    def read_fused(self, name: str, reader: Reader, given: dict[str, Any], out: Any) -> None: ...

    def spelt(self, name: str) -> None: ...


#: Functions in which a thread waits, and tools whose threads run no operator.
_WAITING = {"wait", "select", "poll", "accept", "recv", "recv_into", "_wait_for_tstate_lock"}
_TOOLS = ("zmq", "ipykernel", "IPython", "tornado", "tqdm", "execnet")
_listeners: list[Listener] = []
_library: Any = None
_lock = threading.Lock()


def possible() -> bool:
    """Whether the kernels are there already, or can be put in place without harm to a thread."""
    return _library is not None or _alone()


def _alone() -> bool:
    """Whether every other thread of Python waits for something, as those of notebooks do."""
    mine = threading.get_ident()
    others = (frame for thread, frame in sys._current_frames().items() if thread != mine)
    return all(map(_waits, others))


def _waits(frame: Any) -> bool:
    code = frame.f_code
    return code.co_name in _WAITING or any(name in code.co_filename for name in _TOOLS)


def listen(listener: Listener) -> None:
    """Tell a capture of every fused operator that runs; the first one puts the kernels in place."""
    global _library
    with _lock:
        _listeners.append(listener)
        if _library is None:
            _library = torch.library.Library("aten", "IMPL")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a kernel is registered is the point
                for names, make in ((OPERATORS, _reading), (SPELLINGS, _noticing)):
                    for name in names:
                        _library.impl(name, make(name), "BackendSelect", with_keyset=True)


def ignore(listener: Listener) -> None:
    """No longer; the last one takes the kernels away, now or after a later capture."""
    global _library
    with _lock:
        _listeners.remove(listener)
        if not _listeners and _library is not None and _alone():
            _library._destroy()
            _library = None


def _below(keys: Any) -> Any:
    return keys.remove(DispatchKey.BackendSelect)


def _reading(name: str) -> Callable[..., Any]:
    operator = getattr(torch.ops.aten, name).default
    names = tuple(argument.name for argument in operator._schema.arguments)
    reader = reader_of(name)
    assert reader is not None

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        out = operator.redispatch(_below(keys), *args, **kwargs)
        for listener in tuple(_listeners):
            listener.read_fused(name, reader, dict(zip(names, args)) | kwargs, out)
        return out

    return kernel


def _noticing(name: str) -> Callable[..., Any]:
    operator = getattr(torch.ops.aten, name).default

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        for listener in tuple(_listeners):
            listener.spelt(name)
        return operator.redispatch(_below(keys), *args, **kwargs)

    return kernel
