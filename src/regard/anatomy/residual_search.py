"""The residual stream around an attention, found from the tensors of a pass and not from names.

Among the inputs of modules near an attention, the two whose difference is the attention's output
are the stream before and after it. If a norm takes the second one, and none takes the first, that
norm follows the sum (post-norm). Else none does: a norm in front of the attention is in its values
already (pre-norm). A norm or a scale that takes the attention's output before it is added is the
branch (Gemma 2, OLMo 2, DINOv2).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.anatomy.attribute_names import NORM
from regard.kernel.tile_walk import one_torch_thread
from regard.masks import Mask, clean
from regard.recipe import Recipe
from regard.recipe.base import per_head
from regard.types import Features, pieces

_SAMPLE = 64  # positions by which tensors are compared
_STRIP = 1 << 20  # weights made at once


class ModuleInput(NamedTuple):
    """A module, and a copy of the first tensor of features among its arguments."""

    module: nn.Module
    tensor: Tensor


class Stream(NamedTuple):
    """The stream in front of an attention, the norm after the sum, and that of the branch."""

    residual: Features
    norm: nn.Module | None
    branch: nn.Module | None


def find_stream(
    inputs: Sequence[ModuleInput],
    site: int,
    added: Features,
    alive: Bool[Tensor, "batch position"],
) -> Stream | None:
    """The stream around an attention, or None where no two tensors differ by its output.

    Args:
        inputs: of modules near the attention, in order.
        site: index of the attention's module.
        added: the output of the attention's output projection.
        alive: queries that attend to anything; the output for others is arbitrary.
    """
    sample = _sample(alive)
    views = list(_input_views(inputs, added, sample))
    branch = _branch(views, added.flatten(0, 1)[sample], site)
    if branch is not None:
        added = apply_norm(branch, added)
    pair = _pair(views, added.flatten(0, 1)[sample], site)
    if pair is None:
        return None
    before, after = pair
    residual = before.tensor.to(added).nan_to_num(nan=0.0)
    return Stream(residual, _norm_after(views, before, after), branch)


# -- the output of an attention


def values_of(recipe: Recipe) -> Float[Tensor, "batch head key value_width"]:
    """Values of every head, in the dtype of the weights; 0 where no query may attend."""
    assert recipe.value is not None
    mask: Mask | None = getattr(recipe, "mask", None)
    alive = None if mask is None else mask.alive(*recipe.shape[2:], recipe.device)
    return per_head(clean(recipe.value, alive), recipe.shape.heads).to(recipe.dtype)


@torch.no_grad()
def attention_output(
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
    """Whether this is a norm or a scale, by the name of its class."""
    return not module._modules and bool(NORM.search(type(module).__name__))


def apply_norm(norm: nn.Module, features: Tensor) -> Tensor:
    """A norm of these features, computed in their dtype."""
    twin = copy.deepcopy(norm).to(features.device, features.dtype)
    with torch.no_grad():
        normed: Tensor = twin.forward(features)  # not called: hooks on it are not for us
    return normed


# -- tensors that differ by the output


class _View(NamedTuple):
    """One way to read the input of a module, and some positions of it."""

    order: int
    module: nn.Module
    tensor: Features
    rows: Float[Tensor, "row width"]


def _sample(alive: Bool[Tensor, "batch position"]) -> Int[Tensor, " row"]:
    """Some positions that attend to anything, spread over batch and sequence."""
    positions = alive.flatten().nonzero()[:, 0]
    return positions[:: max(1, len(positions) // _SAMPLE)]


def _input_views(inputs: Sequence[ModuleInput], added: Tensor, rows: Tensor) -> Iterator[_View]:
    for index, (module, tensor) in enumerate(inputs):
        for view in _views(tensor, added):
            yield _View(index, module, view, view.flatten(0, 1)[rows].to(added))


def _views(tensor: Tensor, like: Tensor) -> Iterator[Tensor]:
    """A tensor as (batch, position, width), in every way that its sizes allow."""
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(float("nan"))
    if tensor.numel() != like.numel() or tensor.shape[-1] != like.shape[-1]:
        return
    yield tensor.reshape(like.shape)
    if tensor.dim() == 3 and tensor.shape[1] == like.shape[0] != 1:
        yield tensor.transpose(0, 1)  # of a model whose first axis is the position


def _pair(views: Sequence[_View], added: Tensor, site: int) -> tuple[_View, _View] | None:
    """The stream before and after an attention."""
    best, pair = float("inf"), None
    for after in views:
        earlier = [view for view in views if view.order < after.order > site]
        if earlier:
            before = torch.stack([view.rows for view in earlier])
            least, index = _size(after.rows - before - added).min(0)
            if float(least) < best:
                best, pair = float(least), (earlier[int(index)], after)
    if pair is None:
        return None
    return pair if best <= _slack(pair[0]) * float(_size(added)) else None


def _branch(views: Sequence[_View], added: Tensor, site: int) -> nn.Module | None:
    """The norm or scale that takes in what the attention gave."""
    for view in views:
        close = _size(view.rows - added) <= _slack(view) * _size(added)
        if view.order > site and is_norm(view.module) and bool(close):
            return view.module
    return None


def _norm_after(views: Sequence[_View], before: _View, after: _View) -> nn.Module | None:
    """The norm that takes in the sum, if none took in the stream in front of the attention."""
    norms = [view for view in views if is_norm(view.module)]
    if any(view.order < after.order and _alike(view, before) for view in norms):
        return None
    follows = (view for view in norms if view.order >= after.order and _alike(view, after))
    return next((view.module for view in follows), None)


def _slack(view: _View) -> float:
    """How far, relative to the output, two tensors may differ by rounding alone."""
    return 0.3 if view.tensor.dtype in (torch.float16, torch.bfloat16) else 0.01


def _size(rows: Float[Tensor, "*some row width"]) -> Float[Tensor, "*some"]:
    there = rows.nan_to_num(nan=0.0)  # NaN: padding of nested tensors
    size: Tensor = torch.linalg.vector_norm(there, dim=(-2, -1))
    return size


def _alike(first: _View, second: _View) -> bool:
    return torch.equal(first.rows.nan_to_num(nan=0.0), second.rows.nan_to_num(nan=0.0))
