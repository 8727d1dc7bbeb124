"""Tensors as small bytes: the bytes of each number split into planes, then deflated."""

from __future__ import annotations

import ctypes
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int16
from torch import Tensor

_NAMES = {
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.float32: "f32",
}
_LEVEL = 6


class ScaledRows(NamedTuple):
    """Vectors as whole numbers of some bits, each row in multiples of its own unit."""

    numbers: Int16[Tensor, "row width"]
    units: Float[Tensor, " row"]

    @classmethod
    def of(cls, rows: Float[Tensor, "row width"], bits: int) -> ScaledRows:
        """Rounded so that the largest of a row takes all bits."""
        most = 2 ** (bits - 1) - 1
        units = rows.float().abs().amax(1).div(most).clamp_min(torch.finfo(torch.float32).tiny)
        return cls((rows / units[:, None]).round().clamp(-most, most).to(torch.int16), units)

    def decoded(self) -> Float[Tensor, "row width"]:
        """As a page reads them."""
        return self.numbers * self.units[:, None]


class Chunks:
    """Numbered pieces of data; deflated by other threads while more are made."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._jobs: list[Future[bytes]] = []
        self._last: tuple[Tensor, dict[str, Any]] | None = None

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
        return self._add(_NAMES[tensor.dtype], tensor)

    def add_once(self, tensor: Tensor) -> dict[str, Any]:
        """Keep a tensor, unless it is the one that came last: heads mostly share their mask."""
        if self._last is None or not self._last[0].equal(tensor):
            self._last = tensor, self.add(tensor)
        return self._last[1]

    def add_rows(self, rows: ScaledRows) -> dict[str, Any]:
        """Keep rows of whole numbers, each with the number they are multiples of."""
        return self._add("rows", rows.numbers, rows.units)

    def _add(self, dtype: str, *tensors: Tensor) -> dict[str, Any]:
        pieces = [tensor.detach().cpu().contiguous() for tensor in tensors]
        self._jobs.append(self._pool.submit(deflated, *pieces))
        return {"id": len(self._jobs) - 1, "dtype": dtype, "shape": list(pieces[0].shape)}

    def add_packed(self, piece: bytes) -> None:
        """Keep a piece that other chunks made."""
        self._jobs.append(self._pool.submit(bytes, piece))

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces so far."""
        return sum(len(piece) for piece in self.bytes())

    def bytes(self) -> list[bytes]:
        """All pieces, in the order they were added."""
        return [job.result() for job in self._jobs]


def deflated(*tensors: Tensor) -> bytes:
    """First all first bytes of the numbers, then all second ones: alike bytes lie together."""
    return zlib.compress(b"".join(map(_planes, tensors)), _LEVEL)


def _planes(tensor: Tensor) -> bytes:
    planes = tensor.reshape(-1).view(torch.uint8).reshape(-1, tensor.element_size())
    return raw(planes.t().contiguous())


def raw(tensor: Tensor) -> bytes:
    """The bytes of a contiguous tensor on the CPU."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
