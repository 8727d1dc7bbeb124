"""A scene whose weights stay with the server: the page asks for tiles."""

from __future__ import annotations

from typing import Any

import torch

from regard.viewer import pack
from regard.viewer.chunks import Chunks
from regard.viewer.pack import PackedScene
from regard.viewer.scene import Part, Scene
from regard.viewer.stack import follows
from regard.viewer.walk import HeadWalk, Overview, judged

_NOTE = "Every weight is exact, a 32-bit number computed by the server when asked for."
_TILES = {"kind": "tiles", "error": 0.0, "note": "every weight is exact"}


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
    walk = HeadWalk(record, scene.example)
    rows, pictures, peaks = [], [], []
    for head in range(record.shape.heads):
        overview = Overview(*record.shape[2:])
        rows.append(walk.show(head, [overview]))
        peaks.append(overview.peak(f"{record.name}, head {head}"))
        pictures.append(overview.picture())
    return {
        **pack.about(scene, number),
        **judged(rows),
        "peak": peaks,
        "maps": [_TILES] * record.shape.heads,
        "thumbnails": chunks.add(torch.stack(pictures)),
    }


def _maps(scene: Scene, part: Part) -> list[str]:
    """Which maps over all layers there are: through them where one follows the other."""
    return ["mean", "max", "rollout"] if follows(scene, part) else ["mean", "max"]
