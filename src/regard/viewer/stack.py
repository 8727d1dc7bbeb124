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
from regard.viewer.forms import Map
from regard.viewer.scene import Part, Scene

_LONGEST = 4096  # positions up to which layers are multiplied
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
        self._sum: Tensor | None = None
        self._largest: Tensor | None = None
        self._rolled: Tensor | None = None
        self._layer: Tensor | None = None

    def add(self, weights: Map) -> None:
        """One head of the layer that is being walked."""
        self._layer = weights.clone() if self._layer is None else self._layer.add_(weights)
        if self._largest is None:
            self._largest = weights.clone()
        torch.maximum(self._largest, weights, out=self._largest)

    def close(self, record: Record) -> None:
        """The layer is done."""
        assert self._layer is not None
        layer, self._layer = self._layer, None
        self._sum = layer.clone() if self._sum is None else self._sum.add_(layer)
        if self._follows:
            fused = Given((layer / record.shape.heads)[None, None], None, record.kind)
            mixed = mixed_map(Layer(record.name, fused), _RESIDUAL, "mean", 0)[0]
            self._rolled = mixed if self._rolled is None else mixed @ self._rolled

    def maps(self) -> dict[str, Map]:
        """By name, whichever there are."""
        assert self._sum is not None and self._largest is not None
        heads = sum(record.shape.heads for record in self._records)
        maps = {"mean": self._sum / heads, "max": self._largest}
        if self._rolled is not None:
            maps["rollout"] = self._rolled
            with suppress(UnavailableError):  # without a gradient there is none
                whole = relevance(Trace(self._records))[self._example]
                maps["relevance"] = whole.float().cpu()
        return maps
