"""What has to change in a module for some of its heads to be gone.

A head is rows of the projections of queries, keys and values, and columns of that of the output.
Where keys and values are shared by groups of heads, the groups that are left must be of one size.
A cut is only planned where every parameter of the attention is accounted for. Elsewhere, and for
heads that a group cannot lose, the columns of the output projection are set to 0.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from regard.aggregate.pruned_attention import PrunedMultiheadAttention
from regard.aggregate.sites import (
    COUNTS,
    KEY,
    QUERY,
    VALUE,
    WIDTHS,
    HeadSite,
    child,
    is_conv1d,
    weight_of,
)

_GROUP_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_groups", "n_head_kv")
_GROUP_SIZES = ("num_key_value_groups", "n_rep", "num_groups")
_ALL_WIDTHS = ("all_head_size", "inner_dim", "split_size")
_LOCAL_WIDTHS = {  # what people call the width of the model when they take it from an input
    "embed_dim", "embedding_dim", "hidden_size", "hidden_dim", "num_channels", "n_channels",
    "channels", "dim", "width", "d_model", "C", "c", "D", "E", "d", "e",
}  # fmt: skip
_PLACE = re.compile("idx|index|layer")  # numbers that say where a module is
_BY_HEAD = re.compile("bias|alibi|rel_pos|head_mask")  # arguments that may have an axis of heads


@dataclass
class Cut:
    """What becomes of some heads of one attention; `apply` does it, `undo` takes it back."""

    site: HeadSite
    removed: list[int]
    masked: list[int]
    why: str = ""  #: why heads are masked that should have been removed
    changes: list[tuple[Any, str, Any]] = field(default_factory=list)  # object, attribute, value
    hooks: list[Callable[[], Any]] = field(default_factory=list)  # what registers them
    _undo: list[Callable[[], Any]] = field(default_factory=list)

    def apply(self) -> None:
        for thing, name, value in self.changes:
            self._undo.append(_putting_back(thing, name))
            setattr(thing, name, value)
        for register in self.hooks:
            self._undo.append(register().remove)
        if self.masked and not self.removed:
            self._mask_in_place()

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    @torch.no_grad()
    def _mask_in_place(self) -> None:
        weight, axis = weight_of(self.site)
        columns = torch.tensor(self.site.columns(self.masked), device=weight.device)
        before = weight.index_select(axis, columns)

        def put_back() -> None:
            with torch.no_grad():
                weight.index_copy_(axis, columns, before)

        weight.index_fill_(axis, columns, 0.0)
        self._undo.append(put_back)


def _putting_back(thing: Any, name: str) -> Callable[[], None]:
    if not hasattr(thing, name):
        return lambda: delattr(thing, name)
    before = getattr(thing, name)
    return lambda: setattr(thing, name, before)


def plan(site: HeadSite, heads: Sequence[int], remove: bool) -> Cut:
    """How these heads go: removed where that is possible, else masked."""
    weight_of(site)  # both ways need it
    if not remove:
        return Cut(site, [], list(heads))
    parts = _torch_parts(site) if site.in_torch else _parts(site)
    if isinstance(parts, str):
        return Cut(site, [], list(heads), parts)
    removed, groups_left = _removable(heads, site.n_heads, parts.groups)
    if not removed:
        return Cut(site, [], list(heads), _why_kept(site, parts))
    masked = [head for head in heads if head not in removed]
    cut = Cut(site, removed, masked)
    if masked:
        cut.why = _why_kept(site, parts)
    kept = [head for head in range(site.n_heads) if head not in removed]
    _cut_projections(cut, parts, kept, groups_left)
    if site.in_torch:
        _become_pruned(cut, kept)
    else:
        _adapt(cut, parts, kept, groups_left)
    return cut


def _why_kept(site: HeadSite, parts: _Parts) -> str:
    if parts.groups < site.n_heads:
        return "groups of heads that share keys and values stay of one size, and one head stays"
    return "an attention keeps one head"


@dataclass
class _Rows:
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
class _Parts:
    """Where the heads of one attention lie."""

    groups: int
    width: int
    rows: list[_Rows]


def _removable(heads: Sequence[int], count: int, groups: int) -> tuple[list[int], list[int]]:
    """Which of these heads can be cut out, and which groups are left.

    Groups that lose all heads go. The others go down to the size of the largest that is left.
    One head stays in any case.
    """
    size = count // groups
    lost = {g: [h for h in heads if h // size == g] for g in range(groups)}
    left = [g for g in range(groups) if len(lost[g]) < size]
    if not left:
        left, lost[0] = [0], lost[0][1:]
    spared = max(size - len(lost[g]) for g in left)
    removed = [h for g in range(groups) if g not in left for h in range(g * size, (g + 1) * size)]
    for g in left:
        removed += lost[g][len(lost[g]) - (size - spared) :] if size > spared else []
    return sorted(removed), left


def _torch_parts(site: HeadSite) -> _Parts | str:
    module = site.attention
    if type(module) not in (nn.MultiheadAttention, PrunedMultiheadAttention):
        return f"{type(module).__name__} is a subclass of nn.MultiheadAttention"
    width = site.head_width
    rows = [_Rows(module, "in_proj_weight", 0, width, blocks=3)]
    if module.in_proj_weight is None:
        rows = [_Rows(module, f"{one}_proj_weight", 0, width) for one in "qkv"]
    if module.in_proj_bias is not None:
        rows.append(_Rows(module, "in_proj_bias", 0, width, blocks=3))
    if module.bias_k is not None:
        rows += [_Rows(module, "bias_k", 2, width), _Rows(module, "bias_v", 2, width)]
    return _Parts(site.n_heads, width, rows)


def _parts(site: HeadSite) -> _Parts | str:
    """Where the heads lie; or why that is not known."""
    module = site.attention
    if getattr(module, "has_relative_attention_bias", False):
        return "it makes the position bias of every layer"
    found = _packed_parts(site) if "c_attn" in module._modules else _separate_parts(site)
    if isinstance(found, str):
        return found
    return _odd_tensor(site, found) or _odd_number(site, found) or _odd_argument(module) or found


def _odd_tensor(site: HeadSite, found: _Parts) -> str:
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
            found.rows.append(_Rows(module, "sinks", 0, 1))
            continue
        return f"it is not known how {name} {tuple(parameter.shape)} belongs to heads"
    wide = {heads, heads * found.width, heads * site.head_width} - {1}
    for name, buffer in module.named_buffers():
        if wide & set(buffer.shape):
            return f"it is not known whether {name} {tuple(buffer.shape)} belongs to heads"
    return ""


def _odd_number(site: HeadSite, found: _Parts) -> str:
    """A number that follows from the heads, is used by the module's code, and is not one we know.

    Such as a width of the model that heads are reshaped to, or a count in the configuration.
    """
    module, heads, groups = site.attention, site.n_heads, found.groups
    used, local = _names_used(type(module))
    if local & _LOCAL_WIDTHS:
        return f"its code uses {min(local & _LOCAL_WIDTHS)}, which may be the width of all heads"
    shape = (heads, groups, found.width)
    known = {name for name, _ in _numbers(module, shape, shape)}
    known |= {name for name in WIDTHS if getattr(module, name, 0) in (found.width, site.head_width)}
    follow = {heads, groups, heads * found.width, heads * site.head_width} - {1}
    for name, number in vars(module).items():
        if _PLACE.search(name):
            continue
        if type(number) is int and number in follow and name in used - known:
            return f"its code uses {name}={number}, which may follow from the heads"
    elsewhere = used & {*COUNTS, *_GROUP_COUNTS} - known
    if elsewhere - vars(module).keys() or not used & (known | {*COUNTS, *WIDTHS}):
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
        ours = name == "position_bias" and _makes_no_bias(module)
        if _BY_HEAD.search(name) and not ours:
            return f"its argument {name!r} may be given for every head"
    return ""


def _makes_no_bias(module: nn.Module) -> bool:
    """Whether this is an attention of T5 that takes the position bias of another layer."""
    return getattr(module, "has_relative_attention_bias", None) is False


def _separate_parts(site: HeadSite) -> _Parts | str:
    module, heads = site.attention, site.n_heads
    query, key, value = (child(module, names) for names in (QUERY, KEY, VALUE))
    if query is None or key is None or value is None:
        return "queries, keys and values are not projected one by one"
    for linear in (query, key, value, site.projection):
        if not _is_plain(linear):
            return f"{type(linear).__name__} is not a plain linear layer"
    made = [_out(linear) for linear in (query, key, value)]
    width, value_width = made[0] // heads, site.head_width
    groups = made[1] // width if width else 0
    if made != [heads * width, groups * width, groups * value_width] or heads % max(groups, 1):
        return f"{made} features of queries, keys and values do not fit {heads} heads"
    rows = [*_linear_rows(query, width), *_linear_rows(key, width, of_groups=True)]
    rows += _linear_rows(value, value_width, of_groups=True)
    return _Parts(groups, width, rows)


def _packed_parts(site: HeadSite) -> _Parts | str:
    """GPT-2: queries, keys and values one after the other; queries apart in cross-attention."""
    module, heads = site.attention, site.n_heads
    packed, apart = module._modules["c_attn"], module._modules.get("q_attn")
    if packed is None or not is_conv1d(packed) or not is_conv1d(site.projection):
        return "the order in which queries, keys and values are packed is not known"
    blocks = 3 if apart is None else 2
    width = site.head_width
    if _out(packed) != blocks * heads * width:
        return f"{_out(packed)} packed features do not fit {heads} heads"
    rows = _linear_rows(packed, width, blocks=blocks)
    if apart is not None:
        rows += _linear_rows(apart, width)
    return _Parts(heads, width, rows)


def _linear_rows(linear: nn.Module, width: int, **more: Any) -> list[_Rows]:
    """The places of heads in what a linear layer makes."""
    rows = [_Rows(linear, "weight", 1 if is_conv1d(linear) else 0, width, **more)]
    if linear._parameters.get("bias") is not None:
        rows.append(_Rows(linear, "bias", 0, width, **more))
    return rows


def _is_plain(linear: nn.Module) -> bool:
    return type(linear) is nn.Linear or is_conv1d(linear)


def _out(linear: nn.Module) -> int:
    count: int = linear.nf if is_conv1d(linear) else linear.out_features  # type: ignore[assignment]
    return count


def _cut_projections(
    cut: Cut, parts: _Parts, kept: Sequence[int], groups_left: Sequence[int]
) -> None:
    for row in parts.rows:
        new = row.cut(groups_left if row.of_groups else kept)
        cut.changes.append((row.module, row.name, new))
        if row.name == "weight":
            name = "nf" if is_conv1d(row.module) else "out_features"
            cut.changes.append((row.module, name, new.shape[row.axis]))
    site = cut.site
    weight, axis = weight_of(site)
    new = _Rows(site.projection, "weight", axis, site.head_width).cut(kept)
    with torch.no_grad():
        quiet = [kept.index(head) for head in cut.masked]
        columns = torch.tensor(site.columns(quiet), device=weight.device, dtype=torch.long)
        new.index_fill_(axis, columns, 0.0)
    cut.changes.append((site.projection, "weight", new))
    name = "nx" if is_conv1d(site.projection) else "in_features"
    cut.changes.append((site.projection, name, new.shape[axis]))


def _become_pruned(cut: Cut, kept: Sequence[int]) -> None:
    """Torch's attention changes its class, so that whoever holds it holds the new one."""
    module = cut.site.attention
    old = getattr(module, "kept", tuple(range(cut.site.n_heads)))
    cut.changes += [
        (module, "kept", tuple(old[head] for head in kept)),
        (module, "heads_before", getattr(module, "heads_before", cut.site.n_heads)),
        (module, "num_heads", len(kept)),
        (module, "_qkv_same_embed_dim", False),  # keeps torch off its fast paths
        (module, "__class__", PrunedMultiheadAttention),
    ]


