"""Who runs the model on the shards of a corpus: this process, the ranks of torchrun, Ray."""

from __future__ import annotations

import os
from typing import Any

from regard.corpus.engines.base import Engine
from regard.corpus.engines.local import Local
from regard.corpus.engines.ray_data import RayData, RayOptions
from regard.corpus.engines.torchrun import Torchrun
from regard.errors import RegardError

__all__ = ["Engine", "Local", "RayData", "RayOptions", "Torchrun", "engine_of"]

_ENGINES = {"local": Local, "torchrun": Torchrun, "ray": RayData}


def engine_of(engine: Any) -> Engine:
    """The engine that a name stands for; "auto" is torchrun where it started several processes."""
    if isinstance(engine, RayOptions):
        return RayData(engine)
    if engine == "auto":
        several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
        engine = "torchrun" if several else "local"
    if not isinstance(engine, str) or engine not in _ENGINES:
        names = ", ".join(map(repr, ("auto", *_ENGINES)))
        raise RegardError(f"collect: engine={engine!r:.60}, expected {names} or RayOptions(...)")
    return _ENGINES[engine]()
