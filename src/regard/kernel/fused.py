"""The only file that knows torch's fused backends.

On CPU the flash operator is called by name, because it also returns the log-sum-exp, at no cost;
everywhere else, and where flash cannot serve (dropout, a bias that is trained, flash switched off
by `torch.nn.attention.sdpa_kernel`), `F.scaled_dot_product_attention` is. So it is in an exported
program, which may run on another device or become an ONNX file: exporters know the public function
alone with grouped heads. Flex attention is not used: it has no log-sum-exp on CPU and is several
times slower there.

Known wrong cases of `F.scaled_dot_product_attention` are avoided here:

- `is_causal` aligns unequal lengths at the top left, and together with a mask is refused by some
  backends: it is used only for equal lengths, and a mask beside it is query-independent.
- A row forbidden by `finfo.min` comes out as the mean of the values: masks are -inf, and rows
  with no permitted key come out 0.
- `dropout_p` is applied in eval mode too: modules pass 0 there.
- The CPU operator kills the process on an empty query or key: those never reach it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.bias import Bias, bias_block
from regard.errors import UnavailableError
from regard.kernel import blockwise
from regard.kernel.blockwise import Structure
from regard.masks import both, clean
from regard.masks.parts import Band, Mask, Padding, Pairs, Segments, is_causal, parts
from regard.recipe import Dot
from regard.types import Block, Keys, LogSumExp, Mixed, Queries, Values, is_eager, pieces, whole

_flash = torch._scaled_dot_product_flash_attention_for_cpu  # by name, without a Python wrapper
_compiling = torch.compiler.is_compiling
_STRIP = 1 << 23  # elements of mask and bias made at once (32 MB of float32)

OPERATOR = "regard::attention"  # what `attention` is called where it is intercepted


class _ThreadState(threading.local):
    #: runs instead of `attention`, which it may call in turn; for `regard.interception`
    instead: Callable[[Dot, float], tuple[Mixed, LogSumExp | None]] | None = None


here = _ThreadState()


class _Call(NamedTuple):
    """One call of a backend: some rows against some columns."""

    rows: slice | None  # None is all
    columns: slice | None
    added: Tensor | None  # -inf where forbidden, the bias elsewhere
    causal: bool = False


def attention(recipe: Dot, dropout: float = 0.0) -> tuple[Mixed, LogSumExp | None]:
    """Output of a `Dot` recipe, and the log-sum-exp where the backend gives it.

    The path depends on the inputs alone, never on what is asked for besides.
    """
    if not _compiling() and here.instead is not None:
        return here.instead(recipe, dropout)
    if recipe.value is None:
        raise UnavailableError("fused.attention: this recipe was made without values")
    query, key, value = recipe.query, recipe.key, recipe.value
    if recipe.bias is None and recipe.sink is None and not dropout:
        causal = recipe.mask is not None and is_causal(recipe.mask)
        if causal or recipe.mask is None:
            found = plain(query, key, value, recipe.scale, causal)
            if found is not None:
                return found
    flash = _flash_serves(recipe, dropout)
    batch, heads, queries, keys = recipe.shape
    if 0 in recipe.shape:
        none = torch.zeros(batch, heads, queries, dtype=recipe.dtype, device=query.device)
        return recipe.mixed(), none
    if recipe.mask is not None:
        alive = recipe.mask.alive(queries, keys, recipe.device)
        key, value = clean(key, alive), clean(value, alive)
    width = value.shape[-1]
    if recipe.sink is not None and recipe.scale == 0:
        recipe, query = replace(recipe, scale=1.0), query * 0
    if recipe.sink is not None:
        query, key, value = _with_sink(query, key, value, recipe.sink, recipe.scale)

    if flash or torch.compiler.is_exporting():  # of two widths, export makes guards on lengths
        query, key, value = _same_width(query, key, value)
    if flash and recipe.bias is None and recipe.sink is None and is_eager(query, key, value):
        structure = Structure.of(recipe.mask)
        rectangles = None if structure is None else blockwise.plan(structure, query, key)
        if structure is not None and rectangles is not None:
            output, lse = blockwise.attention(
                query, key, value, recipe.scale, structure, rectangles
            )
            return output[..., :width], lse
    outputs, sums = [], []
    for call in _calls(recipe, flash):
        q = query if call.rows is None else query[:, :, call.rows]
        k, v = key, value
        if call.columns is not None:
            first = recipe.sink is not None
            k, v = (_cut(tensor, call.columns, first) for tensor in (key, value))
        if flash:
            output, lse = _flash(
                q, k, v, 0.0, call.causal, attn_mask=call.added, scale=recipe.scale
            )
            sums.append(lse)
        else:
            output = _sdpa(q, k, v, call, recipe.scale, dropout)
        outputs.append(output)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    if output.shape[-1] != width:
        output = output[..., :width]
    if not flash:
        return output, None
    return output, sums[0] if len(sums) == 1 else torch.cat(sums, dim=2)


def plain(
    query: Queries, key: Keys, value: Values, scale: float, causal: bool
) -> tuple[Mixed, LogSumExp] | None:
    """The attention where flash takes the tensors as they are, which must cost nothing more.

    None where it does not: then `attention` finds another way.
    """
    queries, keys, width = query.shape[2], key.shape[2], query.shape[3]
    if not query.is_cpu or width != value.shape[3] or 0 in query.shape or keys == 0:
        return None
    if (causal and queries != keys) or not _flash_enabled():
        return None
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
        return None
    output, lse = _flash(query, key, value, 0.0, causal, attn_mask=None, scale=scale)
    return output, lse


def _flash_serves(recipe: Dot, dropout: float) -> bool:
    trained = recipe.bias is not None and recipe.bias.requires_grad and torch.is_grad_enabled()
    return recipe.device.type == "cpu" and not dropout and not trained and _flash_enabled()


def _flash_enabled() -> bool:
    if _compiling():
        return not torch.compiler.is_exporting()
    return bool(torch.backends.cuda.flash_sdp_enabled())


def _sdpa(q: Tensor, k: Tensor, v: Tensor, call: _Call, scale: float, dropout: float) -> Tensor:
    added, dead, dtype = call.added, None, q.dtype
    if added is not None:
        dead = (added == -torch.inf).all(-1, keepdim=True)
        if q.device.type == "cpu":  # no faster in half precision, and the bias keeps its digits
            q, k, v = (tensor.to(added.dtype) for tensor in (q, k, v))
        else:  # what half precision cannot hold must not become -inf
            lowest = torch.finfo(dtype).min / 2
            added = torch.where(added == -torch.inf, added, added.clamp_min(lowest)).to(dtype)
    output = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=added,
        dropout_p=dropout,
        is_causal=call.causal and added is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if dead is not None:
        output = torch.where(dead, output.new_zeros(()), output)
    return output.to(dtype)


def _calls(recipe: Dot, flash: bool) -> list[_Call]:
    """How to cut the attention into backend calls: one where possible, else strips of rows."""
    mask, bias, sink = recipe.mask, recipe.bias, recipe.sink is not None
    _, _, queries, keys = recipe.shape
    everything = whole(queries, keys)
    if mask is None and bias is None and not sink:
        return [_Call(None, None, None)]
    mask_parts = [] if mask is None else parts(mask)
    rest = [part for part in mask_parts if not is_causal(part)]
    flat = not sink and _same_bias(bias) and all(_same_for_every_row(part) for part in rest)
    alone = bias is None and not rest
    if len(rest) < len(mask_parts) and flat and (alone or flash) and queries == keys:
        together = functools.reduce(both, rest, None)  # only flash takes causal and a mask at once
        added = None if alone else _added(together, bias, everything, recipe)
        return [_Call(None, None, added, causal=True)]
    if all(_same_for_every_row(part) for part in mask_parts) and _same_bias(bias):
        return [_call(recipe, None)]
    if torch.compiler.is_compiling():
        return [_call(recipe, None)]
    breadth = keys * _leading(recipe)
    return [_call(recipe, rows) for rows in pieces(queries, max(64, _STRIP // breadth))]


def _call(recipe: Dot, rows: slice | None) -> _Call:
    _, _, queries, keys = recipe.shape
    block, columns = whole(queries, keys), None
    if rows is not None:
        columns = slice(0, keys)
        if recipe.mask is not None:
            columns = recipe.mask.columns(rows, queries, keys)
        if columns.start == columns.stop:  # nothing to see: one forbidden key stands for none
            columns = slice(0, 1)
        block = Block.of(rows, columns, queries, keys)
    added = _added(recipe.mask, recipe.bias, block, recipe)
    if recipe.sink is not None:
        if added is None:
            added = recipe.query.new_zeros(1, 1, 1, block.breadth)
        added = torch.cat([added.new_zeros(*added.shape[:3], 1), added], dim=-1)
    return _Call(rows, columns, added)


def _added(
    mask: Mask | None, bias: Tensor | Bias | None, block: Block, recipe: Dot
) -> Tensor | None:
    """What is added to the scores of a block: the bias, and -inf where forbidden."""
    added = bias_block(bias, block)
    allowed = True if mask is None else mask.block(block, recipe.device)
    if added is not None:
        added = added.to(recipe.dtype).expand(-1, -1, -1, block.breadth)
    if allowed is True:
        return added
    if allowed is False:
        shape, dtype = (1, 1, 1, block.breadth), recipe.dtype
        return torch.full(shape, -torch.inf, dtype=dtype, device=recipe.device)
    zero = torch.zeros((), dtype=recipe.dtype, device=recipe.device) if added is None else added
    return torch.where(allowed, zero, -torch.inf)


def _with_sink(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One more key whose score is the sink and whose value is 0, so that flash can train it.

    The score rides on an extra feature: sink / scale in the query, 1 in the new key, else 0.
    """
    most = torch.finfo(query.dtype).max / 4  # infinity times the 0 of the other keys would be NaN
    column = (sink / scale).clamp(-most, most).to(query.dtype)[None, :, None, None]
    query = torch.cat([query, column.expand(*query.shape[:-1], 1)], dim=-1)
    first = key.new_zeros(*key.shape[:2], 1, key.shape[-1] + 1)
    first[..., -1] = 1.0
    key = torch.cat([first, F.pad(key, (0, 1))], dim=2)
    return query, key, F.pad(value, (0, 0, 1, 0))


