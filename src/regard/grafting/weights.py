"""The weights of one attention of a running model, in the autograd graph.

| the attention                                  | weights                         | gradients |
|------------------------------------------------|---------------------------------|-----------|
| `F.scaled_dot_product_attention`               | recomputed from query and key   | yes       |
| a softmax over the last of 4 axes              | that very tensor                | yes       |
| the same of 3 axes, if there is one head       | that very tensor                | yes       |
| `nn.MultiheadAttention`, encoder layers        | recomputed from its input       | yes       |
| mechanisms of regard                           | recomputed from its input       | yes       |
| flash-attention packages, flex, own kernels    | refused with an error           |           |

Where the model itself runs under `torch.no_grad()`, weights have no gradient.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from regard import masks
from regard.contract import Mechanism
from regard.errors import ShapeError, UnavailableError
from regard.grafting.sites import VersionedTensor, in_graft
from regard.interception import changes
from regard.interception import scaled_dot_product as sdpa
from regard.kernel.attend import checked_bias
from regard.mechanisms.from_recipe import FromRecipe
from regard.recipe import Given, Projected, Recipe

#: Makes the recipe of an attention that ran, for a batch of this size.
Attention = Callable[[int], Recipe]
_SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax)


def attention_path(model: nn.Module, path: str) -> str:
    """The path of the module to watch for the attention at or below `path`.

    For `nn.MultiheadAttention` in an encoder layer that is the layer: torch's fast path runs the
    layer without its attention.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    attentions: list[str] = []
    for name, module in modules.items():
        attends = isinstance(module, nn.MultiheadAttention | Mechanism) and not in_graft(name)
        nested = any(_is_below(name, outer) for outer in attentions)
        if attends and not nested and _is_below(name, path):
            attentions.append(name)
    if len(attentions) > 1:
        raise UnavailableError(
            f"reads={path!r} holds {len(attentions)} attentions; name one of "
            f"{', '.join(map(repr, attentions[:5]))}"
        )
    if not attentions:
        return path
    parent = attentions[0].rpartition(".")[0]
    in_layer = isinstance(modules[parent], nn.TransformerEncoderLayer)
    return parent if in_layer else attentions[0]


