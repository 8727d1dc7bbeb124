"""What turns a spelling of attention into targets.

A spelling gets (batch, position, head, width) projections and returns the same layout.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import BFLOAT16, SEED, Case, Target, dense


class Sizes(NamedTuple):
    batch: int = 2
    heads: int = 4
    queries: int = 5
    keys: int = 7
    width: int = 16


#: The usual sizes differ, so that no axis is mistaken for another; then those that invite mistakes.
SIZES = {
    "": Sizes(),
    "_one_example": Sizes(batch=1),
    "_one_query": Sizes(queries=1),
    "_one_key": Sizes(keys=1),
    "_decoding": Sizes(batch=1, queries=1),
    "_all_alike": Sizes(batch=4, queries=4, keys=4),
}


class Spelled(nn.Module):
    """Cross-attention around a spelling."""

    def __init__(self, attend: Callable, sizes: Sizes, groups: int | None = None) -> None:
        super().__init__()
        self.heads, self.groups = sizes.heads, groups or sizes.heads
        self.query, self.out = (nn.Linear(sizes.width, sizes.width) for _ in range(2))
        shared = sizes.width // self.heads * self.groups
        self.key, self.value = (nn.Linear(sizes.width, shared) for _ in range(2))
        self.attend = attend
        self.softmax, self.dropout = nn.Softmax(dim=-1), nn.Dropout(0.4)
        pairs = torch.ones(sizes.queries, sizes.keys, dtype=torch.bool)
        self.register_buffer("allowed", pairs.tril(2))
        self.register_buffer("head_mask", torch.linspace(0.5, 1.5, self.heads).view(-1, 1, 1))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        query = self.query(x).unflatten(-1, (self.heads, -1))
        key = self.key(memory).unflatten(-1, (self.groups, -1))
        value = self.value(memory).unflatten(-1, (self.groups, -1))
        return self.out(self.attend(self, query, key, value).flatten(2))


class Form(NamedTuple):
    """What a spelling does beside the attention."""

    masked: bool = False
    drops: bool = False
    head_mask: bool = False
    heads: int = 4
    groups: int | None = None
    dtype: torch.dtype = torch.float32
    around: Callable = nullcontext
    pieces: Callable[[Tensor], list[Tensor]] = lambda weights: [weights]
    """Cuts the weights into what the sites of the spelling see."""


def _build(attend: Callable, form: Form, sizes: Sizes) -> Case:
    dtype = form.dtype
    model = Spelled(attend, sizes, form.groups).to(dtype).train(form.drops)
    spread = 2 if dtype == torch.float32 else 1  # rows that are far from even; scores below 2
    x = torch.randn(sizes.batch, sizes.queries, sizes.width, dtype=dtype) * spread
    memory = torch.randn(sizes.batch, sizes.keys, sizes.width, dtype=dtype) * spread
    with torch.no_grad():
        query = dense.heads(model.query(x), model.heads)
        key, value = (dense.heads(p(memory), model.groups) for p in (model.key, model.value))
        weights = dense.weights(query, key, allowed=model.allowed if form.masked else None)
        if form.head_mask:  # the weights are what mixes the values, but for dropout
            weights = weights * model.head_mask
        used = weights
        if form.drops:
            torch.manual_seed(SEED)
            used = weights * F.dropout(torch.ones_like(weights, dtype=dtype), 0.4)
        expected = model.out(dense.merged(dense.mix(used, value)).to(dtype))
    # In bfloat16 the model itself rounds a score below 2 twice, by 2**-8 each; a weight w then
    # moves by up to 2 w (1 - w) times both, and is rounded in its turn.
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-8 + BFLOAT16
    return Case(model, (x, memory), {}, form.pieces(weights), expected, tolerance)


def speller(targets: list[Target]) -> Callable[..., Callable]:
    """A decorator that adds a spelling in every size; its arguments are those of `Form`."""

    def spelled(**options: object) -> Callable[[Callable], Callable]:
        form = Form(**options)

        def add(attend: Callable) -> Callable:
            for name, sizes in SIZES.items():
                build = partial(_build, attend, form, sizes._replace(heads=form.heads))
                group = "sizes" if name else "spellings"
                name = f"spelled_{attend.__name__}{name}"
                targets.append(Target(name, group, build, around=form.around))
            return attend

        return add

    return spelled


def first(*tensors: Tensor) -> list[Tensor]:
    """Heads first: (batch, head, position, width)."""
    return [tensor.transpose(1, 2) for tensor in tensors]


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
