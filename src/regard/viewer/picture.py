"""The image that a vision model looked at, and which positions are its patches."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from regard.errors import ShapeError
from regard.plots.of_image import checked_image

_LONGEST = 768  # pixels of a side that a page keeps


@dataclass(frozen=True)
class Picture:
    """An image as PNG, and the grid of patches that a sequence's last positions are.

    Sequences whose records know the grid of their positions, as gates do, are in `grids`.
    """

    png: bytes
    width: int
    height: int
    rows: int
    columns: int
    first: int  #: position of the first patch: class and register tokens come before it
    line: int  #: number of the sequence
    grids: Mapping[int, tuple[int, int]]  #: rows and columns, by number of the sequence

    @classmethod
    def of(
        cls,
        image: Tensor,
        patches: tuple[int, int] | None,
        sizes: Sequence[int],
        grids: Mapping[int, tuple[int, int]],
    ) -> Picture:
        """An image from 0 to 1, (row, column, 3) or (3, row, column), over sequences of sizes; 1 in
        the place of 3 is grey."""
        image = checked_image(image, "page")
        if patches is None and grids:
            line = max(grids, key=lambda number: sizes[number])
            rows, columns = grids[line]
        else:
            line, (rows, columns) = _grid(patches, sizes)
        step = -(-max(image.shape[:2]) // _LONGEST)
        small = image[::step, ::step].detach().cpu()
        return cls(
            png=_png(small),
            width=small.shape[1],
            height=small.shape[0],
            rows=rows,
            columns=columns,
            first=sizes[line] - rows * columns,
            line=line,
            grids=grids,
        )

    @property
    def source(self) -> str:
        """The image as an address that needs no network."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


def _grid(patches: tuple[int, int] | None, sizes: Sequence[int]) -> tuple[int, tuple[int, int]]:
    """The longest sequence that holds the patches, and how they lie."""
    longest = max(range(len(sizes)), key=lambda line: sizes[line])
    if patches is None:
        side = math.isqrt(sizes[longest])
        return longest, (side, side)
    rows, columns = patches
    if rows < 1 or columns < 1 or rows * columns > sizes[longest]:
        raise ShapeError(
            f"page: {rows} × {columns} patches, but the longest sequence has {sizes[longest]} "
            "positions"
        )
    exact = [line for line, size in enumerate(sizes) if size == rows * columns]
    return (exact or [longest])[0], (rows, columns)


def _png(image: Tensor) -> bytes:
    """An image as PNG, without a library: 8 bits of red, green and blue, no filter."""
    height, width, _ = image.shape
    rows = image.clamp(0, 1).mul(255).round().byte().reshape(height, -1).tolist()
    raw = b"".join(b"\0" + bytes(row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
