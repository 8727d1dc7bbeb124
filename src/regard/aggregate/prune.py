"""Heads taken out of a model, for good or for a while, and what that costs.

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

from regard.aggregate.cuts import Cut, plan
from regard.aggregate.masking import Row, Run, run_on, scaled, undisturbed
from regard.anatomy.head_sites import HeadSite, Sites, head_sites
from regard.errors import RegardError, ShapeError

Metric = Callable[..., Any]


@dataclass(eq=False, repr=False)
class Pruned:
    """What `prune` did, by name of the attention."""

    heads: dict[str, list[int]]  #: what was asked for
    removed: dict[str, list[int]]  #: gone, with their parameters
    masked: dict[str, list[int]]  #: still there, times 0
    reasons: dict[str, str]  #: why heads are masked that should have been removed
    parameters: tuple[int, int]  #: of the whole model, before and after
    metric: tuple[float, float] | None  #: before and after
    n_heads: int  #: of all attentions before
    _cuts: list[Cut] = field(default_factory=list)

    def restore(self) -> None:
        """Put masked heads back as they were; heads that were removed are gone."""
        if self.removed:
            raise RegardError(
                f"heads were removed from {', '.join(self.removed)}, and cannot come back; "
                "remove=False masks them"
            )
        for cut in self._cuts:
            cut.undo()

    def __repr__(self) -> str:
        counts = [(_count(self.removed), "removed"), (_count(self.masked), "masked")]
        done = ", ".join(f"{count} {word}" for count, word in counts if count)
        text = f"Pruned {_count(self.heads)} of {self.n_heads} heads: {done}"
        before, after = self.parameters
        if before != after:
            fewer = 100 * (before - after) / before
            text += f"; {before:,} → {after:,} parameters ({fewer:.1f} % fewer)"
        if self.metric is not None:
            text += f"; metric {self.metric[0]:.4g} → {self.metric[1]:.4g}"
        lines = [f"  {name}: masked, since {why}" for name, why in self.reasons.items()]
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
) -> Pruned:
    """Take heads out of a model, in place; all of them, or none when something is wrong.

    A removed head's parameters are cut out: in `nn.MultiheadAttention`, and in modules that project
    queries, keys and values one by one (or as GPT-2 does). Optimisers have to be made anew. Where
    the structure does not allow it, the head is masked: its columns of the output projection are 0,
    and stay so unless they are trained. The output is the same either way.

    Args:
        model: any module with attention that `head_sites` finds.
        heads: numbers of heads by the name of an attention or its place in `head_sites(model)`;
            `head_importance(…).least(10)` and `learn_gates(…).closed()` are such.
        metric: how good the model is, before and after: a number from the model; or, with `data`,
            (batch,) or a number from what it returned and the batch, averaged over all.
        data: batches, as for `head_importance`. Heads that are removed are compared on the first
            batch with heads that are masked.
        remove: False masks all heads, and `restore()` puts them back.
        sites: where the heads are, when the structure does not tell: see `head_sites`.
        run: how the model is run on a batch.
    """
    found = head_sites(model, sites)
    chosen = _chosen(heads, found)
    batches = None if data is None else list(data)
    if batches is not None and not batches:
        raise RegardError("data is empty: there is nothing to measure on")
    run = run or run_on
    before = _measured(model, metric, batches, run)
    parameters = _parameters(model)
    want = _masked_output(model, chosen, batches, run) if remove else None
    shared = _shared(model)
    cuts = [plan(site, asked, remove, shared) for site, asked in chosen.items()]
    try:
        for cut in cuts:
            cut.apply()
        _check_output(model, want, batches, run)
        after = _measured(model, metric, batches, run)
    except BaseException:
        for cut in reversed(cuts):
            cut.undo()
        raise
    return Pruned(
        heads={cut.site.name: sorted(cut.removed + cut.masked) for cut in cuts},
        removed={cut.site.name: cut.removed for cut in cuts if cut.removed},
        masked={cut.site.name: cut.masked for cut in cuts if cut.masked},
        reasons={cut.site.name: cut.why for cut in cuts if cut.why},
        parameters=(parameters, _parameters(model)),
        metric=None if before is None or after is None else (before, after),
        n_heads=sum(site.n_heads for site in found),
        _cuts=[] if any(cut.removed for cut in cuts) else cuts,
    )


def _chosen(heads: Any, found: Sequence[HeadSite]) -> dict[HeadSite, list[int]]:
    if not isinstance(heads, Mapping) or not heads:
        raise RegardError(
            f"heads is {heads!r}, expected numbers of heads by name or layer, as {{0: [1, 2]}}, or "
            "head_importance(…).least(10)"
        )
    names = {site.name: site for site in found}
    chosen: dict[HeadSite, list[int]] = {}
    for where, numbers in heads.items():
        site = _site(where, names, found)
        if isinstance(numbers, int) or not all(
            type(number) is int and 0 <= number < site.n_heads for number in numbers
        ):
            raise RegardError(
                f"heads: {numbers!r} for {where!r}, expected a list of numbers from 0 to "
                f"{site.n_heads - 1}"
            )
        together = {*chosen.get(site, []), *numbers}
        if together:
            chosen[site] = sorted(together)
    if not chosen:
        raise RegardError("heads names no head")
    return chosen


def _site(where: Any, names: Mapping[str, HeadSite], found: Sequence[HeadSite]) -> HeadSite:
    if isinstance(where, str) and where in names:
        return names[where]
    if type(where) is int and 0 <= where < len(found):
        return found[where]
    if isinstance(where, str) and where.partition("#")[0] in names:
        raise RegardError(
            f"heads: {where!r} is one call of a module that runs several times with the same "
            "heads; rank them by head_importance(…, calls='shared')"
        )
    raise RegardError(
        f"heads: no attention is {where!r}; there are {list(names)}, or numbers from 0 to "
        f"{len(found) - 1}"
    )


def _shared(model: nn.Module) -> set[int]:
    """Modules and parameters that several modules own, by identity."""
    owned: Counter[int] = Counter()
    for module in model.modules():
        for held in (module._modules, module._parameters):
            owned.update({id(one) for one in held.values() if one is not None})
    return {number for number, owners in owned.items() if owners > 1}


def _measured(
    model: nn.Module, metric: Metric | None, batches: Sequence[Any] | None, run: Run
) -> float | None:
    if metric is None:
        return None
    with undisturbed(model, frozen=False), torch.no_grad():
        if batches is None:
            return _number(metric(model))
        total, count = 0.0, 0
        for inputs in batches:
            found = torch.as_tensor(metric(run(model, inputs), inputs))
            if found.dim() > 1:
                raise ShapeError(
                    f"metric gave {tuple(found.shape)}, expected (batch,) or one number"
                )
            total += float(found.to(torch.float64).sum())
            count += found.numel()
        return total / count


def _number(found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RegardError(f"metric(model) gave {found!r}, expected one number") from error


def _masked_output(
    model: nn.Module,
    chosen: Mapping[HeadSite, Sequence[int]],
    batches: Sequence[Any] | None,
    run: Run,
) -> list[Tensor] | None:
    """What the model says to the first batch when the heads are masked."""
    if batches is None:
        return None
    factors = {}
    for site, heads in chosen.items():
        factor = torch.ones(site.n_heads)
        factor[list(heads)] = 0.0
        factors[Row(site)] = factor
    with undisturbed(model, frozen=False), torch.no_grad(), scaled(factors):
        return _tensors(run(model, batches[0]))


def _check_output(
    model: nn.Module, want: list[Tensor] | None, batches: Sequence[Any] | None, run: Run
) -> None:
    if want is None or batches is None:
        return
    with undisturbed(model, frozen=False), torch.no_grad():
        try:
            got = _tensors(run(model, batches[0]))
        except Exception as error:
            raise RegardError(
                "the model does not run without these heads, so they were put back; remove=False "
                "masks them"
            ) from error
    for one, other in zip(want, got):
        if one.shape != other.shape:
            continue  # weights have fewer heads now
        slack = 1e-2 if torch.finfo(one.dtype).bits < 32 else 1e-4
        largest = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
        if not torch.allclose(one, other, rtol=slack, atol=slack * largest, equal_nan=True):
            raise RegardError(
                "without these heads the model says something else than with the heads masked, so "
                "they were put back; remove=False masks them"
            )


def _tensors(output: Any) -> list[Tensor]:
    """The floating point tensors in what a model returned, in order."""
    leaves = tree_leaves(output)
    return [one for one in leaves if isinstance(one, Tensor) and one.is_floating_point()]


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _count(heads: Mapping[str, Sequence[int]]) -> int:
    return sum(len(numbers) for numbers in heads.values())
