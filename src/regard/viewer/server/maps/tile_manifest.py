"""A scene whose weights stay with the server: the page asks for tiles."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from regard.recipe import Recipe
from regard.viewer import pack
from regard.viewer.chunks import Chunks
from regard.viewer.pack import PackedScene
from regard.viewer.plan import THUMBNAIL
from regard.viewer.scene import Part, Scene
from regard.viewer.stack import follows

_NOTE = "Every weight is exact, a 32-bit number computed by the server when asked for."
_TILES = {"kind": "tiles"}
_WHOLE = 1 << 22  # weights of a head up to which it is made at once


def tile_manifest(scene: Scene) -> PackedScene:
    """What a page needs before it asks for tiles: tokens, sites, and a small picture of each head.

    Every weight is seen once; a long map is never made whole.
    """
    with torch.inference_mode(), Chunks() as chunks:
        sites: list[dict[str, Any]] = []
        parts = []
        for part in scene.parts:
            sites += [_site(scene, number, chunks) for number in part.sites]
            maps = dict.fromkeys(_maps(scene, part), _TILES)
            parts.append(
                {"name": part.name, "label": part.label, "sites": part.sites, "maps": maps}
            )
        manifest = pack.manifest_of(scene, sites, parts, _NOTE)
        return PackedScene({**manifest, "steps": None}, chunks.bytes())  # tiles are of all steps


def _site(scene: Scene, number: int, chunks: Chunks) -> dict[str, Any]:
    record = scene.sites[number].record
    recipe = record.recipe.plain()
    small = [_thumbnail(recipe, scene.example, head) for head in range(record.shape.heads)]
    return {
        **pack.about(scene, number),
        **pack.judged(record, scene.example),
        "peak": [peak for _, peak in small],
        "form": _TILES,
        "thumbnails": chunks.add(torch.stack([picture for picture, _ in small])),
    }


def _thumbnail(
    recipe: Recipe, example: int, head: int
) -> tuple[UInt8[Tensor, "row column"], float]:
    """The largest weight of each block of a head, 255 for the peak; and the peak."""
    matrix = recipe.at(example, head)
    _, _, queries, keys = matrix.shape
    if queries * keys <= _WHOLE:
        weights = pack.one_head(recipe, example, head)
        peak = float(weights.abs().max())
        return pack.thumbnail(weights, peak), peak
    height, width = min(THUMBNAIL, queries), min(THUMBNAIL, keys)
    lines = []
    for line in range(height):
        rows = slice(line * queries // height, -(-(line + 1) * queries // height))
        largest = matrix.weights(rows)[0, 0].float().abs().amax(0).cpu()
        lines.append(F.adaptive_max_pool1d(largest[None], width)[0])
    small = torch.stack(lines)
    peak = float(small.max())
    return small.mul(255 / (peak or 1.0)).round().byte(), peak


def _maps(scene: Scene, part: Part) -> list[str]:
    """Which maps over all layers there are: through them where one follows the other."""
    return ["mean", "max", "rollout"] if follows(scene, part) else ["mean", "max"]
