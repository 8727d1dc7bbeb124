"""Traces that can be looked at, the one not asked for longest dropped first."""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from regard.record import Trace
from regard.viewer.pack import Packed, packed
from regard.viewer.scene import Scene
from regard.viewer.server.limits import Limits, not_found
from regard.viewer.server.tiled import tiled
from regard.viewer.server.tiles import Cache, Maps


@dataclass(frozen=True)
class Kept:
    """A trace as the page gets it: JSON that is ready to be sent, chunks, and maps on demand."""

    id: str
    title: str
    manifest: bytes
    chunks: list[bytes]
    maps: Maps
    nbytes: int
    pinned: bool  #: given at start: never dropped

    def shown(self) -> dict[str, Any]:
        scene = self.maps.scene
        return {
            "id": self.id,
            "title": self.title,
            "tokens": max(len(line.tokens) for line in scene.lines),
            "sites": len(scene.sites),
        }


class Traces:
    """The traces of a server, by a name that cannot be guessed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._cache = Cache(limits.tile_bytes)
        self._lock = threading.Lock()

    def add(self, scene: Scene, *, pinned: bool = False) -> Kept:
        """Make a scene ready to be sent and keep it. Takes time: not for the event loop."""
        name = secrets.token_urlsafe(12)
        found = self._packed(scene)
        manifest = {**found.manifest, "id": name, "first_chunk": 0}
        text = json.dumps(manifest, allow_nan=False, separators=(",", ":")).encode()
        held = Trace([site.record for site in scene.sites]).nbytes
        size = held + len(text) + sum(len(chunk) for chunk in found.chunks)
        maps = Maps(name, scene, self._cache)
        kept = Kept(name, scene.title, text, found.chunks, maps, size, pinned)
        with self._lock:
            self._kept[name] = kept
            self._drop()
        return kept

    def get(self, name: str) -> Kept:
        """A trace by name, which is then the one that was asked for last."""
        with self._lock:
            if name not in self._kept:
                raise not_found("such trace; it may have been dropped for newer ones")
            self._kept.move_to_end(name)
            return self._kept[name]

    def all(self) -> list[Kept]:
        """Every trace, the one asked for last at the end."""
        with self._lock:
            return list(self._kept.values())

    def pinned(self) -> list[Kept]:
        """Those that were given at start; others are known to who asked for them."""
        return [kept for kept in self.all() if kept.pinned]

    def _packed(self, scene: Scene) -> Packed:
        weights = [site.record.shape for site in scene.sites]
        total = sum(shape.heads * shape.queries * shape.keys for shape in weights)
        limits = self._limits
        limit = limits.packed_weights if scene.prompt is None else limits.packed_steps
        return tiled(scene) if total > limit else packed(scene)

    def _drop(self) -> None:
        """Drop what is too much; what was given at start and the newest one stay."""
        live = [kept for kept in self._kept.values() if not kept.pinned]
        size = sum(kept.nbytes for kept in live)
        while len(live) > 1 and (
            len(live) > self._limits.traces or size > self._limits.trace_bytes
        ):
            oldest = live.pop(0)
            size -= oldest.nbytes
            del self._kept[oldest.id]
            self._cache.forget(oldest.id)
