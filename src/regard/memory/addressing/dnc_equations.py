"""Equations of Graves et al. 2016, methods: how a DNC frees and allocates slots, and walks along
the order in which they were written."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.memory.addressing.ntm_equations import HeadNumbers, HeadWeights, SlotNumbers

Links = Float[Tensor, "batch slot previous_slot"]


def usage(
    previous: SlotNumbers,
    write_weights: SlotNumbers,
    read_weights: HeadWeights,
    free_gates: HeadNumbers,
) -> SlotNumbers:
    """u = (u' + w − u' ∘ w) ∘ ψ, ψ = Π_h (1 − f_h w_h): filled by writing, freed by reading.

    Weights are those of the step before. No gradient flows into `write_weights`, as in the authors'
    code (the paper does not say); read weights and gates get theirs.
    """
    filled = previous + (1 - previous) * write_weights.detach()
    for kept in (1 - free_gates[..., None] * read_weights).unbind(1):
        filled = filled * kept
    return filled


def allocation(usage: SlotNumbers) -> SlotNumbers:
    """a[φⱼ] = (1 − u[φⱼ]) Π_{i<j} u[φᵢ], φ the slots by ascending usage: the emptiest slot first.

    Sums to 1 − Π u. The product is taken in logarithms; slots that tie keep their order.
    """
    filled, order = usage.sort(dim=-1, stable=True)
    logs = (
        filled.clamp_min(torch.finfo(usage.dtype).tiny).log().masked_fill(filled == 0, -torch.inf)
    )
    before = pad(logs[..., :-1], (1, 0)).cumsum(-1).exp()  # the product of those that are emptier
    return torch.zeros_like(usage).scatter(-1, order, (1 - filled) * before)


def write_weights(
    allocation: SlotNumbers,
    content: SlotNumbers,
    allocation_gate: Float[Tensor, "batch 1"],
    write_gate: Float[Tensor, "batch 1"],
) -> SlotNumbers:
    """g_w (g_a a + (1 − g_a) c): a free slot or a similar one, and whether to write at all."""
    return write_gate * torch.lerp(content, allocation, allocation_gate)


def links(previous: Links, write_weights: SlotNumbers, precedence: SlotNumbers) -> Links:
    """L[i, j] = (1 − wᵢ − wⱼ) L'[i, j] + wᵢ p'ⱼ, L[i, i] = 0; `precedence` of the step before."""
    row, column = write_weights[:, :, None], write_weights[:, None]
    linked = torch.baddbmm(((1 - row) - column) * previous, row, precedence[:, None])
    return linked * linked.new_ones(linked.shape[1:]).fill_diagonal_(0.0)


def precedence(previous: SlotNumbers, write_weights: SlotNumbers) -> SlotNumbers:
    """p = (1 − Σᵢ wᵢ) p' + w: where the last write went."""
    return (1 - write_weights.sum(-1, keepdim=True)) * previous + write_weights


def forward_weights(links: Links, read_weights: HeadWeights) -> HeadWeights:
    """L w': the slots written right after those that were read."""
    return read_weights @ links.mT


def backward_weights(links: Links, read_weights: HeadWeights) -> HeadWeights:
    """Lᵀ w': the slots written right before those that were read."""
    return read_weights @ links


def read_weights(
    modes: Float[Tensor, "batch head 3"],
    backward: HeadWeights,
    content: HeadWeights,
    forward: HeadWeights,
) -> HeadWeights:
    """π₁ b + π₂ c + π₃ f: backwards in time, by content, or forwards in time."""
    first, second, third = modes[..., None].unbind(2)  # (batch, head, 1) each
    return first * backward + second * content + third * forward
