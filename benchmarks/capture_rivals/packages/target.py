"""A model of a package, and what is true of its attention.

    Target(
        "ViT",                                       # the model, unique within its package
        "vit-pytorch",                               # the distribution, as pip names it
        build,                                       # () -> (model, args, kwargs)
        each("b h q k -> b h q k"),                  # the truth, see truth.py
        attends="self",                              # all sites, or a tuple with one for each site
    )

`build` imports the package, makes a small random model and inputs in which batch, heads and lengths
are all different numbers, so that a wrong axis cannot hide. It is called several times with the
same seed and must give the same model each time. What it returns as model is any callable; modules
are put into eval mode.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .truth import Readings, Run, nothing

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "tracing" / "hf"))

SEED = 7


@dataclass(frozen=True)
class Target:
    """One model.

    Attributes:
        truth: from a recorded plain run to the weights of every site in order, each
            (batch, head, query, key), or the readings of it that are right.
        attends: "self", "cross" or None (not clear), for all sites or for each.
        record: further functions whose results the run records, as `module:name`, for packages with
            a softmax of their own. Their positional and keyword arguments are kept too.
        quick: among those that `--quick` runs.
    """

    name: str
    package: str
    build: Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
    truth: Callable[[Run], Sequence[Readings]] = nothing
    attends: str | tuple[str | None, ...] | None = None
    record: tuple[str, ...] = ()
    quick: bool = False

    @property
    def key(self) -> str:
        return f"{self.package}/{self.name}"

    def version(self) -> str | None:
        """The installed version, or None."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def case(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """A fresh model in eval mode, and its arguments."""
        torch.manual_seed(SEED)
        model, args, kwargs = self.build()
        if isinstance(model, nn.Module):
            model.eval()
        return model, args, kwargs


def call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One pass; models that draw numbers draw the same each time."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        return model(*args, **kwargs)


def targets() -> list[Target]:
    """All targets of all files of this folder."""
    members: list[Target] = []
    package = importlib.import_module(__package__)
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        members += getattr(importlib.import_module(f"{__package__}.{module.name}"), "TARGETS", [])
    keys = [target.key for target in members]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"targets with the same name: {', '.join(twice)}")
    return members
