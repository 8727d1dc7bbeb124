"""Targets of one function each: the `forward` of a model whose parts serve several of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import EMPTY, Case, Target


def _class(base: type[nn.Module], forward: Callable) -> type[nn.Module]:
    return type(forward.__name__.title().replace("_", ""), (base,), {"forward": forward})


def builder(
    base: type[nn.Module],
    forward: Callable,
    truth: Callable[..., tuple[Tensor | list[Tensor], Tensor]],
    inputs: Callable[[], tuple[Any, ...]],
) -> Callable[[], Case]:
    """`truth` gives the weights and the output from the model and its inputs."""
    kind = _class(base, forward)

    @torch.no_grad()
    def build() -> Case:
        model, args = kind().eval(), inputs()
        weights, expected = truth(model, *args)
        weights = weights if isinstance(weights, list) else [weights]
        return Case(model, args, {}, weights, expected.float())

    return build


def negative(base: type[nn.Module], targets: list[Target], *shape: int) -> Callable:
    """A decorator that adds a negative with one input of this shape."""

    def add(forward: Callable) -> Callable:
        kind = _class(base, forward)

        def build() -> Case:
            return Case(kind().eval(), (torch.randn(shape),))

        targets.append(Target(f"not_{forward.__name__}", "negatives", build, warns=EMPTY))
        return forward

    return add
