"""Models that have their truth beside them: a method of slow formulas, run on a float64 copy."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from . import Case, Target


class Model(nn.Module, ABC):
    """`forward` is the spelling under test; `truth` never calls it."""

    attends: str | tuple[str, ...] | None = None
    """The label of every site (or of each), where it is to be checked."""
    group: str | None = None
    """"gaps" where it is known to be missed, "unknown" where its axes cannot be told."""
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    @staticmethod
    @abstractmethod
    def inputs() -> tuple[Any, ...]:
        """What the model is called with."""

    @abstractmethod
    def truth(self, *args: Any) -> tuple[list[Tensor], Any]:
        """Weights (batch, head, query, key) of every site, and the output that follows."""


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def target(kind: type[Model], group: str) -> Target:
    """Named after the group and the class."""

    @torch.no_grad()
    def build() -> Case:
        model, args = kind().eval(), kind.inputs()
        exact = deepcopy(model).double()
        weights, output = exact.truth(*tree_map_only(Tensor, _double, args))
        expected = tree_map_only(Tensor, Tensor.float, output)
        labels = kind.attends
        if labels is not None:
            labels = [labels] * len(weights) if isinstance(labels, str) else list(labels)
        return Case(model, args, {}, weights, expected, attends=labels)

    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
    return Target(f"{group}_{name}", kind.group or group, build, around=kind.around)
