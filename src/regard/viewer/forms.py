"""Ways to keep the weights of one attention in a page.

| form | what is kept | exact |
|---|---|---|
| dense | every weight, float32 | yes |
| factors | queries and keys, and each row's normaliser: the page multiplies them | within `error` |
| codes | a byte for each weight, or for the mean of a block of them, on a logarithmic scale | no |

Factors and codes may come with the exact largest weights of each row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.recipe import Dot, Recipe
from regard.types import Block
from regard.viewer.chunks import Chunks

STEP = 0.055  # natural logarithms between two codes: 2.8 % to either side
FLOOR = 1e-6  # what code 1 is of the largest of its map; what is smaller is 0
LARGEST = 8  # weights of each row that are kept exactly
_RUNS = 4  # of permitted keys in a row, up to which a mask is kept as such

Map = Float[Tensor, "query key"]
Places = Int[Tensor, "query place"]


class Factors:
    """Queries and keys of one example whose products are the scores, rounded to 16 bits.

    Weights are exp(scale · query · key − normaliser). The normaliser of a row is the one that makes
    its largest weight exact, so that what rounding does to a whole row goes away.
    """

    def __init__(
        self,
        query: Float[Tensor, "head query width"],
        key: Float[Tensor, "group key width"],
        scale: float,
        runs: Int[Tensor, " number"] | None,
    ) -> None:
        self.query, self.key, self.scale = query, key, scale
        self.runs = runs  #: permitted keys of each row: how many runs, then their ends
        self.normaliser = torch.zeros(query.shape[:2])

    @classmethod
    def of(cls, recipe: Recipe, example: int) -> Factors | None:
        """The factors of a plain dot product; None where weights are made in another way."""
        if not isinstance(recipe, Dot) or not recipe.is_softmax:
            return None
        if recipe.bias is not None or recipe.softcap is not None:
            return None
        query, key = (part[example].detach().cpu() for part in (recipe.query, recipe.key))
        if not _fits_half(query) or not _fits_half(key):
            return None
        if recipe.mask is None:
            return cls(query.half(), key.half(), recipe.scale, None)
        runs = _runs(recipe, example)
        return None if runs is None else cls(query.half(), key.half(), recipe.scale, runs)

    @property
    def numbers(self) -> int:
        """How many numbers are kept."""
        return self.query.numel() + self.key.numel() + 2 * self.normaliser.numel()

    def fitted(self, head: int, exact: Map, stored: Places | None) -> float:
        """Find the normalisers of a head; the largest error that is left, but for known places."""
        group = head // (self.query.shape[0] // self.key.shape[0])
        scores = (self.query[head].float() * self.scale) @ self.key[group].float().t()
        peak, position = exact.max(1, keepdim=True)
        there = scores.gather(1, position) - peak.log()
        normaliser = torch.where(peak > 0, there, 0.0)
        self.normaliser[head] = normaliser[:, 0]
        apart = scores.sub_(normaliser).exp_().sub_(exact).abs_().masked_fill_(exact == 0, 0.0)
        return float((apart if stored is None else apart.scatter_(1, stored, 0.0)).max())

    def packed(self, chunks: Chunks) -> dict[str, Any]:
        """The form of all heads, once each is fitted."""
        return {
            "kind": "factors",
            "scale": self.scale,
            "groups": self.query.shape[0] // self.key.shape[0],
            "query": [chunks.add(head) for head in self.query],
            "key": [chunks.add(head) for head in self.key],
            "lse": chunks.add(self.normaliser),
            "runs": None if self.runs is None else chunks.add(self.runs),
        }


class StoredMap(NamedTuple):
    """One map as it is kept, and the number its codes begin at, or are multiples of if signed."""

    chunk: dict[str, Any]
    unit: float = 0.0


def keep(weights: Map, exact: bool, pool: int, signed: bool, chunks: Chunks) -> StoredMap:
    """One map as numbers, or as codes of blocks of `pool` × `pool` weights."""
    if exact:
        return StoredMap(chunks.add(weights))
    if pool > 1:
        weights = F.avg_pool2d(weights[None], pool, ceil_mode=True)[0]
    if signed:
        unit = (float(weights.abs().max()) or 1.0) / 127
        return StoredMap(chunks.add((weights / unit).round().add(128).byte()), unit)
    floor = FLOOR * (float(weights.max()) or 1.0)  # relevance, unlike weights, exceeds 1
    logarithm = weights.clamp_min(floor / 10).log().sub(math.log(floor)).div(STEP)
    return StoredMap(chunks.add(logarithm.round().add(1).clamp(0, 255).byte()), floor)


def together(kept: Sequence[StoredMap], exact: bool, pool: int, signed: bool) -> dict[str, Any]:
    """The form of several maps."""
    maps = [each.chunk for each in kept]
    if exact:
        return {"kind": "dense", "maps": maps}
    return {
        "kind": "codes",
        "maps": maps,
        "pool": pool,
        "step": STEP,
        "units": [each.unit for each in kept],
        "signed": signed,
    }


def largest(weights: Map, count: int) -> Places:
    """Where the largest weights of each row lie."""
    return weights.abs().topk(min(count, weights.shape[1]), dim=1, sorted=False).indices


def at_places(weights: Map, places: Places, chunks: Chunks) -> dict[str, Any]:
    """The exact weights at some places of each row."""
    numbers = places.to(torch.uint16 if weights.shape[1] <= 1 << 16 else torch.int32)
    return {"places": chunks.add(numbers), "values": chunks.add(weights.gather(1, places))}


def _fits_half(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all()) and (
        not tensor.numel() or float(tensor.abs().max()) < torch.finfo(torch.float16).max
    )


def _runs(recipe: Dot, example: int) -> Int[Tensor, " number"] | None:
    """Permitted keys of each row; None if heads differ or there are too many runs."""
    _, heads, queries, keys = recipe.shape
    assert recipe.mask is not None
    block = Block.of(slice(0, queries), slice(0, keys), queries, keys)
    first: Tensor | None = None
    for head in range(heads):
        allowed = recipe.mask.at(example, head).block(block, torch.device("cpu"))
        if isinstance(allowed, bool):
            allowed = torch.tensor(allowed)
        allowed = allowed.expand(1, 1, queries, keys)[0, 0]
        if first is not None and not torch.equal(first, allowed):
            return None
        first = allowed
    assert first is not None
    return _ends(first)


def _ends(allowed: Bool[Tensor, "query key"]) -> Tensor | None:
    """The number of runs of each row, then where each begins and ends."""
    edges = F.pad(allowed.int(), (1, 1)).diff(dim=1)  # 1 where a run begins, -1 behind its end
    starts, stops = (edges == 1).nonzero(), (edges == -1).nonzero()
    if starts.shape[0] > _RUNS * allowed.shape[0]:
        return None
    counts = torch.bincount(starts[:, 0], minlength=allowed.shape[0])
    ends = torch.stack([starts[:, 1], stops[:, 1]], dim=1).flatten()
    return torch.cat([counts, ends]).int()
