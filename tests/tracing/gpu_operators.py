"""Attention operators of GPUs, stood in for on the CPU: same schemas, alignments, odd shapes.

What is returned beside the output follows torch 2.13 and flash_attn 2.8: the log-sum-exp of the
memory-efficient operator is padded to a multiple of 32, cuDNN's has one more axis, that of packed
sequences is (head, position), and rows that see nothing have infinity there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.attention.varlen  # defines torch_attn::_varlen_attn
from torch import Tensor
from torch.nn import functional as F

_FORWARD = """_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p,
    float softmax_scale, bool causal, SymInt window_size_left, SymInt window_size_right,
    float softcap, Tensor? alibi_slopes, bool return_softmax) -> (Tensor, Tensor, Tensor, Tensor)"""
_VARLEN = """_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q,
    Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p,
    float softmax_scale, bool causal, SymInt window_size_left=-1, SymInt window_size_right=-1,
    float softcap=0.0, Tensor? alibi_slopes=None, bool return_softmax=False,
    Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None,
    bool zero_tensors=False) -> (Tensor, Tensor, Tensor, Tensor)"""


def weigh(
    query: Tensor,
    key: Tensor,
    allowed: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Weights (batch, head, query, key) and log-sum-exp of (batch, head, position, width), in
    float64; a row that sees nothing is 0 and infinity."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.double() @ key.double().mT * query.shape[-1] ** -0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias.double()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    lse = scores.logsumexp(-1)
    return scores.softmax(-1).nan_to_num(), lse.masked_fill(lse == -torch.inf, torch.inf)


def band(queries: int, keys: int, left: int = -1, right: int = -1, shift: int = 0) -> Tensor:
    """Keys from `left` before to `right` after each query, which stands at its row + `shift`."""
    offset = torch.arange(keys) - torch.arange(queries)[:, None] - shift
    allowed = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        allowed &= offset >= -left
    if right >= 0:
        allowed &= offset <= right
    return allowed


def packed_band(
    starts: Tensor, key_starts: Tensor, queries: int, keys: int, left: int = -1, right: int = -1
) -> Tensor:
    """The same for sequences side by side, each aligned at its own end."""
    allowed = torch.zeros(queries, keys, dtype=torch.bool)
    for top, bottom, first, last in zip(starts, starts[1:], key_starts, key_starts[1:]):
        sizes = int(bottom - top), int(last - first)
        allowed[top:bottom, first:last] = band(*sizes, left, right, sizes[1] - sizes[0])
    return allowed


def alibi(slopes: Tensor, queries: int, keys: int) -> Tensor:
    """−slope · |distance|, aligned at the end, (head, query, key)."""
    slopes = slopes.reshape(-1, slopes.shape[-1])[0]
    distance = (torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)).abs()
    return -slopes[:, None, None] * distance


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
    return (weights @ value.double()).to(value.dtype)


def _none() -> Tensor:
    return torch.empty(0)


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    queries, keys = q.shape[2], k.shape[2]
    allowed = band(queries, keys, right=0, shift=keys - queries) if is_causal else None
    weights, lse = weigh(q, k, allowed)
    rest = (_none(), _none(), queries, keys, _none(), _none(), _none())
    return _mix(weights, v), lse.float(), *rest


def _top_left(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool) -> Any:
    allowed = band(q.shape[2], k.shape[2], right=0) if is_causal else None
    if bias is not None and bias.dtype == torch.bool:
        allowed, bias = bias if allowed is None else allowed & bias, None
    weights, lse = weigh(q, k, allowed, bias=bias)
    return _mix(weights, v), weights, lse.float()


def _efficient(
    q, k, v, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
):
    output, _, lse = _top_left(q, k, v, attn_bias, is_causal)
    lse = F.pad(lse, (0, -q.shape[2] % 32), value=torch.inf)
    return output, lse if compute_log_sumexp else lse[..., :0], _none(), _none()


def _cudnn(
    q,
    k,
    v,
    attn_bias,
    compute_log_sumexp,
    dropout_p=0.0,
    is_causal=False,
    debug=False,
    *,
    scale=None,
):
    output, _, lse = _top_left(q, k, v, attn_bias, is_causal)
    lse = lse[..., None] if compute_log_sumexp else _none()
    rest = (_none(), _none(), q.shape[2], k.shape[2], _none(), _none(), _none())
    return output, lse, *rest


def _mps(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, dropout_mask=None, *, scale=None,
    enable_gqa=False,
):  # fmt: skip
    lead = q.shape[:-3]
    if attn_mask is not None and len(lead) > 1:
        full = torch.broadcast_shapes(attn_mask.shape, (*lead, 1, 1, 1))
        attn_mask = attn_mask.expand(full).flatten(0, -4)
    q, k, v = (part.reshape(-1, *part.shape[-3:]) for part in (q, k, v))
    output, weights, _ = _top_left(q, k, v, attn_mask, is_causal)
    return output.reshape(*lead, *output.shape[1:]), weights.to(q.dtype).reshape(
        *lead, *weights.shape[1:]
    )


def _flash_attn(
    q, k, v, dropout_p, softmax_scale, causal, left, right, softcap, alibi_slopes, return_softmax
):  # fmt: skip
    queries, keys = q.shape[1], k.shape[1]
    allowed = band(queries, keys, left, 0 if causal else right, keys - queries)
    bias = None if alibi_slopes is None else alibi(alibi_slopes, queries, keys)
    if causal and alibi_slopes is not None:  # the kernel adds slope · key: a row's shift is free
        bias = alibi_slopes.reshape(-1, q.shape[2])[0, :, None, None] * torch.arange(keys)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    weights, lse = weigh(q, k, allowed, bias=bias, softcap=softcap)
    return _mix(weights, v).transpose(1, 2).contiguous(), lse.float(), _none(), _none()


def _flash_attn_varlen(
    q, k, v, starts, key_starts, max_q, max_k, dropout_p, softmax_scale, causal, left=-1, right=-1,
    softcap=0.0, alibi_slopes=None, *rest, **options,
):  # fmt: skip
    allowed = packed_band(starts, key_starts, len(q), len(k), left, 0 if causal else right)
    bias = None if alibi_slopes is None else alibi(alibi_slopes, len(q), len(k))
    if causal and alibi_slopes is not None:
        bias = alibi_slopes.reshape(-1, q.shape[1])[0, :, None, None] * torch.arange(len(k))
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    weights, lse = weigh(q, k, allowed, bias=bias, softcap=softcap)
    return _mix(weights, v)[0].transpose(0, 1).contiguous(), lse[0].float(), _none(), _none()


def _aten_flash(
    q, k, v, starts, key_starts, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
    scale=None, window_size_left=None, window_size_right=None, alibi_slopes=None, **options,
):  # fmt: skip
    left, right = (-1 if size is None else size for size in (window_size_left, window_size_right))
    if starts is None:
        output, lse, *_ = _flash_attn(
            q, k, v, 0.0, 0.0, is_causal, left, right, 0.0, alibi_slopes, False
        )
    else:
        if (
            key_starts is None or options.get("block_table") is not None
        ):  # pages: any answer will do
            return torch.zeros_like(q), q.new_zeros(q.shape[1::-1]).float(), *(_none(),) * 3
        output, lse, *_ = _flash_attn_varlen(
            q, k, v, starts, key_starts, max_q, max_k, 0.0, 0.0, is_causal, left, right, 0.0,
            alibi_slopes,
        )  # fmt: skip
    return output, lse, _none(), _none(), _none()


def _aten_flash_backward(
    grad, q, k, v, out, lse, starts, key_starts, max_q, max_k, dropout_p, is_causal, *rest,
    scale=None, **options,
):  # fmt: skip
    """Without windows and groups."""
    right = 0 if is_causal else -1
    if starts is None:
        queries, keys = q.shape[1], k.shape[1]
        allowed = band(queries, keys, right=right, shift=keys - queries)
        axes = (1, 2)
    else:
        allowed = packed_band(starts, key_starts, len(q), len(k), right=right)
        axes = (0, 1)
    grad, q, k, v = (part.transpose(*axes).double() for part in (grad, q, k, v))
    q, k = (part if starts is None else part[None] for part in (q, k))
    weights, _ = weigh(q, k, allowed)
    of_weights = grad @ v.mT
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_scores *= q.shape[-1] ** -0.5
    grads = (of_scores @ k, of_scores.mT @ q, weights.mT @ grad)
    return tuple(
        (part if starts is None else part[0]).transpose(*axes).to(out.dtype) for part in grads
    )


_ATEN: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_attention_math_for_mps": _mps,
    "_flash_attention_forward": _aten_flash,
    "_flash_attention_backward": _aten_flash_backward,
}


@contextmanager
def stand_ins() -> Iterator[None]:
    """The operators have kernels for CPU tensors meanwhile."""
    with (
        torch.library._scoped_library("aten", "IMPL") as aten,
        torch.library._scoped_library("flash_attn", "DEF") as library,
    ):
        for name, kernel in _ATEN.items():
            aten.impl(name, kernel, "CPU")
        for schema, kernel in ((_FORWARD, _flash_attn), (_VARLEN, _flash_attn_varlen)):
            name = library.define(" ".join(schema.split()))
            library.impl(name, kernel, "CPU")
        yield
    vars(torch.ops).pop("flash_attn", None)  # packets of operators that are gone
