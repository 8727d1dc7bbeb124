"""Models whose attention is known without regard: what capture has to find, and what it must not.

Each module of this package is a group and has a list `TARGETS`. A truth is computed from the
parameters of the model by slow formulas, in float64 (`dense.py`), and never by running regard.
A class of `formulas.py` has its truth and its inputs beside its `forward`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor

#: Of every run of a model: truths that need the dropout of a run draw it from the same seed.
SEED = 1234

#: Half a step of bfloat16 just below 1: what a weight loses when a model casts it to bfloat16.
BFLOAT16 = 2.0**-9


@dataclass(frozen=True)
class Case:
    """A model, its input, and the truth."""

    model: Any
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    truth: list[Tensor] = field(default_factory=list)
    """(batch, head, query, key) of every site in order of happening, before dropout."""
    expected: Any = None
    """The output that follows from the truth, where formulas give it: shows the truth is right."""
    tolerance: float = 1e-5
    """Of the weights. Larger than 1e-5 only where the model itself rounds to bfloat16."""
    call: Callable[["Case"], Any] | None = None
    """How to run the model, where that is not `model(*args, **kwargs)`."""
    attends: list[str] | None = None
    """"self" or "cross" of every site, where that is to be checked."""

    def run(self) -> Any:
        torch.manual_seed(SEED)
        if self.call is not None:
            return self.call(self)
        return self.model(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Target:
    """A case that can be built again and again, each time the same."""

    name: str
    group: str
    build: Callable[[], Case]
    compiled: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What must surround building and running, such as a process group."""
    warns: tuple[str, ...] = ()
    """Filters for what torch says about itself, as pytest writes them."""

    def case(self) -> Case:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build()


@cache
def _groups() -> tuple[Target, ...]:
    """The targets of every module in this package: a new group is found, not listed."""
    found: list[Target] = []
    for module in sorted(iter_modules(__path__), key=lambda module: module.name):
        found += getattr(import_module(f"{__name__}.{module.name}"), "TARGETS", [])
    names = [target.name for target in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"names must be unique: {sorted(twice)}"
    return tuple(found)


#: What capture says when there is nothing: it is never silent about it.
EMPTY = ("ignore:regard.capture. no attention:UserWarning",)


_APART = ("negatives", "gaps", "unknown")


def targets() -> list[Target]:
    """Targets with attention."""
    return [target for target in _groups() if target.group not in _APART]


def negatives() -> list[Target]:
    """Targets that have a softmax or a product, and no attention: nothing may be recorded."""
    return [target for target in _groups() if target.group == "negatives"]


def gaps() -> list[Target]:
    """Targets whose attention is known to be missed. One that starts to be found fails."""
    return [target for target in _groups() if target.group == "gaps"]


def unknown() -> list[Target]:
    """Targets of which capture cannot tell which axis is which, and says so."""
    return [target for target in _groups() if target.group == "unknown"]
