"""A page's data read back, by an independent reading of its format."""

from __future__ import annotations

import math
import struct
import zlib

import torch
from torch import Tensor

_TYPES = {"u8": "B", "u16": "H", "i32": "i", "f16": "e", "f32": "f"}


def array(packed, chunk) -> Tensor:
    """A chunk as numbers: planes of bytes put together again."""
    planes = zlib.decompress(packed.chunks[chunk["id"]])
    letter = _TYPES[chunk["dtype"]]
    size = struct.calcsize(letter)
    count = len(planes) // size
    raw = bytes(planes[plane * count + i] for i in range(count) for plane in range(size))
    numbers = list(struct.unpack(f"<{count}{letter}", raw))
    whole = letter in "BHi"
    made = torch.tensor(numbers, dtype=torch.int64 if whole else torch.float64)
    return made.reshape(chunk["shape"])


def weights(packed, form, index: int, queries: int, keys: int) -> Tensor:
    """One map as a page would show it."""
    if form["kind"] == "dense":
        return array(packed, form["maps"][index])
    if form["kind"] == "codes":
        found = _codes(packed, form, index, queries, keys)
    else:
        found = _factors(packed, form, index, queries, keys)
    if "top" in form:
        places, values = (array(packed, form["top"][index][name]) for name in ("places", "values"))
        found = found.scatter(1, places, values)
    return found


def _codes(packed, form, index, queries, keys):
    codes = array(packed, form["maps"][index]).double()
    unit = form["units"][index]
    if form["signed"]:
        found = (codes - 128) * unit
    else:
        found = torch.where(codes == 0, 0.0, unit * (form["step"] * (codes - 1)).exp())
    pool = form["pool"]
    return found.repeat_interleave(pool, 0).repeat_interleave(pool, 1)[:queries, :keys]


def _factors(packed, form, index, queries, keys):
    query = array(packed, form["query"][index])
    key = array(packed, form["key"][index // form["groups"]])
    normaliser = array(packed, form["lse"])[index]
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
