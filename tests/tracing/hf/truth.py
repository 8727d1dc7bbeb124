"""What a transformers model itself says its attention weights are.

With `attn_implementation="eager"` the attention modules return their weights beside their output.
A hook on each takes them, with the name of the module, wherever the model would drop them.
"""

from __future__ import annotations

import inspect
import re

import torch
from torch import Tensor, nn

_ATTENTIVE = re.compile("attention|attn", re.IGNORECASE)


def eager_weights(model: nn.Module, given: dict) -> list[tuple[str, Tensor]]:
    """The weights (…, query, key) of a run, in order, each under its innermost module."""
    return eager_run(model, given)[0]


def eager_run(model: nn.Module, given: dict) -> tuple[list[tuple[str, Tensor]], object]:
    """The same, and what the model returned.

    Only what can be weights counts: three to five axes, nothing negative, no row above 1. (A row
    may stay below: attention sinks take a share.) Raw scores that a model returns as its attention
    are thereby left out.
    """
    found: list[tuple[str, Tensor]] = []
    seen: set[int] = set()

    def hook(name: str):
        def take(module, args, output):
            parts = output if isinstance(output, (tuple, list)) else [output]
            if len(parts) < 2:
                return
            for part in parts[1:]:
                if isinstance(part, Tensor) and id(part) not in seen and plausible(part):
                    seen.add(id(part))
                    found.append((name, part))  # kept: an id stays taken as long as its tensor

        return take

    handles = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if _ATTENTIVE.search(type(module).__name__) and not _other(module)
    ]
    try:
        with torch.no_grad():
            output = model(**given, **wants_attentions(model))
    finally:
        for handle in handles:
            handle.remove()
    rest = [("", weights) for weights in _attentions(output) if plausible(weights)]
    return found or rest, output


def _other(module: nn.Module) -> bool:
    """torch's own module gives a mean over heads; deformable attention looks at no key: a gate."""
    return isinstance(module, nn.MultiheadAttention) or "MultiscaleDeformable" in (
        type(module).__name__
    )


def wants_attentions(model: nn.Module) -> dict[str, bool]:
    parameters = inspect.signature(model.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"output_attentions": True} if "output_attentions" in parameters or open_ended else {}


def plausible(weights: Tensor) -> bool:
    """Could these be attention weights?"""
    if weights.ndim not in (3, 4, 5) or not weights.is_floating_point() or weights.numel() == 0:
        return False
    if weights.shape[-1] < 2:
        return False
    sums = weights.float().sum(-1)
    return bool((weights >= 0).all() and (sums <= 1 + 1e-3).all() and sums.max() > 0.05)


def _attentions(output) -> list[Tensor]:
    """Every tensor under a key of `output` whose name has "attentions" in it."""
    found: list[Tensor] = []

    def gather(value):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            for part in value:
                gather(part)

    def walk(value):
        if hasattr(value, "items"):
            for key, part in value.items():
                if "attentions" in key:
                    gather(part)
                else:
                    walk(part)

    walk(output)
    return found
