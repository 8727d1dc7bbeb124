"""Equations of Graves, Wayne & Danihelka 2014, section 3: content and location of an NTM's heads.

A DNC finds content, reads and writes by the same ones.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

Memory = Float[Tensor, "batch slot width"]
HeadKeys = Float[Tensor, "batch head width"]
HeadNumbers = Float[Tensor, "batch head"]
HeadWeights = Float[Tensor, "batch head slot"]
SlotNumbers = Float[Tensor, "batch slot"]

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
