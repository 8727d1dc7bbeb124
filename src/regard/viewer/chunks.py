"""Tensors as small bytes: the bytes of each number split into planes, then deflated."""

from __future__ import annotations

import ctypes
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

_NAMES = {
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.int32: "i32",
    torch.float16: "f16",
    torch.float32: "f32",
}
_LEVEL = 6


class Chunks:
    """Numbered pieces of data; deflated by other threads while more are made."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._jobs: list[Future[bytes]] = []

    def __enter__(self) -> Chunks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=error is not None)

    def add(self, tensor: Tensor) -> dict[str, Any]:
        """Keep a tensor; what comes back is how a page finds it again."""
        number = len(self._jobs)
        self._jobs.append(self._pool.submit(deflated, tensor.detach().cpu().contiguous()))
        return {"id": number, "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}

    def bytes(self) -> list[bytes]:
        """All pieces, in the order they were added."""
        return [job.result() for job in self._jobs]


def deflated(tensor: Tensor) -> bytes:
    """First all first bytes of the numbers, then all second ones: alike bytes lie together."""
    planes = tensor.reshape(-1).view(torch.uint8).reshape(-1, tensor.element_size())
    return zlib.compress(raw(planes.t().contiguous()), _LEVEL)


def raw(tensor: Tensor) -> bytes:
    """The bytes of a contiguous tensor on the CPU."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
