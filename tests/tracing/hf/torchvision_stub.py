"""timm, vit-pytorch and others import torchvision, whose operators have no build for this torch.

`imported(name)` imports such a package while names of torchvision stand for empty classes. Nothing
of the stand-in stays in `sys.modules`, so that nobody else believes torchvision is there.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import warnings


class _Anything(type):
    """A class that has every class attribute, each of them again such a class."""

    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__version__ = "0.28.0"

        def attribute(name: str):
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module) -> None:
        pass


def imported(name: str):
    """The module `name`, imported without torchvision."""
    if name in sys.modules:
        return sys.modules[name]
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings():
            # both libraries script a function of their own when they are imported
            warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
            return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]
