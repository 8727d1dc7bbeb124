"""Where the heads of one attention lie in its parameters; or why that is unknown.

Every parameter and buffer has to be accounted for. Whether the module's code has the number of
heads from anywhere else is seen when the model runs without them: `regard.prune` compares outputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.anatomy.attribute_names import (
    ALL_HEADS_WIDTHS,
    GROUP_COUNTS,
    GROUP_SIZES,
    HEAD_COUNTS,
    KEY,
    QUERY,
    SHORT_HEAD_COUNTS,
    VALUE,
)
from regard.anatomy.head_sites import HeadSite, is_conv1d, out_features, projection_named
from regard.heads.pruned_attention import PrunedMultiheadAttention

_BY_HEAD = re.compile("bias|alibi|rel_pos|head_mask")  # arguments that may have a head axis


@dataclass
class HeadAxis:
    """A parameter along one axis of which heads (or groups) lie, `width` features each.

    `blocks` of equal size may follow each other: queries, keys and values in one parameter.
    """

    module: nn.Module
    name: str
    axis: int
    width: int
    of_groups: bool = False
    blocks: int = 1

    @property
    def parameter(self) -> Tensor:
        parameter: Tensor = getattr(self.module, self.name)
        return parameter

    def cut(self, kept: Sequence[int]) -> nn.Parameter:
        """The parameter with these heads only."""
        old = self.parameter
        block = old.shape[self.axis] // self.blocks
        entries = [
            start * block + head * self.width + feature
            for start in range(self.blocks)
            for head in kept
            for feature in range(self.width)
        ]
        index = torch.tensor(entries, device=old.device)
        new = old.detach().index_select(self.axis, index)
        return nn.Parameter(new, requires_grad=old.requires_grad)


@dataclass
class HeadParameters:
    """Where the heads of one attention lie."""

    groups: int  #: of heads that share keys and values
    width: int  #: features of one head's query
    axes: list[HeadAxis]


def head_parameters(site: HeadSite) -> HeadParameters | str:
    """Where the heads lie; or why that is unknown."""
    module = site.attention
    if site.in_torch:
        return _in_torch(site)
    if getattr(module, "score_function", None) is not None:
        return "its score function is told the number of the head"
    if getattr(module, "has_relative_attention_bias", False):
        return "it makes the position bias of every layer"
    parameters = _packed(site) if "c_attn" in module._modules else _separate(site)
    if isinstance(parameters, str):
        return parameters
    return _unknown_tensor(site, parameters) or _head_argument(module) or parameters


def _in_torch(site: HeadSite) -> HeadParameters | str:
    module = site.attention
    if type(module) not in (nn.MultiheadAttention, PrunedMultiheadAttention):
        return f"{type(module).__name__} is a subclass of nn.MultiheadAttention"
    width = site.head_width
    axes = [HeadAxis(module, "in_proj_weight", 0, width, blocks=3)]
    if module.in_proj_weight is None:
        axes = [HeadAxis(module, f"{letter}_proj_weight", 0, width) for letter in "qkv"]
    if module.in_proj_bias is not None:
        axes.append(HeadAxis(module, "in_proj_bias", 0, width, blocks=3))
    if module.bias_k is not None:
        axes += [HeadAxis(module, "bias_k", 2, width), HeadAxis(module, "bias_v", 2, width)]
    return HeadParameters(site.n_heads, width, axes)


def _separate(site: HeadSite) -> HeadParameters | str:
    module, heads = site.attention, site.n_heads
    query, key, value = (projection_named(module, names) for names in (QUERY, KEY, VALUE))
    if query is None or key is None or value is None:
        return "queries, keys and values are not projected one by one"
    for linear in (query, key, value, site.projection):
        if type(linear) is not nn.Linear and not is_conv1d(linear):
            return f"{type(linear).__name__} is not a plain linear layer"
    features = [out_features(linear) for linear in (query, key, value)]
    width, value_width = features[0] // heads, site.head_width
    groups = features[1] // width if width else 0
    if features != [heads * width, groups * width, groups * value_width] or heads % max(groups, 1):
        return f"{features} features of queries, keys and values do not fit {heads} heads"
    axes = [*_linear_axes(query, width), *_linear_axes(key, width, of_groups=True)]
    axes += _linear_axes(value, value_width, of_groups=True)
    return HeadParameters(groups, width, axes)


def _packed(site: HeadSite) -> HeadParameters | str:
    """GPT-2: queries, keys and values one after the other; queries apart in cross-attention."""
    module, heads = site.attention, site.n_heads
    packed, query = module._modules["c_attn"], module._modules.get("q_attn")
    if packed is None or not is_conv1d(packed) or not is_conv1d(site.projection):
        return "the order in which queries, keys and values are packed is unknown"
    blocks = 3 if query is None else 2
    width = site.head_width
    if out_features(packed) != blocks * heads * width:
        return f"{out_features(packed)} packed features do not fit {heads} heads"
    axes = _linear_axes(packed, width, blocks=blocks)
    if query is not None:
        axes += _linear_axes(query, width)
    return HeadParameters(heads, width, axes)


def _linear_axes(linear: nn.Module, width: int, **more: Any) -> list[HeadAxis]:
    """Heads in what a linear layer gives."""
    axes = [HeadAxis(linear, "weight", 1 if is_conv1d(linear) else 0, width, **more)]
    if linear._parameters.get("bias") is not None:
        axes.append(HeadAxis(linear, "bias", 0, width, **more))
    return axes


def _unknown_tensor(site: HeadSite, parameters: HeadParameters) -> str:
    """A parameter or buffer that may belong to heads in an unknown way; sinks are added."""
    module, heads = site.attention, site.n_heads
    accounted = {id(axis.parameter) for axis in parameters.axes}
    accounted |= {id(parameter) for parameter in site.projection.parameters()}
    widths = {parameters.width, site.head_width}
    for name, parameter in module.named_parameters():
        of_each_head = "norm" in name and parameter.numel() in widths
        if id(parameter) in accounted or of_each_head or name.startswith("LayerNorm."):
            continue
        if name == "sinks" and parameter.shape == (heads,):
            parameters.axes.append(HeadAxis(module, "sinks", 0, 1))
            continue
        return f"it is not known how {name} {tuple(parameter.shape)} belongs to heads"
    sizes = {heads, heads * parameters.width, heads * site.head_width} - {1}
    for name, buffer in module.named_buffers():
        if sizes & set(buffer.shape):
            return f"it is not known whether {name} {tuple(buffer.shape)} belongs to heads"
    return ""


def _head_argument(module: nn.Module) -> str:
    """An argument of the module that may have a head axis."""
    if type(module).__module__.startswith("regard."):
        return ""
    for name in inspect.signature(module.forward).parameters:
        adapted = name == "position_bias" and takes_bias(module)
        if _BY_HEAD.search(name) and not adapted:
            return f"its argument {name!r} may be given for every head"
    return ""


def takes_bias(module: nn.Module) -> bool:
    """Whether this is an attention of T5 that takes the position bias of another layer."""
    return getattr(module, "has_relative_attention_bias", None) is False


def head_numbers(
    module: nn.Module, old: Sequence[int], new: Sequence[int]
) -> list[tuple[str, int]]:
    """Attributes that count heads, groups and their features, and their new values.

    `old` and `new` are the number of heads, of groups, and the features of one head.
    """
    (heads, groups, width), (heads_now, groups_now, _) = old, new
    values = {
        **dict.fromkeys((*HEAD_COUNTS, *SHORT_HEAD_COUNTS), (heads, heads_now)),
        **dict.fromkeys(GROUP_COUNTS, (groups, groups_now)),
        **dict.fromkeys(GROUP_SIZES, (heads // groups, heads_now // groups_now)),
        **dict.fromkeys(ALL_HEADS_WIDTHS, (heads * width, heads_now * width)),
    }
    return [
        (name, now)
        for name, (before, now) in values.items()
        if type(getattr(module, name, None)) is int and getattr(module, name) == before
    ]
