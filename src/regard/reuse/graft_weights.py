"""The weights of one attention of somebody else's model, seen as it runs, in the autograd graph.

| the attention                               | weights                         | gradients |
|---------------------------------------------|---------------------------------|-----------|
| `F.scaled_dot_product_attention`            | made again from query and key   | yes       |
| a softmax over the last of 3 or 4 axes      | that very tensor                | yes       |
| `nn.MultiheadAttention`, encoder layers     | made again from its input       | yes       |
| flash-attention packages, flex, own kernels | refused by name                 |           |

Under `torch.no_grad()` in the model, as with every tensor made there, no gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard import masks
from regard.errors import ShapeError, UnavailableError
from regard.masks.parts import Band, Mask
from regard.recipe import Dot, Given, Projected, Recipe
from regard.reuse.graft_passes import Unchanged
from regard.reuse.graft_sites import inside

#: Made into a recipe when it is asked for, with the size of the batch.
Seen = Callable[[int], Recipe]
_SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax)
_PRODUCT = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention_in(model: nn.Module, path: str) -> str:
    """The path of what is watched to see the attention at a site.

    For `nn.MultiheadAttention` in an encoder layer that is the layer: torch's fast path runs the
    layer without its attention.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    within = [
        name
        for name, one in modules.items()
        if isinstance(one, nn.MultiheadAttention) and _below(name, path) and not inside(name)
    ]
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
    if isinstance(module, nn.TransformerEncoderLayer):
        return call(*args, **kwargs), _LayerAttention(module, place, args, kwargs)
    if isinstance(module, nn.MultiheadAttention):
        return call(*args, **kwargs), _TorchAttention(module, place, args, kwargs)
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
        "nn.MultiheadAttention; in transformers load with attn_implementation='sdpa' or 'eager'"
    )


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
        self.query, self.key = Unchanged(place, given["query"]), Unchanged(place, given["key"])

    def __call__(self, batch: int) -> Recipe:
        query, key, added = self.query.take(), self.key.take(), self.given.get("attn_mask")
        if query.dim() != 4:
            raise ShapeError(
                f"graft: an attention of {query.dim()} axes {tuple(query.shape)}, expected (batch, "
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
        self.matrix = Unchanged(place, matrix)

    def __call__(self, batch: int) -> Recipe:
        matrix = self.matrix.take()
        if matrix.dim() == 3:  # one head, or heads that share the axis of the batch
            if matrix.shape[0] % max(batch, 1):
                raise ShapeError(
                    f"graft: weights: axis batch has size {matrix.shape[0]}, expected a multiple "
                    f"of {batch}"
                )
            heads = matrix.shape[0] // max(batch, 1)
            matrix = matrix.unflatten(0, (batch, heads))
        return Given(matrix)


class _TorchAttention:
    """A call of `nn.MultiheadAttention`."""

    def __init__(self, module: nn.MultiheadAttention, place: str, args: Any, kwargs: Any) -> None:
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            raise UnavailableError(
                f"graft: '{place}' has kdim, vdim, add_bias_kv or add_zero_attn, whose weights a "
                "graft cannot make again"
            )
        self.module = module
        bound = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs)
        self.given = bound.arguments

    def __call__(self, batch: int) -> Recipe:
        query, key = self.given["query"], self.given["key"]
        same = key is query
        if query.dim() != 3 or query.is_nested:
            raise UnavailableError(
                "graft: nn.MultiheadAttention was given no batch, or a nested one"
            )
        if not self.module.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        return _projected(
            self.module,
            Projected(
                query,
                self.module.in_proj_weight,
                self.module.in_proj_bias,
                self.module.num_heads,
                key_input=None if same else key,
            ),
            self.given.get("attn_mask"),
            self.given.get("key_padding_mask"),
        )


class _LayerAttention:
    """A call of `nn.TransformerEncoderLayer`, whatever path it takes."""

    def __init__(
        self, layer: nn.TransformerEncoderLayer, place: str, args: Any, kwargs: Any
    ) -> None:
        self.layer, self.place = layer, place
        bound = inspect.signature(nn.TransformerEncoderLayer.forward).bind(layer, *args, **kwargs)
        self.given = bound.arguments

    def __call__(self, batch: int) -> Recipe:
        layer, source = self.layer, self.given["src"]
        if source.dim() != 3 or source.is_nested:
            raise UnavailableError(
                f"graft: '{self.place}' was given no batch, or a nested tensor, as "
                "nn.TransformerEncoder makes of padded batches; build it with "
                "enable_nested_tensor=False"
            )
        attention = layer.self_attn
        source = source if attention.batch_first else source.transpose(0, 1)
        source = layer.norm1(source) if layer.norm_first else source
        made = Projected(
            source, attention.in_proj_weight, attention.in_proj_bias, attention.num_heads
        )
        return _projected(
            attention, made, self.given.get("src_mask"), self.given.get("src_key_padding_mask")
        )


def _projected(
    module: nn.MultiheadAttention, made: Projected, pairs: Tensor | None, padding: Tensor | None
) -> Recipe:
    mask, bias = masks.from_torch(pairs, padding, n_heads=module.num_heads)
    return replace(made.plain(), mask=mask, bias=bias)
