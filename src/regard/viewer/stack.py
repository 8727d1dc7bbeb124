"""Maps over all heads of a stack of layers, added up while its heads are walked once."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from regard.aggregate import relevance
from regard.aggregate.layers.rollout import mixed_map
from regard.aggregate.sources import Layer
from regard.errors import UnavailableError
from regard.recipe import Given
from regard.record import Record, Trace
from regard.types import pieces
from regard.viewer.forms import Map, Strip
from regard.viewer.scene import Part, Scene

_LONGEST = 4096  # positions up to which layers are multiplied
_ROWS = 512  # multiplied at once
_RESIDUAL = 0.5  # share of the residual stream, as `regard.rollout` has it


def follows(scene: Scene, part: Part) -> bool:
    """Whether the layers of a part can be multiplied: self-attention over one sequence."""
    return all(
        site.queries == site.keys
        and site.record.attends != "cross"
        and site.record.kind in ("distribution", "partial")
        and site.record.shape.queries <= _LONGEST
        for site in (scene.sites[number] for number in part.sites)
    )


class Stack:
    """Mean, largest, rollout and relevance of a part."""

    def __init__(self, scene: Scene, part: Part) -> None:
        sites = [scene.sites[number] for number in part.sites]
        self._records = [site.record for site in sites]
        self._example = scene.example
        self._follows = follows(scene, part)
        size = sites[0].record.shape[2:]
        self._sum, self._layer = torch.zeros(size), torch.zeros(size)
        self._largest = torch.full(size, -torch.inf)
        self._rolled: Tensor | None = None

    def take(self, rows: slice, strip: Strip) -> None:
        """Some rows of one head of the layer that is being walked."""
        seen = slice(0, strip.shape[1])
        self._layer[rows, seen] += strip
        largest = self._largest[rows]
        torch.maximum(largest[:, seen], strip, out=largest[:, seen])
        largest[:, seen.stop :].clamp_min_(0.0)

    def close(self, record: Record) -> None:
        """The layer is done."""
        self._sum += self._layer
        if self._follows:
            fused = Given((self._layer / record.shape.heads)[None, None], None, record.kind)
            mixed = mixed_map(Layer(record.name, fused), _RESIDUAL, "mean", 0)[0]
            self._rolled = mixed if self._rolled is None else _product(mixed, self._rolled)
        self._layer.zero_()

    def maps(self) -> dict[str, Map]:
        """By name, whichever there are."""
        heads = sum(record.shape.heads for record in self._records)
        maps = {"mean": self._sum / heads, "max": self._largest}
        if self._rolled is not None:
            maps["rollout"] = self._rolled
            with suppress(UnavailableError):  # without a gradient there is none
                whole = relevance(Trace(self._records))[self._example]
                maps["relevance"] = whole.float().cpu()
        return maps


def _product(first: Map, second: Map) -> Map:
    """first · second, without columns in which a block of rows has nothing, such as the future."""
    product = torch.zeros_like(first)
    blocks = list(pieces(len(first), _ROWS))
    reaches = [_reach(second[inner]) for inner in blocks]
    for rows in blocks:
        last = _reach(first[rows])
        for inner, reach in zip(blocks, reaches):
            if inner.start < last:
                product[rows, :reach].addmm_(first[rows, inner], second[inner, :reach])
    return product


def _reach(rows: Tensor) -> int:
    """The number of columns up to the last one that is not all 0."""
    columns = (rows != 0).any(0).nonzero()
    return int(columns[-1]) + 1 if len(columns) else 0
