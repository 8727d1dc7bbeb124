"""`attend`: attention on heads, with its weights or reductions where asked."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard import masks
from regard.bias import Bias
from regard.checks import check_axes, check_dtype, check_features, refuse_nested
from regard.contract import Attended, RecurrentState
from regard.errors import DtypeError, RegardError, ShapeError
from regard.kernel import fused, linear_delta_chunks
from regard.kernel.reduce import reduce as reduce_recipe
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.recipe import (
    Additive,
    Dot,
    Mixture,
    Normaliser,
    Positional,
    Recipe,
    Recurrent,
)
from regard.softmax import autocasting
from regard.types import Keys, Mixed, Queries, Shape, Values


def attend(
    query: Queries,
    key: Keys,
    value: Values,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Bias | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " head"] | None = None,
    normaliser: Normaliser | None = None,
    dropout: float = 0.0,
    weights: bool = False,
    reduce: Sequence[Reducer] = (),
) -> Attended:
    """Softmax attention on heads: the output, and in the same call weights or reductions.

    Where gradients of gradients are wanted, call it within
    `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`: fused kernels have none.

    Args:
        query: (batch, head, query, width).
        key: (batch, group, key, width); groups divide heads, each serving several.
        value: (batch, group, key, value width).
        mask: a `Mask`, or a boolean tensor (batch or 1, head or 1, query or 1, key);
            True means "may attend".
        bias: added to the scores; a tensor (batch or 1, head or 1, query or 1, key or 1) or a
            structured part such as `regard.kernel.position_encodings.AlibiBias`.
        causal: a query attends to its own position and before, the last query to every key;
            intersected with `mask`.
        scale: what dot products are multiplied by; 1/√width when None.
        softcap: scores become softcap · tanh(scores / softcap); no fused kernel does this, so the
            full matrix is made.
        sink: one more score a head, (head,), in the denominator alone.
        normaliser: how scores become weights, as `regard.recipe.Sparsemax()`; a softmax when None.
            Fused kernels know no other, so the full matrix is made.
        dropout: probability, applied whenever given: pass 0 in eval mode.
        weights: also return the weights, (batch, head, query, key), before dropout.
        reduce: a list of reducers; their answers come back in `reductions`, in this order.

    >>> import torch, regard
    >>> q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    >>> out = regard.attend(q, k, v, causal=True, reduce=[regard.Entropy(), regard.HeadMean()])
    >>> [tuple(answer.shape) for answer in out.reductions]
    [(1, 2, 6), (1, 6, 6)]
    """
    refuse_nested("attend", query=query, key=key, value=value)
    shape = _check(query, key, value)
    scale = query.shape[3] ** -0.5 if scale is None else scale
    needs_more = weights or reduce or dropout
    more = (mask, bias, softcap, sink, normaliser)
    if not needs_more and all(part is None for part in more):
        fast = fused.plain(query, key, value, scale, causal)  # the shortest way there is
        if fast is not None:
            return Attended(fast[0])
    recipe = Dot(
        query,
        key,
        value,
        mask=None if mask is None and not causal else masks.resolve(mask, causal, shape),
        bias=None if bias is None else checked_bias(bias, shape),
        scale=scale,
        softcap=softcap,
        sink=sink if sink is None else _checked_sink(sink, shape),
        normaliser=normaliser,
    )
    return run(recipe, dropout=dropout, weights=weights, reduce=reduce)


def run(
    recipe: Recipe,
    *,
    dropout: float = 0.0,
    weights: bool = False,
    reduce: Sequence[Reducer] = (),
) -> Attended:
    """The output of a recipe on heads, with what was asked besides.

    The output comes from the same path whatever is asked, so asking changes nothing.
    """
    if not 0.0 <= dropout <= 1.0:
        raise RegardError(f"dropout is {dropout}, expected a probability from 0 to 1")
    mixed_dtypes = autocasting(recipe.device)
    if isinstance(recipe, Dot) and recipe.value is not None and mixed_dtypes:
        recipe, mixed_dtypes = _one_dtype(recipe), False
    if isinstance(recipe, Dot | Additive) and recipe.value is not None and not mixed_dtypes:
        _check(recipe.query, recipe.key, recipe.value)  # a state may be another module's
    if isinstance(recipe, Dot) and recipe.is_fusible:
        output, lse = fused.attention(recipe, dropout)
        if not weights and not reduce:
            return Attended(output)
        recipe = recipe if lse is None else replace(recipe, lse=lse.detach())
        returned_weights = recipe.weights() if weights else None
    elif isinstance(recipe, Recurrent):
        if dropout:
            raise RegardError(
                f"dropout is {dropout}, expected 0: a {type(recipe).__name__} recipe makes its "
                "output without weights, so none can be dropped"
            )
        return _read(recipe, weights, reduce)
    elif isinstance(recipe, Positional) or (isinstance(recipe, Mixture) and recipe.by_head):
        if isinstance(recipe, Mixture):
            output, recipe = _mixed(recipe, dropout)
        else:  # constants: dropout is of what was learned
            output = recipe.mixed()
        if not weights and not reduce:
            return Attended(output)
        returned_weights = recipe.weights() if weights else None
    else:
        matrix = recipe.weights()
        output = recipe.mix(F.dropout(matrix, dropout) if dropout else matrix)
        returned_weights = matrix if weights else None
        if not weights and not reduce:
            return Attended(output)
    answers = reduce_recipe(recipe, reduce) if reduce else ()
    return Attended(output, returned_weights, recipe=recipe, reductions=answers)


def _read(recipe: Recurrent, weights: bool, reduce: Sequence[Reducer]) -> Attended:
    """What is read of a memory, with the state that it is in after the last key."""
    output, memory, normaliser = linear_delta_chunks.recur(recipe)
    batch, _, queries, keys = recipe.shape
    keep = recipe.keep
    written = torch.full((batch,), keys, device=recipe.device)
    if keep is not None:
        written = keep.sum(1).to(recipe.device).expand(batch)
    state = RecurrentState(memory, written, keys, True, queries, normaliser)
    if not weights and not reduce:
        return Attended(output, state=state)
    returned_weights = recipe.weights() if weights else None
    answers = reduce_recipe(recipe, reduce) if reduce else ()
    return Attended(output, returned_weights, state, recipe, answers)


def _mixed(recipe: Mixture, dropout: float) -> tuple[Mixed, Mixture]:
    """The output of a mixture whose heads stay apart, each part by its own fastest way; and the
    mixture with the log-sum-exp of its parts, where the kernel gave it. Dropout is of each part."""
    outputs, parts = [], []
    for part, attention in zip(recipe.parts, recipe.with_values()):
        if isinstance(attention, Dot) and attention.is_fusible:
            if autocasting(recipe.device):
                attention = _one_dtype(attention)
            output, lse = fused.attention(attention, dropout)
            assert isinstance(part, Dot)
            part = part if lse is None else replace(part, lse=lse.detach())
        else:
            output = run(attention, dropout=dropout).output
        outputs.append(output)
        parts.append(part)
    output = recipe.mix_parts(outputs).to(outputs[0].dtype)
    return output, replace(recipe, parts=tuple(parts))


def _one_dtype(recipe: Dot) -> Dot:
    """Under autocast what was projected is half, what was not is not: take the finer."""
    assert recipe.value is not None
    tensors = (recipe.query, recipe.key, recipe.value)
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    query, key, value = (tensor.to(dtype) for tensor in tensors)
    return replace(recipe, query=query, key=key, value=value)


def checked_bias(bias: Tensor | Bias, shape: Shape) -> Tensor | Bias:
    """The bias, after checking that it broadcasts to the scores."""
    if isinstance(bias, Bias):
        if bias.heads not in (1, shape.heads):
            raise ShapeError(f"bias: axis head has size {bias.heads}, expected {shape.heads} or 1")
        return bias
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise DtypeError(f"bias is {got}, expected floating point; a boolean belongs in mask=")
    if bias.dim() != 4:
        raise ShapeError(
            f"bias has {bias.dim()} axes {tuple(bias.shape)}, expected 4: "
            "(batch or 1, head or 1, query or 1, key or 1)"
        )
    for axis, size, want in zip(("batch", "head", "query", "key"), bias.shape, shape):
        if size not in (1, want):
            raise ShapeError(f"bias: axis {axis} has size {size}, expected {want} or 1")
    return bias


def _checked_sink(sink: Tensor, shape: Shape) -> Tensor:
    if sink.shape != (shape.heads,):
        raise ShapeError(
            f"sink has shape {tuple(sink.shape)}, expected ({shape.heads},), the heads"
        )
    return sink


def _check(query: Tensor, key: Tensor, value: Tensor) -> Shape:
    """Sizes of the attention, or an error that names the axis that does not fit."""
    sizes = query.shape
    alike = query.dtype == key.dtype == value.dtype and query.is_floating_point()
    alike = alike and query.device == key.device == value.device
    quick = alike and len(sizes) == 4 and not torch.compiler.is_compiling()
    if quick and sizes == key.shape == value.shape and sizes[1]:  # a graph would keep the answer
        return Shape(sizes[0], sizes[1], sizes[2], sizes[2])
    if alike and query.dim() == key.dim() == value.dim() == 4:
        batch, heads, queries, width = sizes
        groups, keys = key.shape[1], key.shape[2]
        fits = key.shape == (batch, groups, keys, width) and value.shape[:3] == key.shape[:3]
        if fits and groups and heads % groups == 0:
            return Shape(batch, heads, queries, keys)
    raise _misfit(query, key, value)


def _misfit(query: Tensor, key: Tensor, value: Tensor) -> RegardError:
    """The first thing that does not fit."""
    axes = dict.fromkeys(("batch", "head", "position", "width"))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_features(name, tensor, axes)
        check_dtype(name, tensor, query, "the query")
        if tensor.device != query.device:
            raise ShapeError(f"{name} is on {tensor.device}, expected {query.device} as the query")
    batch, heads, _, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    check_axes("key", key, {"batch": batch, "head": None, "key": None, "width": width})
    check_axes("value", value, {"batch": batch, "head": groups, "key": keys, "width": None})
    return ShapeError(f"key: axis head has size {groups}, expected a divisor of {heads}")
