"""Nine heads that look at one offset each are a 3 × 3 convolution (Cordonnier et al. 2020).

Head h scores the key at an offset (dy, dx) with −α ‖(dy, dx) − Δ_h‖², whatever the content, where
Δ_h is one of the nine offsets of the kernel. With a large α its softmax picks that key; its values,
times the kernel's matrix at Δ_h and summed over the heads, are the convolution (theorem 1). At the
border they differ: attention has no weight outside of the image, a convolution pads with zeros.

    python experiments/mechanisms/convolution_by_attention.py
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.kernel.image_windows import edges_of, local_attention
from regard.recipe import Offsets

KERNEL = torch.tensor(list(itertools.product((-1, 0, 1), repeat=2)))  # (head, axis)


def weights_and_values(image: Tensor, alpha: float, size: int = 9) -> tuple[Tensor, Tensor]:
    """Mixed values (batch, head, channel, row, column) and weights of nine heads."""
    batch, channels, height, width = image.shape
    offsets = torch.arange(size) - size // 2
    rows, columns = (
        (-alpha * (offsets - KERNEL[:, axis, None]) ** 2).to(image.dtype) for axis in (0, 1)
    )  # (head, size)
    shape = (batch, 9, size, height, width)
    nothing = image.new_zeros(batch, 9, 1, height, width)  # the content has no say
    return local_attention(
        nothing,
        nothing,
        image[:, None].expand(batch, 9, channels, height, width),
        rows[None, :, :, None, None].expand(shape),
        columns[None, :, :, None, None].expand(shape),
    )


def by_attention(image: Tensor, kernel: Tensor, alpha: float) -> Tensor:
    """The convolution of an image with a kernel (out, in, 3, 3), by nine heads."""
    mixed, _ = weights_and_values(image, alpha)
    return torch.einsum("bhcyx,och->boyx", mixed, kernel.flatten(2))


def errors(alpha: float, seed: int = 0) -> tuple[float, float]:
    """‖error‖ / ‖convolution‖ and the largest error / the largest output, inside of the border."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(2, 3, 16, 16, generator=generator)
    kernel = torch.randn(4, 3, 3, 3, generator=generator)
    inside = (..., slice(1, -1), slice(1, -1))
    truth = F.conv2d(image, kernel, padding=1)[inside]
    error = by_attention(image, kernel, alpha)[inside] - truth
    return float(error.norm() / truth.norm()), float(error.abs().max() / truth.abs().max())


def kernels(alpha: float) -> Offsets:
    """The weights of the nine heads over (dy, dx)."""
    _, weights = weights_and_values(torch.zeros(1, 1, 9, 9), alpha, size=5)
    return edges_of(weights, (5, 5)).offsets(reach=(2, 2))


def draw(path: Path) -> None:
    """Where a position in the middle looks: a row of pictures for each α."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 9, figsize=(9, 3.6), layout="constrained")
    for row, alpha in zip(axes, (1.0, 5.0, 20.0)):
        weights = kernels(alpha).weights[0, :, 4, 4]
        for axis, head, offset in zip(row, weights, KERNEL.tolist()):
            axis.imshow(head, cmap="viridis", vmin=0, vmax=1, extent=(-2.5, 2.5, 2.5, -2.5))
            axis.set(xticks=[], yticks=[])
            if alpha == 1.0:
                axis.set_title(f"Δ = ({offset[0]}, {offset[1]})", fontsize=8)
        row[0].set_ylabel(f"α = {alpha:g}")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="also draw the weights into this file")
    options = parser.parse_args()
    print("error of nine heads against a 3 × 3 convolution, inside of the border, seeds 0 to 4")
    print(f"{'α':>4}  {'‖error‖ / ‖output‖':>20}  {'largest / largest':>20}")
    for alpha in (1.0, 5.0, 20.0):
        relative, largest = (
            sorted(numbers) for numbers in zip(*(errors(alpha, s) for s in range(5)))
        )
        span = lambda numbers: f"{numbers[0]:.2g} to {numbers[-1]:.2g}"
        print(f"{alpha:>4g}  {span(relative):>20}  {span(largest):>20}")
    if options.picture is not None:
        draw(options.picture)


if __name__ == "__main__":
    main()
