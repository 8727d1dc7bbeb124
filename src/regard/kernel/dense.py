"""The truth: attention with the full matrix, output and weights.

Nothing here is clever. Every faster path of the library is compared with this one.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.softmax import product


def attention(
    query: Float[Tensor, "*lead query width"],
    key: Float[Tensor, "*shared key width"],
    value: Float[Tensor, "*shared key value_width"],
    *,
    mask: Bool[Tensor, "*#lead #query key"] | None = None,
    bias: Float[Tensor, "*#lead #query #key"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, " head"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*lead query value_width"], Float[Tensor, "*lead query key"]]:
    """Output and weights (before dropout) of softmax attention, for any leading axes.

    The last leading axis is the head; `key` and `value` may have fewer heads, each serving
    several. `mask` is True where a query may attend; `causal` is aligned at the bottom right.
    Half precision is computed in float32, scaled before the product. A row with no permitted key
    has weights and output 0. Keys and values that no query sees may hold NaN.
    """
    queries, keys = query.shape[-2], key.shape[-2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
    if causal:
        allowed = allowed.tril(keys - queries)
    if mask is not None:
        allowed = allowed & mask

    if key.dim() > 2 and key.shape[-3] != query.shape[-3]:
        group = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(group, dim=-3)
        value = value.repeat_interleave(group, dim=-3)
    unseen = ~allowed.any(-2)[..., None]  # (…, key, 1)
    key = key.to(dtype).masked_fill(unseen, 0.0)
    mixed_values = value.to(dtype).masked_fill(unseen, 0.0)

    scores = product(query.to(dtype) * scale, key.mT)  # (…, query, key)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(dtype)
    scores = scores.masked_fill(~allowed, -torch.inf)

    columns = scores
    if sink is not None:
        column = sink.to(dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        columns = torch.cat([scores, column], dim=-1)
    dead = (columns == -torch.inf).all(-1, keepdim=True)
    weights = columns.masked_fill(dead, 0.0).softmax(-1)[..., :keys].masked_fill(dead, 0.0)

    kept = torch.nn.functional.dropout(weights, dropout) if dropout else weights
    return product(kept, mixed_values).to(value.dtype), weights
