"""What has to change in a module to remove some of its heads.

A head is rows of the query, key and value projections, and columns of the output projection. Where
groups of heads share keys and values, the remaining groups must be of one size. Heads that cannot
be removed are masked: their columns of the output projection become 0.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.anatomy.head_sites import HeadSite, is_conv1d
from regard.errors import UnavailableError
from regard.heads.head_parameters import (
    HeadAxis,
    HeadParameters,
    head_numbers,
    head_parameters,
    takes_bias,
)
from regard.heads.pruned_attention import PrunedMultiheadAttention


@dataclass
class Cut:
    """The heads of one attention to remove and to mask; `undo` reverts `apply`."""

    site: HeadSite
    removed: list[int]
    masked: list[int]
    reason: str = ""  #: why heads are masked that were to be removed
    changes: list[tuple[Any, str, Any]] = field(default_factory=list)  # object, attribute, value
    hooks: list[Callable[[], Any]] = field(default_factory=list)  # what registers them
    _undo: list[Callable[[], Any]] = field(default_factory=list)

    def apply(self) -> None:
        for owner, name, value in self.changes:
            self._undo.append(_restorer(owner, name))
            setattr(owner, name, value)
        for register in self.hooks:
            self._undo.append(register().remove)
        if self.masked and not self.removed:
            self._mask_in_place()

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    @torch.no_grad()
    def _mask_in_place(self) -> None:
        weight, axis = self.site.weight_and_axis()
        columns = torch.tensor(self.site.columns(self.masked), device=weight.device)
        before = weight.index_select(axis, columns)

        def restore() -> None:
            with torch.no_grad():
                weight.index_copy_(axis, columns, before)

        weight.index_fill_(axis, columns, 0.0)
        self._undo.append(restore)


def _restorer(owner: Any, name: str) -> Callable[[], None]:
    if not hasattr(owner, name):
        return lambda: delattr(owner, name)
    before = getattr(owner, name)
    return lambda: setattr(owner, name, before)


def plan_cut(
    site: HeadSite, heads: Sequence[int], remove: bool, shared: Container[int] = ()
) -> Cut:
    """Remove these heads where that is possible, else mask them.

    `shared` has the ids of modules and parameters that several modules own.
    """
    weight, _ = site.weight_and_axis()
    if id(site.projection) in shared or id(weight) in shared:
        raise UnavailableError(
            f"{site.name}: its output projection belongs to another module too, whose heads would "
            "go with it"
        )
    if not remove:
        return Cut(site, [], list(heads))
    parameters = head_parameters(site)
    if isinstance(parameters, str):
        return Cut(site, [], list(heads), parameters)
    if any(id(axis.module) in shared for axis in parameters.axes):
        return Cut(site, [], list(heads), "it shares a projection with another module")
    removed, groups_left = _removable(heads, site.n_heads, parameters.groups)
    masked = [head for head in heads if head not in removed]
    cut = Cut(site, removed, masked, _reason_to_mask(site, parameters) if masked else "")
    if not removed:
        return cut
    kept = [head for head in range(site.n_heads) if head not in removed]
    _cut_projections(cut, parameters, kept, groups_left)
    if site.in_torch:
        _change_class(cut, kept)
    else:
        _adapt(cut, parameters, kept, groups_left)
    return cut


def _reason_to_mask(site: HeadSite, parameters: HeadParameters) -> str:
    if parameters.groups < site.n_heads:
        return "groups of heads that share keys and values stay of one size, and one head stays"
    return "an attention keeps one head"


def _removable(heads: Sequence[int], count: int, groups: int) -> tuple[list[int], list[int]]:
    """Which of these heads can be removed, and which groups are left.

    Groups that lose all heads go. The others shrink to the size of the largest that is left.
    One head always stays.
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


def _cut_projections(
    cut: Cut, parameters: HeadParameters, kept: Sequence[int], groups_left: Sequence[int]
) -> None:
    for heads in parameters.axes:
        new = heads.cut(groups_left if heads.of_groups else kept)
        cut.changes.append((heads.module, heads.name, new))
        if heads.name == "weight":
            name = "nf" if is_conv1d(heads.module) else "out_features"
            cut.changes.append((heads.module, name, new.shape[heads.axis]))
    site = cut.site
    weight, axis = site.weight_and_axis()
    new = HeadAxis(site.projection, "weight", axis, site.head_width).cut(kept)
    with torch.no_grad():
        masked = [kept.index(head) for head in cut.masked]
        columns = torch.tensor(site.columns(masked), device=weight.device, dtype=torch.long)
        new.index_fill_(axis, columns, 0.0)
    cut.changes.append((site.projection, "weight", new))
    name = "nx" if is_conv1d(site.projection) else "in_features"
    cut.changes.append((site.projection, name, new.shape[axis]))


def _change_class(cut: Cut, kept: Sequence[int]) -> None:
    """Torch's attention changes its class, so that every reference to it sees the new one."""
    module = cut.site.attention
    old = getattr(module, "kept", tuple(range(cut.site.n_heads)))
    cut.changes += [
        (module, "kept", tuple(old[head] for head in kept)),
        (module, "heads_before", getattr(module, "heads_before", cut.site.n_heads)),
        (module, "num_heads", len(kept)),
        (module, "_qkv_same_embed_dim", False),  # keeps torch off its fast paths
        (module, "__class__", PrunedMultiheadAttention),
    ]


def _adapt(
    cut: Cut, parameters: HeadParameters, kept: Sequence[int], groups_left: Sequence[int]
) -> None:
    """The attributes that count heads, and arguments that have all of them."""
    module, heads, width = cut.site.attention, cut.site.n_heads, parameters.width
    old, new = (heads, parameters.groups, width), (len(kept), len(groups_left), width)
    cut.changes += [(module, name, now) for name, now in head_numbers(module, old, new)]
    if takes_bias(module):
        adapter = PositionBiasAdapter(heads, tuple(kept))
        cut.hooks += [
            lambda: module.register_forward_pre_hook(adapter.before, with_kwargs=True),
            # prepended: a module that is pruned twice undoes its adapters in reverse order
            lambda: module.register_forward_hook(adapter.after, prepend=True),
        ]


class PositionBiasAdapter:
    """T5 hands a position bias (…, head, query, key) on from layer to layer.

    A layer with fewer heads takes the bias of its own heads, and hands on the whole.
    """

    def __init__(self, heads: int, kept: tuple[int, ...]) -> None:
        self.heads, self.kept = heads, kept
        self.whole: Tensor | None = None  # of the current call

    def before(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """A hook before the layer."""
        self.whole = kwargs.get("position_bias")
        if self.whole is not None:
            kwargs = {**kwargs, "position_bias": self.whole[..., list(self.kept), :, :]}
        return args, kwargs

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """A hook after the layer, which returns its output and the bias."""
        whole, self.whole = self.whole, None
        bias = output[1]
        if not isinstance(bias, Tensor) or bias.dim() < 4 or bias.shape[-3] != len(self.kept):
            return output
        if whole is None:  # the layer was called without a bias and made one of zeros
            whole = bias.narrow(-3, 0, 1).repeat_interleave(self.heads, -3)
        return (output[0], whole, *output[2:])
