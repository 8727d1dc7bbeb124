"""`nn.MultiheadAttention` with some heads gone, and the others as wide as before.

Torch's own cannot say this: its heads share the width of the model evenly.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PrunedMultiheadAttention(nn.MultiheadAttention):
    """The attention that is left when heads are removed; made by `regard.prune`.

    Called as `nn.MultiheadAttention` is, with the same answers. A mask for each head, (batch ×
    head, query, key), may still have the heads of before. Weights that are returned have the heads
    of now.
    """

    kept: tuple[int, ...]  #: which of the heads of before are here
    heads_before: int

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As of `nn.MultiheadAttention`."""
        if query.is_nested:  # a torch encoder took the padding away
            return self._attend_nested(query), None
        turned = self.batch_first and query.dim() == 3
        if turned:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        in_query, in_key, in_value = self._in_weights()
        width = len(in_query)
        query_bias, other_bias = None, None
        if self.in_proj_bias is not None:
            query_bias = self.in_proj_bias[:width]
            other_bias = torch.cat([torch.zeros_like(query_bias), self.in_proj_bias[width:]])
        # Torch wants queries as wide as the heads together: they are projected beforehand.
        output, weights = F.multi_head_attention_forward(
            F.linear(query, in_query, query_bias),
            key,
            value,
            width,
            self.num_heads,
            None,
            other_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=self._of_heads(attn_mask),
            use_separate_proj_weight=True,
            q_proj_weight=torch.eye(width, dtype=in_query.dtype, device=in_query.device),
            k_proj_weight=in_key,
            v_proj_weight=in_value,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return (output.transpose(0, 1) if turned else output), weights

    def _in_weights(self) -> tuple[Tensor, ...]:
        if self.in_proj_weight is not None:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _of_heads(self, mask: Tensor | None) -> Tensor | None:
        """A mask for each head of before, (batch × head, query, key), for those that are left."""
        if mask is None or mask.dim() != 3 or len(mask) % self.heads_before:
            return mask
        by_head: Tensor = mask.unflatten(0, (-1, self.heads_before))
        return by_head[:, list(self.kept)].flatten(0, 1)

    def _attend_nested(self, nested: Tensor) -> Tensor:
        """Self-attention over sequences of different lengths, as an encoder of torch asks for."""
        padded = nested.to_padded_tensor(0.0)  # (batch, position, width)
        lengths = nested._nested_tensor_size()[:, :1].to(padded.device)
        there = torch.arange(padded.shape[1], device=padded.device) < lengths
        output, _ = self(padded, padded, padded, key_padding_mask=~there, need_weights=False)
        return torch._nested_tensor_from_mask(output, there, mask_check=False)
