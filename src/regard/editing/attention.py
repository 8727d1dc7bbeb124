"""Changed attention: fused wherever a mask, a bias or a factor suffices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.editing.plan import Plan, by_head, forbids, masked
from regard.types import Keys, Mixed, Queries, Scores, Values


def attend(
    plan: Plan,
    query: Queries,
    key: Keys,
    value: Values,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    whole: bool = False,
) -> Mixed:
    """Scaled dot-product attention with a plan applied.

    Args:
        plan: the changes.
        query: the queries.
        key: the keys, of heads or groups.
        value: the values, the same.
        mask: boolean or additive, of four axes.
        dropout: of the weights.
        causal: as in torch, aligned at the top left.
        scale: of the scores; that of the width if None.
        whole: compute all weights where some are needed, so that a capture sees one attention.
    """
    heads, queries = query.shape[1], query.shape[2]
    value = plan.values(value)
    if value.shape[1] != key.shape[1]:
        key, value = by_head(key, heads), by_head(value, heads)
    alone = causal and mask is None  # the fused operators of torch take no mask besides
    if causal:
        mask = with_past(mask, query, key)
    if not plan.needs_weights:
        return _fused(plan, query, key, value, mask, dropout, alone, scale)
    touched, rows = plan.touched()
    if whole or (len(touched) == heads and len(rows) == queries):
        return _explicit(plan, query, key, value, mask, dropout, scale)

    def cut(tensor: Tensor) -> Tensor:
        tensor = tensor if tensor.shape[1] == 1 else tensor[:, touched]
        return tensor if tensor.shape[2] == 1 else tensor[:, :, rows]

    output = _fused(plan.without_steps(), query, key, value, mask, dropout, alone, scale)
    part = _explicit(
        plan.part(cut, (len(touched), len(rows))),
        query[:, touched][:, :, rows],
        by_head(key, heads)[:, touched],
        by_head(value, heads)[:, touched],
        None if mask is None else cut(mask),
        dropout,
        scale,
    )
    examples = torch.arange(output.shape[0], device=output.device)
    index = (examples[:, None, None], touched[None, :, None], rows[None, None])
    return output.index_put(index, part.to(output.dtype))


def with_past(mask: Tensor | None, query: Queries, key: Keys) -> Tensor:
    """The mask, boolean or additive, and that of torch's `is_causal`, aligned at the top left."""
    queries, keys = query.shape[2], key.shape[2]
    past = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is None:
        return past
    return mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)


def _fused(
    plan: Plan,
    query: Queries,
    key: Keys,
    value: Values,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Mixed:
    """One call of a fused operator; `mask` holds the causal one as well, alone if `causal`."""
    grouped = key.shape[1] != query.shape[1]
    if plan.changes_scores:
        if plan.scale is not None:
            query = query * plan.scale.to(query.dtype)
        mask, causal = changed_mask(plan, mask, query), False
    elif causal:
        mask = None
    output = F.scaled_dot_product_attention(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=grouped
    )
    return plan.outputs(output)


def changed_mask(plan: Plan, mask: Tensor | None, query: Queries) -> Tensor | None:
    """The boolean or additive mask with scale, bias and permission of a plan."""
    allowed, bias = plan.allowed, plan.bias
    if mask is not None and mask.dtype == torch.bool:
        allowed = mask if allowed is None else mask & allowed
        mask = None
    if mask is not None:
        low = masked(mask)
        if plan.scale is not None:
            mask = torch.where(low, mask, mask * plan.scale.to(mask.dtype))
        if plan.allowed is not None:
            mask = mask.masked_fill(low & forbids(plan.allowed), -torch.inf)
        bias = mask if bias is None else mask + bias.to(mask.dtype)
    elif bias is not None:
        bias = bias.to(query.dtype)
    if bias is None:
        changed = allowed
    elif allowed is None:
        changed = bias
    else:
        changed = torch.where(allowed, bias, -torch.inf)
    if changed is None:
        return None
    shape = plan.call.shape
    return changed.expand(*changed.shape[:2], shape.queries, shape.keys)


def _explicit(
    plan: Plan,
    query: Queries,
    key: Keys,
    value: Values,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
) -> Mixed:
    """The same through weights."""
    scale = query.shape[3] ** -0.5 if scale is None else scale
    scores = query @ by_head(key, query.shape[1]).mT * scale
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    return mix(plan, scores, by_head(value, query.shape[1]), dropout)


def mix(
    plan: Plan, scores: Scores, value: Values, dropout: float = 0.0, sink: Tensor | None = None
) -> Mixed:
    """Values mixed by the changed softmax of scores; `sink` is one more score of each head."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if sink is None:
        weights = plan.softmax(scores, dtype=dtype).to(value.dtype)
    else:
        column = sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        columns = plan.softmax(torch.cat([scores, column], -1), after=1, dtype=dtype)
        weights = columns[..., :-1].to(value.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    mixed = plan.outputs(weights @ value)
    # The memory order of fused operators: heads side by side, at each position.
    return mixed.transpose(1, 2).contiguous().transpose(1, 2)