def _cut(tensor: Tensor, columns: slice, sink: bool) -> Tensor:
    """Some keys or values; where a sink stands before them, it too."""
    if not sink:
        return tensor[:, :, columns]
    if columns.start == 0:
        return tensor[:, :, : columns.stop + 1]
    real = tensor[:, :, columns.start + 1 : columns.stop + 1]
    return torch.cat([tensor[:, :, :1], real], dim=2)


def _same_width(*tensors: Tensor) -> list[Tensor]:
    """Flash wants one width and unit stride: pad with zeros, which add nothing to any product."""
    width = max(tensor.shape[-1] for tensor in tensors)
    padded = [F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in tensors]
    return [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in padded]


def _same_for_every_row(mask: Mask) -> bool:
    return isinstance(mask, Padding) or (isinstance(mask, Pairs) and mask.allowed.shape[2] == 1)


def _same_bias(bias: Tensor | Bias | None) -> bool:
    return bias is None or (isinstance(bias, Tensor) and bias.shape[2] == 1)


def _leading(recipe: Dot) -> int:
    """An upper bound on the batch and head entries that a mask or bias strip has."""
    if isinstance(recipe.bias, Bias):
        return recipe.shape.heads * recipe.shape.batch
    if isinstance(recipe.bias, Tensor):
        return recipe.bias.shape[0] * recipe.bias.shape[1]
    simple = Padding | Band | Segments
    flat = recipe.mask is None or all(isinstance(part, simple) for part in parts(recipe.mask))
    return recipe.shape.batch if flat else recipe.shape.batch * recipe.shape.heads
