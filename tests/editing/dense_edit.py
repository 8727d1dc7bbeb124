"""The truth about an edit: an eager twin whose softmaxes are replaced by slow formulas.

Written apart from regard: it knows transformers' eager attention, where every softmax over the last
of four axes is one, (batch, head, query, key), with the sinks of gpt-oss behind the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import editing


class Spec(NamedTuple):
    """A change, in words that regard and the truth read alike."""

    name: str
    amount: Any = None
    where: str = "*"
    heads: list[int] | None = None
    queries: list[int] | None = None
    keys: list[int] | None = None
    renormalise: bool = True

    def change(self) -> editing.Change:
        options = {
            "where": self.where,
            "heads": self.heads,
            "queries": self.queries,
            "keys": self.keys,
        }
        if self.name == "multiply":
            options["renormalise"] = self.renormalise
        absent = {"silence": ("keys",), "scale_values": ("queries",)}.get(self.name, ())
        options = {name: value for name, value in options.items() if name not in absent}
        make = getattr(editing, self.name)
        return make(**options) if self.amount is None else make(self.amount, **options)


def dense(specs: list[Spec], path: str, scores: Tensor, sinks: int) -> Tensor:
    """The changed softmax of scores (batch, head, query, key + sinks)."""
    _, heads, queries, columns = scores.shape
    keys = columns - sinks
    specs = [spec for spec in specs if fnmatchcase(path, spec.where)]
    low = scores <= torch.finfo(scores.dtype).min / 2
    scores = scores.double()
    # Rows that a model masks whole with finfo.min are means, unless an edit forbids in them.
    scores = scores.masked_fill(low & ~low.all(-1, keepdim=True), -torch.inf)
    live, sink = scores[..., :keys], scores[..., keys:]
    first = max(keys - queries, 0) if "encoder_attn" not in path else 0
    first = 0 if "EncDec" in path else first
    chosen = [_chosen(spec, first, heads, queries, keys, live.device) for spec in specs]
    for spec, at in zip(specs, chosen):
        if spec.name in ("forbid", "allow"):
            if spec.name == "allow":
                at = at & ~spec.amount.dense(first + queries, keys)[..., first:, :]
            live = live.masked_fill(at | (at.any(-1, keepdim=True) & low[..., :keys]), -torch.inf)
        elif spec.name == "bias":
            live = torch.where(at, live + _of(spec.amount, first, queries, keys), live)
        elif spec.name == "scale":
            live = torch.where(at & (live > -torch.inf), live * spec.amount, live)
    scores = torch.cat([live, sink], -1)
    weights = torch.nan_to_num(scores.softmax(-1))
    live, sink = weights[..., :keys], weights[..., keys:]
    for spec, at in zip(specs, chosen):
        if spec.name == "multiply":
            before = live.sum(-1, keepdim=True) + sink.sum(-1, keepdim=True)
            live = torch.where(at, live * _of(spec.amount, first, queries, keys), live)
            if spec.renormalise:
                total = live.sum(-1, keepdim=True) + sink.sum(-1, keepdim=True)
                share = before / total.clamp_min(1e-300)
                live, sink = live * share, sink * share
        elif spec.name == "replace":
            live = torch.where(at, _pattern(spec.amount, live, first), live)
    for spec, at in zip(specs, chosen):
        if spec.name == "silence":
            live = live.masked_fill(at, 0.0)
        elif spec.name == "scale_values":
            live = torch.where(at, live * spec.amount, live)
    return torch.cat([live, sink], -1)


def _chosen(spec, first, heads, queries, keys, device) -> Tensor:
    at = torch.ones(1, heads, queries, keys, dtype=torch.bool, device=device)
    if spec.heads is not None:
        at = at & torch.tensor([h in spec.heads for h in range(heads)])[None, :, None, None]
    if spec.queries is not None:
        here = torch.tensor([first + q in spec.queries for q in range(queries)])
        at = at & here[None, None, :, None]
    if spec.keys is not None:
        at = at & torch.tensor([k in spec.keys for k in range(keys)])[None, None, None]
    return at


def _of(amount, first, queries, keys):
    if isinstance(amount, Tensor):
        return amount[..., first : first + queries, :keys].double()
    return amount


def _pattern(amount, weights, first) -> Tensor:
    queries, keys = weights.shape[2:]
    if amount == "uniform" if isinstance(amount, str) else False:
        seen = (weights > 0).double()
        return seen / seen.sum(-1, keepdim=True).clamp_min(1)
    if isinstance(amount, str):
        target = torch.arange(first, first + queries) - (1 if amount == "previous" else 0)
        return F.one_hot(target.clamp_min(0).clamp_max(keys - 1), keys).double()[None, None]
    return _of(amount, first, queries, keys)


@contextmanager
def dense_edit(twin: nn.Module, specs: list[Spec]) -> Iterator[None]:
    """Run an eager twin with changed softmaxes."""
    sinks = int("GptOss" in type(twin).__name__)
    stack: list[str] = []
    hooks = []
    for path, module in twin.named_modules():
        enter = lambda *_, path=path: stack.append(path)
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(lambda *_: stack.__delitem__(-1)))
    before = F.softmax

    def softmax(scores, dim=None, _stacklevel=3, dtype=None):
        if scores.dim() != 4 or dim != -1:
            return before(scores, dim, dtype=dtype)
        return dense(specs, stack[-1], scores, sinks).to(scores.dtype)

    F.softmax = softmax
    try:
        yield
    finally:
        F.softmax = before
        for hook in hooks:
            hook.remove()
