"""True weights without regard: softmaxes and fused attention of a plain run, as they were called.

`recorded` patches torch's softmax functions and `scaled_dot_product_attention` for one run, also
where a module of the package has imported them by name. Each result is then brought to
(batch, head, query, key) by a pattern that was written after reading the model's source.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

#: The weights of one site; or several right readings of it, each with a name for the table, as
#: windows that may be read as a batch or scattered into the full matrix.
Readings = Tensor | dict[str, Tensor]
Truth = Callable[["Run"], Sequence[Readings]]


@dataclass
class Call:
    """One recorded call."""

    function: str
    weights: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Run:
    """A plain run: its calls in order, what the model returned, and the model."""

    calls: list[Call] = field(default_factory=list)
    output: Any = None
    model: Any = None
    args: tuple[Any, ...] = ()

    @property
    def weights(self) -> list[Tensor]:
        return [call.weights for call in self.calls]


# recording


def _dense(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
           enable_gqa=False) -> Tensor:  # fmt: skip
    """The weights of `scaled_dot_product_attention`, by its documentation."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    exponentials = (scores - scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).exp()
    total = exponentials.sum(-1, keepdim=True)
    return torch.where(total > 0, exponentials / total, 0.0)


def _patches(names: Sequence[str]) -> list[tuple[Any, str, str]]:
    """(owner, attribute, name in the recording) of all functions to record."""
    own = [(torch, "softmax"), (F, "softmax"), (torch.Tensor, "softmax")]
    functions = [(owner, name, "softmax") for owner, name in own]
    functions.append((F, "scaled_dot_product_attention", "sdpa"))
    for path in names:
        module, name = path.split(":")
        owner = importlib.import_module(module)
        *classes, name = name.split(".")
        for part in classes:
            owner = getattr(owner, part)
        functions.append((owner, name, path))
    return functions


@contextmanager
def recorded(calls: list[Call], names: Sequence[str] = ()) -> Iterator[None]:
    """Record softmaxes, fused attention and the functions `names` while the context lasts."""
    depth = [0]

    def wrapper(function: Callable[..., Any], label: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                result = function(*args, **kwargs)
            finally:
                depth[0] -= 1
            if depth[0] == 0:  # F.softmax calls Tensor.softmax
                weights = _dense(*args, **kwargs) if label == "sdpa" else result
                weights = weights.detach().clone() if isinstance(weights, Tensor) else weights
                calls.append(Call(label, weights, args, kwargs))
            return result

        return call

    restore: list[Callable[[], None]] = []
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the native encoder calls no softmax
    try:
        for owner, name, label in _patches(names):
            function = getattr(owner, name)
            inherited = name not in vars(owner)
            patched = wrapper(function, label)
            setattr(owner, name, patched)
            if inherited:
                restore.append(lambda owner=owner, name=name: delattr(owner, name))
            else:
                restore.append(lambda owner=owner, name=name, f=function: setattr(owner, name, f))
            for module in list(sys.modules.values()):  # `from torch import softmax`
                if module is owner or module is sys.modules[__name__]:
                    continue
                space = getattr(module, "__dict__", None) or {}
                for alias in [key for key, value in list(space.items()) if value is function]:
                    space[alias] = patched
                    restore.append(lambda s=space, key=alias, f=function: s.__setitem__(key, f))
        yield
    finally:
        for undo in reversed(restore):
            undo()
        torch.backends.mha.set_fastpath_enabled(fastpath)


# from recorded calls to truth


def nothing(run: Run) -> list[Readings]:
    """A model without softmax attention."""
    return []


def each(pattern: str, **sizes: int) -> Truth:
    """Every recorded softmax is attention, and all have the same axes."""
    return lambda run: [rearrange(weights, pattern, **sizes) for weights in run.weights]


def listed(*how: str | Callable[[Tensor], Readings] | None, **sizes: int) -> Truth:
    """One pattern or function for each recorded softmax, None where it is no attention.

    A short list is repeated: the softmaxes of one layer stand for those of all layers.
    """

    def truth(run: Run) -> list[Readings]:
        if not run.weights or len(run.weights) % len(how):
            raise ValueError(f"{len(run.weights)} softmaxes ran, expected a multiple of {len(how)}")
        sites: list[Readings] = []
        for index, weights in enumerate(run.weights):
            step = how[index % len(how)]
            if isinstance(step, str):
                names = step.replace("(", " ").replace(")", " ").split()
                fitting = {name: size for name, size in sizes.items() if name in names}
                sites.append(rearrange(weights, step, **fitting))
            elif step is not None:
                sites.append(step(weights))
        return sites

    return truth


def returned(read: Callable[[Any], Sequence[Readings]]) -> Truth:
    """What the model itself returns."""
    return lambda run: read(run.output)


def scattered(weights: Tensor, keys: Tensor, size: int) -> Tensor:
    """Gathered keys: (batch, head, query, slot) weights and the key of each slot (…, query, slot),
    −1 for padding, scattered into (batch, head, query, key). Keys met twice add up."""
    keys = keys.expand(weights.shape)
    full = weights.new_zeros(*weights.shape[:-1], size + 1)
    full.scatter_add_(-1, torch.where(keys < 0, size, keys), weights)
    return full[..., :size]


def dense(weights: Tensor, edges: Tensor, targets: int, sources: int | None = None) -> Tensor:
    """Weights (edge, head) and edges (2, edge) from source to target, as one graph:
    (1, head, target node, source node). Parallel edges add up."""
    if weights.dim() == 1:
        weights = weights[:, None]
    full = weights.new_zeros(weights.shape[1], targets, targets if sources is None else sources)
    for (source, target), row in zip(edges.T.tolist(), weights):
        full[:, target, source] += row
    return full[None]
