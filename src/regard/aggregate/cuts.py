"""What has to change in a module for some of its heads to be gone.

A head is rows of the projections of queries, keys and values, and columns of that of the output.
Where keys and values are shared by groups of heads, the groups that are left must be of one size.
Where it is not known how everything in the module belongs to heads, and for heads that a group
cannot lose, the columns of the output projection are set to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.aggregate.head_parts import Parts, Rows, numbers, parts_of, takes_bias
from regard.aggregate.pruned_attention import PrunedMultiheadAttention
from regard.anatomy.head_sites import HeadSite, is_conv1d
from regard.errors import UnavailableError


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
        weight, axis = self.site.weight_and_axis()
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


def plan(site: HeadSite, heads: Sequence[int], remove: bool, shared: Container[int] = ()) -> Cut:
    """How these heads go: removed where that is possible, else masked.

    `shared` has the identities of modules and parameters that several modules own.
    """
    weight, _ = site.weight_and_axis()
    if id(site.projection) in shared or id(weight) in shared:
        raise UnavailableError(
            f"{site.name}: its output projection belongs to another module too, whose heads would "
            "go with it"
        )
    if not remove:
        return Cut(site, [], list(heads))
    parts = parts_of(site)
    if isinstance(parts, str):
        return Cut(site, [], list(heads), parts)
    if any(id(row.module) in shared for row in parts.rows):
        return Cut(site, [], list(heads), "it shares a projection with another module")
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


def _why_kept(site: HeadSite, parts: Parts) -> str:
    if parts.groups < site.n_heads:
        return "groups of heads that share keys and values stay of one size, and one head stays"
    return "an attention keeps one head"


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


def _cut_projections(
    cut: Cut, parts: Parts, kept: Sequence[int], groups_left: Sequence[int]
) -> None:
    for row in parts.rows:
        new = row.cut(groups_left if row.of_groups else kept)
        cut.changes.append((row.module, row.name, new))
        if row.name == "weight":
            name = "nf" if is_conv1d(row.module) else "out_features"
            cut.changes.append((row.module, name, new.shape[row.axis]))
    site = cut.site
    weight, axis = site.weight_and_axis()
    new = Rows(site.projection, "weight", axis, site.head_width).cut(kept)
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


def _adapt(cut: Cut, parts: Parts, kept: Sequence[int], groups_left: Sequence[int]) -> None:
    """The numbers that a module keeps of its heads, and what it is given for all of them."""
    module, heads = cut.site.attention, cut.site.n_heads
    old, new = (heads, parts.groups, parts.width), (len(kept), len(groups_left), parts.width)
    cut.changes += [(module, name, now) for name, now in numbers(module, old, new)]
    if takes_bias(module):
        adapter = GivenForAll(heads, tuple(kept))
        cut.hooks += [
            lambda: module.register_forward_pre_hook(adapter.before, with_kwargs=True),
            # after later ones: what is pruned twice puts its biases back in turn
            lambda: module.register_forward_hook(adapter.after, prepend=True),
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
