"""Where the heads of one attention lie in its parameters; or why that cannot be told.

Everything in the module has to be accounted for: parameters, buffers, numbers that its code uses,
arguments that it may be handed. What is not known by name is not cut.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from regard.aggregate.pruned_attention import PrunedMultiheadAttention
from regard.anatomy.attribute_names import (
    ALL_HEADS_WIDTHS,
    GROUP_COUNTS,
    GROUP_SIZES,
    HEAD_COUNTS,
    HEAD_WIDTHS,
    KEY,
    QUERY,
    SHORT_HEAD_COUNTS,
    VALUE,
)
from regard.anatomy.head_sites import HeadSite, is_conv1d, out_features, projection_named

_LOCAL_WIDTHS = {  # what people call the width of the model when they take it from an input
    "embed_dim", "embedding_dim", "hidden_size", "hidden_dim", "num_channels", "n_channels",
    "channels", "dim", "width", "d_model", "C", "c", "D", "E", "d", "e",
}  # fmt: skip
_PLACE = re.compile("idx|index|layer")  # numbers that say where a module is
_BY_HEAD = re.compile("bias|alibi|rel_pos|head_mask")  # arguments that may have an axis of heads


@dataclass
class Rows:
    """Heads or groups that lie along an axis of a parameter, `width` features each, in one or
    several blocks of equal size."""

    module: nn.Module
    name: str
    axis: int
    width: int
    of_groups: bool = False
    blocks: int = 1

    @property
    def parameter(self) -> Tensor:
        found: Tensor = getattr(self.module, self.name)
        return found

    def cut(self, kept: Sequence[int]) -> nn.Parameter:
        """The parameter with some heads only."""
        old = self.parameter
        block = old.shape[self.axis] // self.blocks
        places = [
            start * block + one * self.width + place
            for start in range(self.blocks)
            for one in kept
            for place in range(self.width)
        ]
        index = torch.tensor(places, device=old.device)
        new = old.detach().index_select(self.axis, index)
        return nn.Parameter(new, requires_grad=old.requires_grad)


@dataclass
class Parts:
    """Where the heads of one attention lie."""

    groups: int
    width: int
    rows: list[Rows]


def _torch_parts(site: HeadSite) -> Parts | str:
    module = site.attention
    if type(module) not in (nn.MultiheadAttention, PrunedMultiheadAttention):
        return f"{type(module).__name__} is a subclass of nn.MultiheadAttention"
    width = site.head_width
    rows = [Rows(module, "in_proj_weight", 0, width, blocks=3)]
    if module.in_proj_weight is None:
        rows = [Rows(module, f"{one}_proj_weight", 0, width) for one in "qkv"]
    if module.in_proj_bias is not None:
        rows.append(Rows(module, "in_proj_bias", 0, width, blocks=3))
    if module.bias_k is not None:
        rows += [Rows(module, "bias_k", 2, width), Rows(module, "bias_v", 2, width)]
    return Parts(site.n_heads, width, rows)


def parts_of(site: HeadSite) -> Parts | str:
    """Where the heads lie; or why that is not known."""
    module = site.attention
    if site.in_torch:
        return _torch_parts(site)
    if getattr(module, "score_function", None) is not None:
        return "its score function is told the number of the head"
    if getattr(module, "has_relative_attention_bias", False):
        return "it makes the position bias of every layer"
    found = _packed_parts(site) if "c_attn" in module._modules else _separate_parts(site)
    if isinstance(found, str):
        return found
    return _odd_tensor(site, found) or _odd_number(site, found) or _odd_argument(module) or found


def _odd_tensor(site: HeadSite, found: Parts) -> str:
    """A parameter or buffer of which it is not known how it belongs to heads; sinks are taken."""
    module, heads = site.attention, site.n_heads
    known = {id(row.parameter) for row in found.rows}
    known |= {id(parameter) for parameter in site.projection.parameters()}
    widths = {found.width, site.head_width}
    for name, parameter in module.named_parameters():
        of_one_head = "norm" in name and parameter.numel() in widths
        if id(parameter) in known or of_one_head or name.startswith("LayerNorm."):
            continue
        if name == "sinks" and parameter.shape == (heads,):
            found.rows.append(Rows(module, "sinks", 0, 1))
            continue
        return f"it is not known how {name} {tuple(parameter.shape)} belongs to heads"
    wide = {heads, heads * found.width, heads * site.head_width} - {1}
    for name, buffer in module.named_buffers():
        if wide & set(buffer.shape):
            return f"it is not known whether {name} {tuple(buffer.shape)} belongs to heads"
    return ""


def _odd_number(site: HeadSite, found: Parts) -> str:
    """A number that follows from the heads, is used by the module's code, and is not one we know.

    Such as a width of the model that heads are reshaped to, or a count in the configuration.
    """
    module, heads, groups = site.attention, site.n_heads, found.groups
    used, local = _names_used(type(module))
    if local & _LOCAL_WIDTHS:
        return f"its code uses {min(local & _LOCAL_WIDTHS)}, which may be the width of all heads"
    shape = (heads, groups, found.width)
    known = {name for name, _ in numbers(module, shape, shape)}
    known |= {
        name for name in HEAD_WIDTHS if getattr(module, name, 0) in (found.width, site.head_width)
    }
    follow = {heads, groups, heads * found.width, heads * site.head_width} - {1}
    for name, number in vars(module).items():
        if _PLACE.search(name):
            continue
        if type(number) is int and number in follow and name in used - known:
            return f"its code uses {name}={number}, which may follow from the heads"
    elsewhere = used & {*HEAD_COUNTS, *GROUP_COUNTS} - known
    if elsewhere - vars(module).keys() or not used & (known | {*HEAD_COUNTS, *HEAD_WIDTHS}):
        return "its code takes the number of heads from elsewhere"
    return ""


def _names_used(kind: type) -> tuple[set[str], set[str]]:
    """Names of attributes, and of variables, in `forward` and the methods that it names."""
    methods: dict[str, Any] = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(nn.Module)]):
        methods.update(vars(base))
    used: set[str] = set()
    local: set[str] = set()
    waiting: list[Any] = [methods.pop("forward", None)]
    while waiting:
        function = waiting.pop()
        code = getattr(inspect.unwrap(function), "__code__", function)
        if isinstance(code, CodeType):
            used.update(code.co_names)
            local.update(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
            waiting += code.co_consts  # functions inside functions
            waiting += [methods.pop(name) for name in code.co_names if name in methods]
    return used, local


def _odd_argument(module: nn.Module) -> str:
    """Something with an axis of heads that the module may be handed."""
    if type(module).__module__.startswith("regard."):
        return ""
    for name in inspect.signature(module.forward).parameters:
        ours = name == "position_bias" and takes_bias(module)
        if _BY_HEAD.search(name) and not ours:
            return f"its argument {name!r} may be given for every head"
    return ""


def takes_bias(module: nn.Module) -> bool:
    """Whether this is an attention of T5 that takes the position bias of another layer."""
    return getattr(module, "has_relative_attention_bias", None) is False


def _separate_parts(site: HeadSite) -> Parts | str:
    module, heads = site.attention, site.n_heads
    query, key, value = (projection_named(module, names) for names in (QUERY, KEY, VALUE))
    if query is None or key is None or value is None:
        return "queries, keys and values are not projected one by one"
    for linear in (query, key, value, site.projection):
        if not _is_plain(linear):
            return f"{type(linear).__name__} is not a plain linear layer"
    made = [out_features(linear) for linear in (query, key, value)]
    width, value_width = made[0] // heads, site.head_width
    groups = made[1] // width if width else 0
    if made != [heads * width, groups * width, groups * value_width] or heads % max(groups, 1):
        return f"{made} features of queries, keys and values do not fit {heads} heads"
    rows = [*_linear_rows(query, width), *_linear_rows(key, width, of_groups=True)]
    rows += _linear_rows(value, value_width, of_groups=True)
    return Parts(groups, width, rows)


def _packed_parts(site: HeadSite) -> Parts | str:
    """GPT-2: queries, keys and values one after the other; queries apart in cross-attention."""
    module, heads = site.attention, site.n_heads
    packed, apart = module._modules["c_attn"], module._modules.get("q_attn")
    if packed is None or not is_conv1d(packed) or not is_conv1d(site.projection):
        return "the order in which queries, keys and values are packed is not known"
    blocks = 3 if apart is None else 2
    width = site.head_width
    if out_features(packed) != blocks * heads * width:
        return f"{out_features(packed)} packed features do not fit {heads} heads"
    rows = _linear_rows(packed, width, blocks=blocks)
    if apart is not None:
        rows += _linear_rows(apart, width)
    return Parts(heads, width, rows)


def _linear_rows(linear: nn.Module, width: int, **more: Any) -> list[Rows]:
    """The places of heads in what a linear layer makes."""
    rows = [Rows(linear, "weight", 1 if is_conv1d(linear) else 0, width, **more)]
    if linear._parameters.get("bias") is not None:
        rows.append(Rows(linear, "bias", 0, width, **more))
    return rows


def _is_plain(linear: nn.Module) -> bool:
    return type(linear) is nn.Linear or is_conv1d(linear)


def numbers(module: nn.Module, old: Sequence[int], new: Sequence[int]) -> list[tuple[str, int]]:
    """What a module keeps of its heads, groups and their features, and what that becomes.

    `old` and `new` are the number of heads, of groups, and the features of one head.
    """
    (heads, groups, width), (heads_now, groups_now, _) = old, new
    known = {
        **dict.fromkeys((*HEAD_COUNTS, *SHORT_HEAD_COUNTS), (heads, heads_now)),
        **dict.fromkeys(GROUP_COUNTS, (groups, groups_now)),
        **dict.fromkeys(GROUP_SIZES, (heads // groups, heads_now // groups_now)),
        **dict.fromkeys(ALL_HEADS_WIDTHS, (heads * width, heads_now * width)),
    }
    return [
        (name, now)
        for name, (before, now) in known.items()
        if type(getattr(module, name, None)) is int and getattr(module, name) == before
    ]
