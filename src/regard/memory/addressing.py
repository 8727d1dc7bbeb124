"""How the heads of a memory find its slots: functions on tensors, each an equation of a paper.

Graves, Wayne & Danihelka 2014, "Neural Turing machines" (NTM), section 3.3, and Graves et al. 2016,
"Hybrid computing using a neural network with dynamic external memory" (DNC), methods.

| here         | NTM     | DNC       | meaning                                        |
|--------------|---------|-----------|------------------------------------------------|
| `memory`     | M       | M         | (batch, slot, width)                           |
| `key`        | k       | k         | what a head looks for, (batch, head, width)    |
| `strength`   | β       | β         | how sharply it looks, (batch, head)            |
| `gate`       | g       | g         | between 0 and 1, (batch, head)                 |
| `kernel`     | s       |           | how far to move, (batch, head, shift)          |
| `exponent`   | γ       |           | at least 1, (batch, head)                      |
| `weights`    | w       | w         | over the slots, (batch, head, slot)            |
| `usage`      |         | u         | how full each slot is, (batch, slot)           |
| `precedence` |         | p         | how far each slot was the last one written     |
| `links`      |         | L         | [batch, i, j]: slot i written right after j    |
| `modes`      |         | π         | backward, content, forward: (batch, head, 3)   |

The weights of an NTM sum to 1, those of a DNC to at most 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import ShapeError

Memory = Float[Tensor, "batch slot width"]
HeadKeys = Float[Tensor, "batch head width"]
HeadNumbers = Float[Tensor, "batch head"]
HeadWeights = Float[Tensor, "batch head slot"]
SlotNumbers = Float[Tensor, "batch slot"]
Links = Float[Tensor, "batch slot previous_slot"]

#: Added to squared norms: a vector of zeros is like nothing, with a gradient of at most 10³.
EPSILON = 1e-6


def content_weights(key: HeadKeys, memory: Memory, strength: HeadNumbers) -> HeadWeights:
    """softmaxᵢ(β cos(k, Mᵢ)) (NTM equations 5 and 6; DNC "content-based addressing").

    cos(k, m) = k·m / √((|k|² + 10⁻⁶) (|m|² + 10⁻⁶)): 0 for vectors of zeros, with finite gradients.
    """
    key = key * (strength * _inverse_norms(key))[..., None]
    return ((key @ memory.mT) * _inverse_norms(memory)[:, None]).softmax(-1)


def _inverse_norms(vectors: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes"]:
    """1 / √(|v|² + 10⁻⁶) of each vector."""
    return ((vectors * vectors).sum(-1) + EPSILON).rsqrt()


def interpolate(weights: HeadWeights, previous: HeadWeights, gate: HeadNumbers) -> HeadWeights:
    """g w + (1 − g) w' (NTM equation 7): the gate at 1 takes the new weights."""
    return torch.lerp(previous, weights, gate[..., None])


def shift(weights: HeadWeights, kernel: Float[Tensor, "batch head shift"]) -> HeadWeights:
    """w̃ᵢ = Σⱼ wⱼ s(i − j), indices modulo the number of slots (NTM equation 8).

    A true convolution: `kernel` is over shifts −r … r in this order, and all of it on the last one
    moves what lies at slot i to slot i + r.
    """
    reach, slots = kernel.shape[-1] // 2, weights.shape[-1]
    if kernel.shape[-1] % 2 == 0 or kernel.shape[-1] > slots:
        raise ShapeError(
            f"shift: the kernel has {kernel.shape[-1]} entries over {slots} slots, expected an odd "
            "number of shifts, −r … r, and no more of them than slots"
        )
    shares = kernel[..., None].unbind(-2)  # (batch, head, 1) each
    moved = shares[0] * weights.roll(-reach, dims=-1)
    for offset, share in enumerate(shares[1:], start=1 - reach):
        moved = moved + share * weights.roll(offset, dims=-1)
    return moved


def sharpen(weights: HeadWeights, exponent: HeadNumbers) -> HeadWeights:
    """wᵢ^γ / Σⱼ wⱼ^γ (NTM equation 9), in logarithms: rows sum to 1 whatever the exponent.

    Weights below the smallest normal number count as that number, and get no gradient.
    """
    logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log()
    # Relative to the largest, which then is 0: not even an exponent of 10³⁸ leaves the numbers.
    logs = logs - logs.amax(-1, keepdim=True).detach()
    return (logs * exponent[..., None]).softmax(-1)


def write(
    memory: Memory,
    weights: HeadWeights,
    erase: HeadKeys,
    vectors: HeadKeys,
) -> Memory:
    """M ∘ Π_h (1 − w_h ⊗ e_h) + Σ_h w_h ⊗ a_h (NTM equations 3 and 4; DNC "writing to memory").

    Erased by all heads first, then added to by all of them, so that their order does not matter.
    `erase` is between 0 and 1.
    """
    ones = memory.new_ones(1, 1, 1)
    for column, row in zip(weights.mT.split(1, dim=2), erase.split(1, dim=1)):
        memory = memory * torch.baddbmm(ones, column, row, alpha=-1)  # 1 − w ⊗ e
    return torch.baddbmm(memory, weights.mT, vectors)


def read(memory: Memory, weights: HeadWeights) -> HeadKeys:
    """Σᵢ wᵢ Mᵢ (NTM equation 2), a vector per head."""
    return weights @ memory


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
