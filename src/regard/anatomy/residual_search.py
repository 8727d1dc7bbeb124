"""The residual stream around an attention, found from what happened and not from names.

Among the tensors that entered modules near an attention, the two whose difference is what the
attention added are the stream before and after it. If a norm took in the second one, and none the
first, that norm follows the sum (post-norm). Else nothing does: a norm in front of the attention
is in its values already (pre-norm). A norm or a scale that took in what the attention gave, before
it was added, is the branch (Gemma 2, OLMo 2, DINOv2).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.anatomy.attribute_names import NORM
from regard.kernel.tiles import one_torch_thread
from regard.masks import Mask, clean
from regard.recipe import Recipe
from regard.recipe.base import per_head
from regard.types import Features, pieces

_SAMPLE = 64  # positions by which tensors are compared
_STRIP = 1 << 20  # weights made at once


class Entered(NamedTuple):
    """A module, and the first tensor of features that it was given, as it was then."""

    module: nn.Module
    tensor: Tensor


class Stream(NamedTuple):
    """The stream in front of an attention, the norm after the sum, and that of the branch."""

    residual: Features
    norm: nn.Module | None
    branch: nn.Module | None


def find_stream(
    entered: Sequence[Entered],
    site: int,
    added: Features,
    alive: Bool[Tensor, "batch position"],
) -> Stream | None:
    """The stream around an attention, or None where no two tensors differ by what it added.

    Args:
        entered: what entered modules near the attention, in order.
        site: which of them is the module of the attention.
        added: what the attention's output projection gave.
        alive: queries that attend to anything; of the others a model gives what it likes.
    """
    sample = _sample(alive)
    looks = list(_looks(entered, added, sample))
    branch = _branch(looks, added.flatten(0, 1)[sample], site)
    if branch is not None:
        added = precise(branch, added)
    pair = _pair(looks, added.flatten(0, 1)[sample], site)
    if pair is None:
        return None
    before, after = pair
    residual = before.tensor.to(added).nan_to_num(nan=0.0)
    return Stream(residual, _norm_after(looks, before, after), branch)


# -- what an attention adds


def values_of(recipe: Recipe) -> Float[Tensor, "batch head key value_width"]:
    """Values of every head, in the dtype of the weights; 0 where nobody may look."""
    assert recipe.value is not None
    mask: Mask | None = getattr(recipe, "mask", None)
    alive = None if mask is None else mask.alive(*recipe.shape[2:], recipe.device)
    return per_head(clean(recipe.value, alive), recipe.shape.heads).to(recipe.dtype)


@torch.no_grad()
def what_it_adds(
    recipe: Recipe,
    output_weight: Float[Tensor, "width mixed"],
    output_bias: Float[Tensor, " width"] | None,
) -> tuple[Features, Bool[Tensor, "batch position"]]:
    """What an attention adds to the stream, and which queries attend to anything."""
    batch, heads, queries, keys = recipe.shape
    values = values_of(recipe)
    weight = output_weight.to(values)
    bias = None if output_bias is None else output_bias.to(values)
    added = values.new_zeros(batch, queries, weight.shape[0])
    alive = torch.zeros(batch, queries, dtype=torch.bool, device=values.device)
    with one_torch_thread():
        for rows in pieces(queries, max(1, _STRIP // max(1, batch * heads * keys))):
            weights = recipe.weights(rows)
            mixed = (weights @ values).transpose(1, 2).flatten(2)  # (batch, row, head · width)
            added[:, rows] = nn.functional.linear(mixed, weight, bias)
            alive[:, rows] = weights.ne(0).any(3).any(1)
    return added, alive


# -- norms


def is_norm(module: nn.Module) -> bool:
    """Whether this is a norm or a scale, by its class; what it does is checked where it is used."""
    return not module._modules and bool(NORM.search(type(module).__name__))


def precise(norm: nn.Module, given: Tensor) -> Tensor:
    """A norm of these features in their dtype, whatever dtype its parameters have."""
    twin = copy.deepcopy(norm).to(given.device, given.dtype)
    with torch.no_grad():
        made: Tensor = twin.forward(given)  # not called: hooks on it are not for us
    return made


# -- tensors that differ by what was added


class _Look(NamedTuple):
    """One way to read a tensor that entered a module, and some positions of it."""

    place: int
    module: nn.Module
    tensor: Features
    rows: Float[Tensor, "row width"]


def _sample(alive: Bool[Tensor, "batch position"]) -> Int[Tensor, " row"]:
    """Some positions that attend to anything, spread over batch and sequence."""
    places = alive.flatten().nonzero()[:, 0]
    return places[:: max(1, len(places) // _SAMPLE)]


def _looks(entered: Sequence[Entered], added: Tensor, rows: Tensor) -> Iterator[_Look]:
    for place, (module, tensor) in enumerate(entered):
        for view in _views(tensor, added):
            yield _Look(place, module, view, view.flatten(0, 1)[rows].to(added))


def _views(tensor: Tensor, like: Tensor) -> Iterator[Tensor]:
    """A tensor as (batch, position, width), in every way that its sizes allow."""
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(float("nan"))
    if tensor.numel() != like.numel() or tensor.shape[-1] != like.shape[-1]:
        return
    yield tensor.reshape(like.shape)
    if tensor.dim() == 3 and tensor.shape[1] == like.shape[0] != 1:
        yield tensor.transpose(0, 1)  # of a model whose first axis is the position


def _pair(looks: Sequence[_Look], wanted: Tensor, site: int) -> tuple[_Look, _Look] | None:
    """The stream before and after an attention."""
    best, pair = float("inf"), None
    for after in looks:
        earlier = [look for look in looks if look.place < after.place > site]
        if earlier:
            before = torch.stack([look.rows for look in earlier])
            least, index = _size(after.rows - before - wanted).min(0)
            if float(least) < best:
                best, pair = float(least), (earlier[int(index)], after)
    if pair is None:
        return None
    return pair if best <= _slack(pair[0]) * float(_size(wanted)) else None


def _branch(looks: Sequence[_Look], wanted: Tensor, site: int) -> nn.Module | None:
    """The norm or scale that takes in what the attention gave."""
    for look in looks:
        close = _size(look.rows - wanted) <= _slack(look) * _size(wanted)
        if look.place > site and is_norm(look.module) and bool(close):
            return look.module
    return None


def _norm_after(looks: Sequence[_Look], before: _Look, after: _Look) -> nn.Module | None:
    """The norm that takes in the sum, if none took in the stream in front of the attention."""
    norms = [look for look in looks if is_norm(look.module)]
    if any(look.place < after.place and _alike(look, before) for look in norms):
        return None
    follows = (look for look in norms if look.place >= after.place and _alike(look, after))
    return next((look.module for look in follows), None)


def _slack(look: _Look) -> float:
    """How far, as a share of what is added, two tensors may differ by rounding alone."""
    return 0.3 if look.tensor.dtype in (torch.float16, torch.bfloat16) else 0.01


def _size(rows: Float[Tensor, "*some row width"]) -> Float[Tensor, "*some"]:
    there = rows.nan_to_num(nan=0.0)  # NaN: padding that was not there
    size: Tensor = torch.linalg.vector_norm(there, dim=(-2, -1))
    return size


def _alike(one: _Look, other: _Look) -> bool:
    return torch.equal(one.rows.nan_to_num(nan=0.0), other.rows.nan_to_num(nan=0.0))
