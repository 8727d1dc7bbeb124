"""The weights of one attention of somebody else's model, seen as it runs, in the autograd graph.

| the attention                                  | weights                         | gradients |
|------------------------------------------------|---------------------------------|-----------|
| `F.scaled_dot_product_attention`               | made again from query and key   | yes       |
| a softmax over the last of 4 axes              | that very tensor                | yes       |
| the same of 3 axes, where they are one head's  | that very tensor                | yes       |
| `nn.MultiheadAttention`, encoder layers        | made again from its input       | yes       |
| mechanisms of regard                           | made again from its input       | yes       |
| flash-attention packages, flex, own kernels    | refused by name                 |           |

Under `torch.no_grad()` in the model, as with every tensor made there, no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard import masks
from regard.contract import Mechanism
from regard.errors import ShapeError, UnavailableError
from regard.masks.parts import Band, Mask
from regard.recipe import Dot, Given, Recipe
from regard.reuse.graft_modules import LayerAttention, MechanismAttention, TorchAttention
from regard.reuse.graft_passes import Unchanged
from regard.reuse.graft_sites import inside

#: Made into a recipe when it is asked for, with the size of the batch.
Seen = Callable[[int], Recipe]
_ATTENTIONS = (nn.MultiheadAttention, Mechanism)
_SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax)
_PRODUCT = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention_in(model: nn.Module, path: str) -> str:
    """The path of what is watched to see the attention at a site.

    For `nn.MultiheadAttention` in an encoder layer that is the layer: torch's fast path runs the
    layer without its attention.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    within: list[str] = []
    for name, one in modules.items():
        if isinstance(one, _ATTENTIONS) and _below(name, path) and not inside(name):
            within += [] if any(_below(name, other) for other in within) else [name]
    if len(within) > 1:
        raise UnavailableError(
            f"reads={path!r} holds {len(within)} attentions; name one of "
            f"{', '.join(map(repr, within[:5]))}"
        )
    if not within:
        return path
    parent = within[0].rpartition(".")[0]
    in_layer = isinstance(modules[parent], nn.TransformerEncoderLayer)
    return parent if in_layer else within[0]


def _below(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")


def seen_in(module: nn.Module, place: str, call: Any, args: Any, kwargs: Any) -> tuple[Any, Seen]:
    """Run a module and return its output and the one attention in it."""
    known = _of_module(module, place, args, kwargs)
    if known is not None:
        return call(*args, **kwargs), known
    watching = _Watching(place)
    with watching:
        output = call(*args, **kwargs)
    if len(watching.seen) == 1:
        return output, watching.seen[0]
    if watching.seen:
        raise UnavailableError(
            f"graft: {len(watching.seen)} attentions ran inside '{place}'; name the module of one"
        )
    raise UnavailableError(
        f"graft: no attention was seen inside '{place}': it must call "
        "F.scaled_dot_product_attention or a softmax over the last of 3 or 4 axes, or be an "
        "nn.MultiheadAttention or a mechanism of regard; in transformers load with "
        "attn_implementation='sdpa' or 'eager'"
    )


def _of_module(module: nn.Module, place: str, args: Any, kwargs: Any) -> Seen | None:
    if isinstance(module, nn.TransformerEncoderLayer):
        return LayerAttention(module, place, args, kwargs)
    if isinstance(module, nn.MultiheadAttention):
        return TorchAttention(module, place, args, kwargs)
    if isinstance(module, Mechanism):
        return MechanismAttention(module, place, args, kwargs)
    return None


class _Watching(TorchFunctionMode):
    """Sees the two ways in which attention is written."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.seen: list[Seen] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.seen.append(_Product(self.place, {**dict(zip(_PRODUCT, args)), **kwargs}))
        elif func in _SOFTMAXES and output.dim() in (3, 4):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if axis in (-1, output.dim() - 1):
                self.seen.append(_Matrix(self.place, output))
        return output


class _Product:
    """A call of `F.scaled_dot_product_attention`."""

    def __init__(self, place: str, given: dict[str, Any]) -> None:
        self.given = given
        self.held = {
            name: Unchanged(f"the {name} inside '{place}'", given[name])
            for name in ("query", "key", "attn_mask")
            if given.get(name) is not None
        }

    def __call__(self, batch: int) -> Recipe:
        taken = {name: one.take() for name, one in self.held.items()}
        query, key, added = taken["query"], taken["key"], taken.get("attn_mask")
        if query.dim() != 4:
            raise ShapeError(
                f"an attention of {query.dim()} axes {tuple(query.shape)}, expected (batch, "
                "head, query, width)"
            )
        mask: Mask | None = None
        if self.given.get("is_causal"):  # aligned at the top left; ours at the bottom right
            mask = Band(None, query.shape[2] - key.shape[2])
        bias = None
        if added is not None:
            full = added[(None,) * (4 - added.dim())]  # (batch or 1, head or 1, query or 1, key)
            if full.dtype == torch.bool:
                mask = masks.both(mask, masks.pairs(full))
            else:
                bias = full
        scale = self.given.get("scale")
        scale = query.shape[3] ** -0.5 if scale is None else scale
        return Dot(query, key, mask=mask, bias=bias, scale=scale)


class _Matrix:
    """What a softmax made."""

    def __init__(self, place: str, matrix: Tensor) -> None:
        self.place = place
        self.matrix = Unchanged(f"the softmax inside '{place}'", matrix)

    def __call__(self, batch: int) -> Recipe:
        matrix = self.matrix.take()
        if matrix.dim() == 4:
            return Given(matrix)
        if matrix.shape[0] != batch:
            raise UnavailableError(
                f"graft: the weights inside '{self.place}' are {tuple(matrix.shape)} for a batch "
                f"of {batch}; if its heads share the axis of the batch, their order cannot be "
                "told. Expected (batch, head, query, key), or one head"
            )
        return Given(matrix[:, None])
