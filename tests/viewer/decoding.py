"""A page's data read back, by an independent reading of its format."""

from __future__ import annotations

import math
import struct
import zlib

import torch
from torch import Tensor

_TYPES = {"u8": "B", "u16": "H", "i16": "h", "i32": "i", "f32": "f"}


def array(packed, chunk) -> Tensor:
    """A chunk as numbers: planes of bytes put together again."""
    planes = zlib.decompress(packed.chunks[chunk["id"]])
    if chunk["dtype"] == "rows":
        count = math.prod(chunk["shape"])
        numbers, units = _joined(planes[: 2 * count], "h"), _joined(planes[2 * count :], "f")
        return numbers.reshape(chunk["shape"]) * units[:, None]
    return _joined(planes, _TYPES[chunk["dtype"]]).reshape(chunk["shape"])


def _joined(planes: bytes, letter: str) -> Tensor:
    size = struct.calcsize(letter)
    count = len(planes) // size
    raw = bytes(planes[plane * count + i] for i in range(count) for plane in range(size))
    numbers = list(struct.unpack(f"<{count}{letter}", raw))
    return torch.tensor(numbers, dtype=torch.float64 if letter == "f" else torch.int64)


def weights(packed, form, queries: int, keys: int) -> Tensor:
    """One map as a page would show it; NaN where it holds no weight."""
    if form["kind"] == "dense":
        return array(packed, form["weights"])
    if form["kind"] == "codes":
        return coded(packed, form)
    if form["kind"] == "largest":
        return _largest(packed, form, queries, keys)
    found = _factors(packed, form, queries, keys)
    if form["top"]:
        places, values = (array(packed, form["top"][name]) for name in ("places", "values"))
        found = found.scatter(1, places, values)
    return found


def coded(packed, form) -> Tensor:
    """Numbers on a scale of square roots."""
    shares = array(packed, form["weights"]).double() / form["levels"]
    return shares * shares.abs() * form["unit"]


def _largest(packed, form, queries, keys):
    found = torch.zeros(queries, keys, dtype=torch.float64)
    for row, runs in enumerate(_runs(packed, form["runs"], queries, keys)):
        for start, stop in runs:
            found[row, start:stop] = math.nan
    return found.scatter(1, array(packed, form["places"]).t(), coded(packed, form).t())


def _factors(packed, form, queries, keys):
    query, key = array(packed, form["query"]), array(packed, form["key"])
    normaliser = array(packed, form["lse"])
    found = torch.zeros(queries, keys, dtype=torch.float64)
    for row, runs in enumerate(_runs(packed, form["runs"], queries, keys)):
        for start, stop in runs:
            for place in range(start, stop):
                score = form["scale"] * float(query[row] @ key[place])
                found[row, place] = math.exp(score - float(normaliser[row]))
    return found


def _runs(packed, chunk, queries, keys):
    if chunk is None:
        return [[(0, keys)]] * queries
    numbers = array(packed, chunk).tolist()
    counts, ends = numbers[:queries], iter(numbers[queries:])
    return [[(next(ends), next(ends)) for _ in range(count)] for count in counts]