def _is_below(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")


def run_attention(
    module: nn.Module, site: str, call: Any, args: Any, kwargs: Any
) -> tuple[Any, Attention]:
    """Run a module and return its output and the one attention in it."""
    for kind, recipe in _RECIPES.items():
        if isinstance(module, kind):
            arguments = _Arguments(kind, site, args, kwargs)
            before = changes()
            output = call(*args, **kwargs)
            _refuse_changed(site, before)
            return output, functools.partial(recipe, module, site, arguments)
    mode = _AttentionMode(site)
    with mode:
        output = call(*args, **kwargs)
    if len(mode.attentions) == 1:
        return output, mode.attentions[0]
    if mode.attentions:
        raise UnavailableError(
            f"graft: {len(mode.attentions)} attentions ran inside '{site}'; name the module of one"
        )
    raise UnavailableError(
        f"graft: no attention was seen inside '{site}': it must call "
        "F.scaled_dot_product_attention or a softmax over the last of 3 or 4 axes, or be an "
        "nn.MultiheadAttention or a mechanism of regard; in transformers load with "
        "attn_implementation='sdpa' or 'eager'"
    )


class _AttentionMode(TorchFunctionMode):
    """Keeps the attentions that are computed by the fused function or by a softmax."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site
        self.attentions: list[Attention] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = changes()
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            _refuse_changed(self.site, before)
            arguments = {**dict(zip(sdpa.ARGUMENTS, args)), **kwargs}
            tensors = {
                name: VersionedTensor(f"the {name} inside '{self.site}'", arguments[name])
                for name in ("query", "key", "attn_mask")
                if arguments.get(name) is not None
            }
            self.attentions.append(functools.partial(_fused_recipe, arguments, tensors))
        elif func in _SOFTMAXES and output.dim() in (3, 4):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if axis in (-1, output.dim() - 1):
                weights = VersionedTensor(f"the softmax inside '{self.site}'", output)
                self.attentions.append(functools.partial(_softmax_recipe, self.site, weights))
        return output


def _refuse_changed(site: str, before: int) -> None:
    """Raise if `regard.edit` changed an attention whose weights are computed again here."""
    if not torch.compiler.is_compiling() and changes() != before:
        raise UnavailableError(
            f"graft: regard.edit changes the attention inside '{site}', whose weights a graft "
            "computes again from query and key; in transformers load with "
            "attn_implementation='eager', or leave the site out with where="
        )


def _fused_recipe(
    arguments: dict[str, Any], tensors: dict[str, VersionedTensor], batch: int
) -> Recipe:
    unchanged = {name: tensor.take() for name, tensor in tensors.items()}
    query = unchanged["query"]
    if query.dim() != 4:
        raise ShapeError(
            f"an attention of {query.dim()} axes {tuple(query.shape)}, expected (batch, head, "
            "query, width)"
        )
    return sdpa.scaled_dot_product({**arguments, **unchanged})


def _softmax_recipe(site: str, tensor: VersionedTensor, batch: int) -> Recipe:
    weights = tensor.take()
    if weights.dim() == 4:
        return Given(weights)
    if weights.shape[0] != batch:
        raise UnavailableError(
            f"graft: the weights inside '{site}' are {tuple(weights.shape)} for a batch of "
            f"{batch}; if heads and batch share an axis, their order cannot be told. Expected "
            "(batch, head, query, key), or one head"
        )
    return Given(weights[:, None])


class _Arguments:
    """The arguments of a module's call, by name; in-place changes of a tensor are an error."""

    def __init__(self, kind: type[nn.Module], site: str, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(kind.forward).bind(None, *args, **kwargs)
        self.values = {name: value for name, value in bound.arguments.items() if name != "self"}
        self.tensors = [
            VersionedTensor(f"the input {name} of '{site}'", value)
            for name, value in self.values.items()
            if isinstance(value, Tensor)
        ]

    def take(self) -> dict[str, Any]:
        for tensor in self.tensors:
            tensor.take()
        return self.values


def _layer_recipe(
    layer: nn.TransformerEncoderLayer, site: str, arguments: _Arguments, batch: int
) -> Recipe:
    """Of an encoder layer, whatever path it takes."""
    values = arguments.take()
    source = _batch_first(values["src"], layer.self_attn, site)
    source = layer.norm1(source) if layer.norm_first else source
    padding = values.get("src_key_padding_mask")
    return _projected(layer.self_attn, site, source, None, values.get("src_mask"), padding)


def _torch_recipe(
    module: nn.MultiheadAttention, site: str, arguments: _Arguments, batch: int
) -> Recipe:
    values = arguments.take()
    query, key = values["query"], values["key"]
    other = None if key is query else _batch_first(key, module, site)
    query = _batch_first(query, module, site)
    padding = values.get("key_padding_mask")
    return _projected(module, site, query, other, values.get("attn_mask"), padding)


def _batch_first(tensor: Tensor, module: nn.MultiheadAttention, site: str) -> Tensor:
    if tensor.dim() != 3 or tensor.is_nested:
        raise UnavailableError(
            f"graft: '{site}' was called without a batch, or with a nested tensor, as "
            "nn.TransformerEncoder makes of padded batches; build it with "
            "enable_nested_tensor=False"
        )
    return tensor if module.batch_first else tensor.transpose(0, 1)


def _projected(
    module: nn.MultiheadAttention,
    site: str,
    query: Tensor,
    key: Tensor | None,
    pairs: Tensor | None,
    padding: Tensor | None,
) -> Recipe:
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise UnavailableError(
            f"graft: '{site}' has kdim, vdim, add_bias_kv or add_zero_attn, whose weights a "
            "graft cannot recompute"
        )
    heads = module.num_heads
    recipe = Projected(query, module.in_proj_weight, module.in_proj_bias, heads, key_input=key)
    mask, bias = masks.from_torch(pairs, padding, n_heads=heads)
    return replace(recipe.plain(), mask=mask, bias=bias)


def _mechanism_recipe(mechanism: Mechanism, site: str, arguments: _Arguments, batch: int) -> Recipe:
    if not isinstance(mechanism, FromRecipe):
        raise UnavailableError(
            f"graft: '{site}' is a {type(mechanism).__name__}, which does not say how its "
            "weights are made; expected a mechanism of regard"
        )
    for module in mechanism.modules():
        random = isinstance(module, nn.Dropout) and module.p > 0
        if module.training and (random or isinstance(module, _NormBase)):
            raise UnavailableError(
                f"graft: '{site}' makes its weights with a {type(module).__name__}, which differs "
                "from call to call in train mode, so they cannot be recomputed"
            )
    values = arguments.take()
    state = values.get("state")
    inputs = mechanism.gather(
        values["query"],
        values.get("key"),
        values.get("value"),
        mask=values.get("mask"),
        causal=values.get("causal", False),
        state=None if isinstance(state, bool) else state,
    )
    bias = values.get("bias")
    return mechanism.recipe(inputs, None if bias is None else checked_bias(bias, inputs.shape))


_RECIPES: dict[type[nn.Module], Callable[..., Recipe]] = {
    nn.TransformerEncoderLayer: _layer_recipe,
    nn.MultiheadAttention: _torch_recipe,
    Mechanism: _mechanism_recipe,
}