def _numbers(module: nn.Module, old: Sequence[int], new: Sequence[int]) -> list[tuple[str, int]]:
    """What a module keeps of its heads, groups and their features, and what that becomes.

    `old` and `new` are the number of heads, of groups, and the features of one head.
    """
    (heads, groups, width), (heads_now, groups_now, _) = old, new
    known = {
        **dict.fromkeys(COUNTS, (heads, heads_now)),
        **dict.fromkeys(_GROUP_COUNTS, (groups, groups_now)),
        **dict.fromkeys(_GROUP_SIZES, (heads // groups, heads_now // groups_now)),
        **dict.fromkeys(_ALL_WIDTHS, (heads * width, heads_now * width)),
    }
    return [
        (name, now)
        for name, (before, now) in known.items()
        if type(getattr(module, name, None)) is int and getattr(module, name) == before
    ]


def _adapt(cut: Cut, parts: _Parts, kept: Sequence[int], groups_left: Sequence[int]) -> None:
    """The numbers that a module keeps of its heads, and what it is given for all of them."""
    module, heads = cut.site.attention, cut.site.n_heads
    old, new = (heads, parts.groups, parts.width), (len(kept), len(groups_left), parts.width)
    cut.changes += [(module, name, now) for name, now in _numbers(module, old, new)]
    if _makes_no_bias(module):
        adapter = GivenForAll(heads, tuple(kept))
        cut.hooks += [
            lambda: module.register_forward_pre_hook(adapter.before, with_kwargs=True),
            lambda: module.register_forward_hook(adapter.after),
        ]


class GivenForAll:
    """T5 hands a position bias (…, head, query, key) on from layer to layer.

    A layer with fewer heads takes its own part of it, and hands on the whole.
    """

    def __init__(self, heads: int, kept: tuple[int, ...]) -> None:
        self.heads, self.kept = heads, kept
        self.whole: Tensor | None = None  # of the call that is under way

    def before(self, module: nn.Module, given: Any, named: dict[str, Any]) -> Any:
        """A hook before the layer."""
        self.whole = named.get("position_bias")
        if self.whole is not None:
            named = {**named, "position_bias": self.whole[..., list(self.kept), :, :]}
        return given, named

    def after(self, module: nn.Module, given: Any, output: Any) -> Any:
        """A hook after the layer, which returns its output and the bias."""
        whole, self.whole = self.whole, None
        made = output[1]
        if not isinstance(made, Tensor) or made.dim() < 4 or made.shape[-3] != len(self.kept):
            return output
        if whole is None:  # none was given: the layer made one of zeros
            whole = made.narrow(-3, 0, 1).repeat_interleave(self.heads, -3)
        return (output[0], whole, *output[2:])
