"""Imports of packages whose own imports of torchvision or torchaudio are in the way.

Neither has a build for every torch. Where only an import asks for them, names of theirs stand for
empty classes during it, as in `tests/tracing/hf/torchvision_stub.py`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ABSENT = ("torchvision", "torchaudio")


@contextmanager
def stood_in() -> Iterator[None]:
    """Names of absent packages stand for empty classes while the context lasts."""
    import torchvision_stub

    class Finder(torchvision_stub._Finder):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] not in ABSENT:
                return None
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.28.0" if name in ABSENT else version(name)
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        importlib.metadata.version = version
        for name in [name for name in sys.modules if name.split(".")[0] in ABSENT]:
            del sys.modules[name]


def imported(path: str) -> Any:
    """`module` or `module:name`, imported without torchvision and torchaudio."""
    module, _, name = path.partition(":")
    with stood_in():
        result = importlib.import_module(module)
    return getattr(result, name) if name else result
