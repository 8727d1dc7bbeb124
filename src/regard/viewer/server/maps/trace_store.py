"""Traces that the page can show; the least recently used is dropped first."""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from regard.record import Trace
from regard.viewer.pack import PackedScene, packed
from regard.viewer.scene import Scene
from regard.viewer.server.limits import Limits, not_found
from regard.viewer.server.maps.tile_manifest import tile_manifest
from regard.viewer.server.maps.tiles import Maps, TileCache


@dataclass(frozen=True)
class StoredTrace:
    """A trace as the page gets it: its manifest as JSON, chunks, and maps on demand."""

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


class TraceStore:
    """The traces of a server, by random names."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._traces: OrderedDict[str, StoredTrace] = OrderedDict()
        self._cache = TileCache(limits.tile_bytes)
        self._lock = threading.Lock()

    def add(self, scene: Scene, *, pinned: bool = False) -> StoredTrace:
        """Pack and store a scene. Slow: do not call it in the event loop."""
        name = secrets.token_urlsafe(12)
        package = self._packed(scene)
        manifest = {**package.manifest, "id": name, "first_chunk": 0}
        text = json.dumps(manifest, allow_nan=False, separators=(",", ":")).encode()
        record_bytes = Trace([site.record for site in scene.sites]).nbytes
        size = record_bytes + len(text) + sum(len(chunk) for chunk in package.chunks)
        maps = Maps(name, scene, self._cache)
        trace = StoredTrace(name, scene.title, text, package.chunks, maps, size, pinned)
        with self._lock:
            self._traces[name] = trace
            self._drop()
        return trace

    def get(self, name: str) -> StoredTrace:
        """A trace by name, which becomes the most recently used."""
        with self._lock:
            if name not in self._traces:
                raise not_found("such trace; it may have been dropped for newer ones")
            self._traces.move_to_end(name)
            return self._traces[name]

    def all(self) -> list[StoredTrace]:
        """Every trace, the most recently used last."""
        with self._lock:
            return list(self._traces.values())

    def pinned(self) -> list[StoredTrace]:
        """Those given at start; only its own client knows the name of another."""
        return [trace for trace in self.all() if trace.pinned]

    def _packed(self, scene: Scene) -> PackedScene:
        weights = [site.record.shape for site in scene.sites]
        total = sum(shape.heads * shape.queries * shape.keys for shape in weights)
        limits = self._limits
        limit = limits.packed_weights if scene.prompt is None else limits.packed_steps
        return tile_manifest(scene) if total > limit else packed(scene)

    def _drop(self) -> None:
        """Drop traces beyond the limits; pinned ones and the newest stay."""
        live = [trace for trace in self._traces.values() if not trace.pinned]
        size = sum(trace.nbytes for trace in live)
        while len(live) > 1 and (
            len(live) > self._limits.traces or size > self._limits.trace_bytes
        ):
            oldest = live.pop(0)
            size -= oldest.nbytes
            del self._traces[oldest.id]
            self._cache.forget(oldest.id)
