"""The picture of local attention in the documentation: a position that looks at its own colour.

Queries and keys are made of the colours of an image, without training: q · k is −40 ‖difference of
colours‖² but for a term of the query, and a term of the row and one of the column fall with the
distance. What comes out is a bilateral filter (Tomasi and Manduchi 1998).

    python experiments/mechanisms/local_attention_picture.py docs/images/local_attention.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from regard.kernel.image_windows import edges_of, local_attention

SIDE, SIZE, QUERY = 32, 15, (12, 17)


def picture() -> Tensor:
    """A disc, a bar and a ground, with noise, (3, row, column) from 0 to 1."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    image = torch.tensor([0.2, 0.3, 0.6])[:, None, None].repeat(1, SIDE, SIDE)
    disc = (rows - 16) ** 2 + (columns - 17) ** 2 < 81
    image[:, disc] = torch.tensor([0.9, 0.7, 0.2])[:, None]
    image[:, (columns - rows).abs() < 3] = torch.tensor([0.6, 0.15, 0.2])[:, None]
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0))
    return (image + 0.04 * noise).clamp(0, 1)


def main() -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    image = picture()
    query = torch.cat([image, torch.ones(1, SIDE, SIDE)])[None, None]
    key = 40 * torch.cat([2 * image, -image.square().sum(0, keepdim=True)])[None, None]
    distances = -0.03 * (torch.arange(SIZE) - SIZE // 2) ** 2
    added = distances[None, None, :, None, None].expand(1, 1, SIZE, SIDE, SIDE)
    output, weights = local_attention(query, key, image[None, None], added, added)
    recipe = edges_of(weights, (SIZE, SIZE))
    row, column = QUERY
    near = recipe.offsets().weights[0, 0, row, column]
    far = recipe.weights(slice(row * SIDE + column, row * SIDE + column + 1)).view(SIDE, SIDE)

    figure, axes = pyplot.subplots(1, 4, figsize=(11, 3.4), layout="constrained")
    reach = SIZE // 2 + 0.5
    axes[0].imshow(image.movedim(0, -1))
    axes[0].set_title("image, and one query")
    axes[1].imshow(near, extent=(-reach, reach, reach, -reach), cmap="magma")
    axes[1].set(title="its weights over (dy, dx)", xlabel="dx", ylabel="dy")
    axes[2].imshow(image.mean(0), cmap="gray", alpha=0.4)
    axes[2].imshow(far, cmap="magma", alpha=0.8)
    axes[2].set_title("over the image")
    axes[3].imshow(output[0, 0].movedim(0, -1).clamp(0, 1))
    axes[3].set_title("output")
    for axis in (axes[0], axes[2]):
        axis.plot(column, row, "x", color="white", markersize=8, markeredgewidth=2)
    for axis in (axes[0], axes[2], axes[3]):
        axis.set(xticks=[], yticks=[])
    figure.savefig(Path(sys.argv[1]), dpi=110)


if __name__ == "__main__":
    main()
