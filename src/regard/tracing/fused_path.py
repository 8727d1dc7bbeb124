"""The cheaper path: a hook on the fused operators alone, for models that use nothing else.

A dispatch mode costs some microseconds for every operator, which token-by-token decoding of a
small model feels. Kernels registered at `BackendSelect`, just above the backends and below
autograd, cost nothing where they are not called. They cannot follow data, so they serve only a
model whose first pass showed fused attention and no other softmax; a softmax that comes up later
is noticed, and the full path takes over from the next pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

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
_SOFTMAX = ("_softmax", "_safe_softmax")


class FusedHooks:
    """Kernels in front of the fused operators, for as long as a capture lasts."""

    def __init__(
        self, read: Callable[[str, Reader, dict[str, Any], Any], None], alarm: Callable[[], None]
    ) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is registered is the point
            for name in OPERATORS:
                self._library.impl(name, _reading(name, read), "BackendSelect", with_keyset=True)
            for name in _SOFTMAX:
                self._library.impl(name, _alarming(name, alarm), "BackendSelect", with_keyset=True)

    def remove(self) -> None:
        self._library._destroy()


def _below(keys: Any) -> Any:
    return keys.remove(DispatchKey.BackendSelect)


def _reading(name: str, read: Callable[..., None]) -> Callable[..., Any]:
    operator = getattr(torch.ops.aten, name).default
    names = tuple(argument.name for argument in operator._schema.arguments)
    reader = reader_of(name)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        out = operator.redispatch(_below(keys), *args, **kwargs)
        read(name, reader, dict(zip(names, args)) | kwargs, out)
        return out

    return kernel


def _alarming(name: str, alarm: Callable[[], None]) -> Callable[..., Any]:
    operator = getattr(torch.ops.aten, name).default

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        alarm()
        return operator.redispatch(_below(keys), *args, **kwargs)

    return kernel
