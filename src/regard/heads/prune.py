"""Remove heads from a model, or mask them, and measure the effect.

>>> import torch, regard
>>> from torch import nn
>>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
>>> regard.prune(model, {0: [1, 2], "layers.1.self_attn": [0]})
Pruned 3 of 8 heads: 3 removed; 4,448 → 3,644 parameters (18.1 % fewer)
>>> model.layers[0].self_attn.num_heads, model(torch.randn(1, 5, 16)).shape
(2, torch.Size([1, 5, 16]))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.anatomy.head_sites import HeadSite, Sites, head_sites
from regard.errors import RegardError, ShapeError
from regard.heads.passes import Run, batches_of, run_on, undisturbed
from regard.heads.projection_cuts import Cut, plan_cut

Metric = Callable[..., Any]


@dataclass(eq=False, repr=False)
class PruningResult:
    """What `prune` did, by name of the attention."""

    heads: dict[str, list[int]]  #: what was asked for
    removed: dict[str, list[int]]  #: removed with their parameters
    masked: dict[str, list[int]]  #: still there, times 0
    reasons: dict[str, str]  #: why heads are masked that were to be removed
    parameters: tuple[int, int]  #: of the whole model, before and after
    metric: tuple[float, float] | None  #: before and after
    n_heads: int  #: of all attentions before
    _cuts: list[Cut] = field(default_factory=list)

    def restore(self) -> None:
        """Restore masked heads; removed heads cannot come back."""
        if self.removed:
            raise RegardError(
                f"heads were removed from {', '.join(self.removed)}, and cannot come back; "
                "remove=False masks them"
            )
        for cut in self._cuts:
            cut.undo()

    def __repr__(self) -> str:
        counts = [(_count(self.removed), "removed"), (_count(self.masked), "masked")]
        summary = ", ".join(f"{count} {word}" for count, word in counts if count)
        text = f"Pruned {_count(self.heads)} of {self.n_heads} heads: {summary}"
        before, after = self.parameters
        if before != after:
            fewer = 100 * (before - after) / before
            text += f"; {before:,} → {after:,} parameters ({fewer:.1f} % fewer)"
        if self.metric is not None:
            text += f"; metric {self.metric[0]:.4g} → {self.metric[1]:.4g}"
        lines = [f"  {name}: masked, since {reason}" for name, reason in self.reasons.items()]
        return "\n".join([text, *lines])


def prune(
    model: nn.Module,
    heads: Mapping[str | int, Sequence[int]],
    *,
    metric: Metric | None = None,
    data: Iterable[Any] | None = None,
    remove: bool = True,
    sites: Sites = None,
    run: Run | None = None,
) -> PruningResult:
    """Remove heads from a model, in place. After an error the model is as it was.

    The parameters of a head are removed in `nn.MultiheadAttention`, and in modules that project
    queries, keys and values one by one (or as GPT-2 does); create optimisers anew. Where that is
    not possible the head is masked: its columns of the output projection are 0, and stay so unless
    they are trained. The output is the same either way: with `data` this is verified, and without
    it heads of hand-written attention are masked.

    Args:
        model: any module with attention that `head_sites` finds.
        heads: numbers of heads by the name of an attention or its place in `head_sites(model)`;
            `head_importance(…).least(10)` and `learn_gates(…).closed()` are such.
        metric: how good the model is, before and after: a number from the model; or, with `data`,
            (batch,) or a number from what it returned and the batch, averaged over all.
        data: batches, as for `head_importance`. On the first, the output without the heads is
            compared with that with the heads masked; attentions where it differs are masked.
            Without data, heads are removed only in modules of torch, transformers and regard.
        remove: False masks all heads, and `restore()` of the result brings them back.
        sites: where the heads are, when the structure does not tell: see `head_sites`.
        run: how the model is run on a batch.
    """
    all_sites = head_sites(model, sites)
    chosen = _chosen(heads, all_sites)
    batches = None if data is None else list(batches_of(data))
    if batches is not None and not batches:
        raise RegardError("data is empty: there is nothing to measure on")
    run = run or run_on
    before = _measure(model, metric, batches, run)
    parameters = _parameters(model)
    shared = _shared(model)
    masks = [plan_cut(site, numbers, False, shared) for site, numbers in chosen.items()]
    cuts = [plan_cut(site, numbers, remove, shared) for site, numbers in chosen.items()]
    if batches is None:
        cuts = [cut if _is_trusted(cut) else _unverified(mask) for cut, mask in zip(cuts, masks)]
    planned = [*masks, *cuts]
    try:
        if remove and batches is not None:
            cuts = _apply_verified(model, cuts, masks, run, batches[0])
        else:
            for cut in cuts:
                cut.apply()
        after = _measure(model, metric, batches, run)
    except BaseException:
        for cut in planned:
            cut.undo()
        raise
    return PruningResult(
        heads={cut.site.name: sorted(cut.removed + cut.masked) for cut in cuts},
        removed={cut.site.name: cut.removed for cut in cuts if cut.removed},
        masked={cut.site.name: cut.masked for cut in cuts if cut.masked},
        reasons={cut.site.name: cut.reason for cut in cuts if cut.reason},
        parameters=(parameters, _parameters(model)),
        metric=None if before is None or after is None else (before, after),
        n_heads=sum(site.n_heads for site in all_sites),
        _cuts=[] if any(cut.removed for cut in cuts) else cuts,
    )


def _is_trusted(cut: Cut) -> bool:
    """Whether a cut is known to leave the output as it is: other code may assume its heads."""
    package = type(cut.site.attention).__module__.partition(".")[0]
    return not cut.removed or package in ("torch", "transformers", "regard")


def _unverified(mask: Cut) -> Cut:
    mask.reason = "nothing shows that its code takes fewer heads: pass data= to try"
    return mask


def _chosen(heads: Any, sites: Sequence[HeadSite]) -> dict[HeadSite, list[int]]:
    if not isinstance(heads, Mapping) or not heads:
        raise RegardError(
            f"heads is {heads!r}, expected numbers of heads by name or layer, as {{0: [1, 2]}}, or "
            "head_importance(…).least(10)"
        )
    names = {site.name: site for site in sites}
    chosen: dict[HeadSite, list[int]] = {}
    for key, numbers in heads.items():
        site = _site(key, names, sites)
        if isinstance(numbers, int) or not all(
            type(number) is int and 0 <= number < site.n_heads for number in numbers
        ):
            raise RegardError(
                f"heads: {numbers!r} for {key!r}, expected a list of numbers from 0 to "
                f"{site.n_heads - 1}"
            )
        union = {*chosen.get(site, []), *numbers}
        if union:
            chosen[site] = sorted(union)
    if not chosen:
        raise RegardError("heads names no head")
    return chosen


def _site(key: Any, names: Mapping[str, HeadSite], sites: Sequence[HeadSite]) -> HeadSite:
    if isinstance(key, str) and key in names:
        return names[key]
    if type(key) is int and 0 <= key < len(sites):
        return sites[key]
    if isinstance(key, str) and key.partition("#")[0] in names:
        raise RegardError(
            f"heads: {key!r} is one call of a module that runs several times with the same "
            "heads; rank them by head_importance(…, calls='shared')"
        )
    raise RegardError(
        f"heads: no attention is {key!r}; there are {list(names)}, or numbers from 0 to "
        f"{len(sites) - 1}"
    )


def _shared(model: nn.Module) -> set[int]:
    """The ids of modules and parameters that several modules own."""
    owners: Counter[int] = Counter()
    for module in model.modules():
        for children in (module._modules, module._parameters):
            owners.update({id(child) for child in children.values() if child is not None})
    return {identity for identity, count in owners.items() if count > 1}


def _measure(
    model: nn.Module, metric: Metric | None, batches: Sequence[Any] | None, run: Run
) -> float | None:
    if metric is None:
        return None
    with undisturbed(model, frozen=False), torch.no_grad():
        if batches is None:
            return _number(metric(model))
        total, count = 0.0, 0
        for inputs in batches:
            values = torch.as_tensor(metric(run(model, inputs), inputs))
            if values.dim() > 1:
                raise ShapeError(
                    f"metric gave {tuple(values.shape)}, expected (batch,) or one number"
                )
            total += float(values.to(torch.float64).sum())
            count += values.numel()
        return total / count


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RegardError(f"metric(model) gave {value!r}, expected one number") from error


def _apply_verified(
    model: nn.Module, cuts: Sequence[Cut], masks: Sequence[Cut], run: Run, batch: Any
) -> list[Cut]:
    """Apply every cut that leaves the output as it is with the heads masked, else the mask."""
    for mask in masks:
        mask.apply()
    expected = _output(model, run, batch)
    for mask, cut in zip(masks, cuts):
        mask.undo()
        cut.apply()
    if not _difference(model, run, batch, expected):
        return list(cuts)
    for mask, cut in zip(masks, cuts):
        cut.undo()
        mask.apply()
    return [_verified(model, cut, mask, run, batch, expected) for cut, mask in zip(cuts, masks)]


def _verified(
    model: nn.Module, cut: Cut, mask: Cut, run: Run, batch: Any, expected: Sequence[Tensor]
) -> Cut:
    """One cut in place of its mask, or the mask again."""
    mask.undo()
    cut.apply()
    reason = _difference(model, run, batch, expected) if cut.removed else ""
    if not reason:
        return cut
    cut.undo()
    mask.apply()
    mask.reason = reason
    return mask


def _output(model: nn.Module, run: Run, batch: Any) -> list[Tensor]:
    """The floating point tensors that the model returns, in order."""
    with undisturbed(model, frozen=False), torch.no_grad():
        leaves = tree_leaves(run(model, batch))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _difference(model: nn.Module, run: Run, batch: Any, expected: Sequence[Tensor]) -> str:
    """How the model behaves otherwise than with masked heads; empty where it does not."""
    try:
        actual = _output(model, run, batch)
    except Exception as error:
        return f"without these heads the model does not run ({type(error).__name__})"
    for masked, cut in zip(expected, actual):
        if masked.shape != cut.shape:
            continue  # weights have fewer heads now
        slack = 1e-2 if torch.finfo(masked.dtype).bits < 32 else 1e-4
        largest = float(masked.nan_to_num(0.0, 0.0, 0.0).abs().max()) if masked.numel() else 0.0
        if not torch.allclose(masked, cut, rtol=slack, atol=slack * largest, equal_nan=True):
            return "without these heads the output differs from that with the heads masked"
    return ""


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _count(heads: Mapping[str, Sequence[int]]) -> int:
    return sum(len(numbers) for numbers in heads.values())
