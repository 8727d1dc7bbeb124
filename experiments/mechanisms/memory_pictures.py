"""The pictures of sigma-pi units and of fast weights in the documentation. Nothing is trained.

Exclusive or by one sigma-pi unit, its weights 1, 1 and −2, over the unit square. Then the implied
weights of a fast weight memory that is given four keys, and the same keys again with other values:
a sum answers with old and new values together, the delta rule with the new ones.

    python experiments/mechanisms/memory_pictures.py docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from regard.memory import FastWeights, SigmaPi

WIDTH, KEYS = 8, 4


def exclusive_or(x: Tensor) -> Tensor:
    """x₁ + x₂ − 2 x₁ x₂ of points (…, 2)."""
    unit = SigmaPi(2, 1, conjuncts=[(0,), (1,), (0, 1)])
    unit.weight.data = torch.tensor([[1.0, 1.0, -2.0]])
    return unit(x)[..., 0].detach()


def implied_weights(rule: str) -> Tensor:
    """Weights (step, step) of a memory that each step reads with the key it has just written."""
    keys = normalize(torch.randn(KEYS, WIDTH, generator=torch.Generator().manual_seed(3)), dim=-1)
    keys = keys.repeat(2, 1)  # each key comes twice
    values, strength = torch.zeros(2 * KEYS, 1), torch.full((2 * KEYS, 1), 20.0)  # β = 1
    emitted = [keys, values, keys] + [strength] * (rule == "delta")
    x = torch.cat(emitted, dim=-1)[None]  # (1, step, FROM, TO, query, β)
    memory = FastWeights(x.shape[2], WIDTH, 1, slow=nn.Identity(), rule=rule)
    weights = memory(x, weights=True).weights
    assert weights is not None
    return weights[0, 0]


def main() -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    folder = Path(sys.argv[1])
    side = torch.linspace(0, 1, 101)
    figure, axis = pyplot.subplots(figsize=(4, 3.4), layout="constrained")
    square = exclusive_or(torch.cartesian_prod(side, side).view(101, 101, 2))
    image = axis.imshow(square.T, origin="lower", extent=(0, 1, 0, 1), cmap="viridis")
    for x, y in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)):
        value = exclusive_or(torch.tensor([x, y])).item()
        corner, colour = (0.03 + 0.92 * x, 0.03 + 0.88 * y), "black" if value else "white"
        axis.annotate(f"{value:.0f}", corner, color=colour)
    axis.set(xlabel="x₁", ylabel="x₂", title="x₁ + x₂ − 2 x₁ x₂")
    figure.colorbar(image)
    figure.savefig(folder / "sigma-pi.png", dpi=110)

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
    names = [f"key {key + 1}" + "′" * again for again in range(2) for key in range(KEYS)]
    for axis, rule in zip(axes, ("sum", "delta")):
        image = axis.imshow(implied_weights(rule), cmap="RdBu_r", vmin=-1, vmax=1)
        axis.set(title=f'rule="{rule}"', xlabel="written", xticks=range(8), yticks=range(8))
        axis.set_xticklabels(names, rotation=60)
        axis.set_yticklabels(names)
    axes[0].set_ylabel("asked for")
    figure.colorbar(image, ax=axes, label="implied weight")
    figure.savefig(folder / "fast-weights.png", dpi=110)


if __name__ == "__main__":
    main()
