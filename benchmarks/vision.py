"""Gates over images beside timm's own modules, with the same weights.

    .venv/bin/python benchmarks/vision.py [--quick]

Sizes are those of ResNet-50's stages at 224 × 224, on the residual branch. Ours are made from
timm's with `from_timm`, so parameters are equal; outputs are compared before anything is timed.
Every figure is a ratio of medians of processor time, taken in turn in one process; more than 1
means that ours take longer. timm comes with `make setup`; torchvision is not needed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from timing import interleaved, table
from torch import Tensor, nn

from regard.vision import CBAM, SqueezeExcitation

sys.path.append(str(Path(__file__).parents[1] / "tests" / "tracing" / "hf"))
from torchvision_stub import imported

BAR = 1.1
SIZES = ((256, 56), (512, 28), (1024, 14), (2048, 7))  # channels, height and width


def output_of(module: nn.Module, image: Tensor) -> Tensor:
    """The output alone, as a network takes it; what else was returned is let go."""
    result = module(image)
    output: Tensor = result if isinstance(result, Tensor) else result.output
    return output


def forward(module: nn.Module, image: Tensor) -> Tensor:
    """The output, for inference."""
    with torch.inference_mode():
        return output_of(module, image)


def both_ways(module: nn.Module, image: Tensor) -> tuple[Tensor, ...]:
    """Gradients of image and parameters."""
    output = output_of(module, image)
    return torch.autograd.grad(output.sum(), [image, *module.parameters()])


def rivals(channels: int) -> dict[str, tuple[nn.Module, nn.Module]]:
    """Ours and timm's, with the same weights."""
    layers, cbam = imported("timm.layers"), imported("timm.layers.cbam")
    se, pair = layers.SEModule(channels), cbam.CbamModule(channels)
    return {"SE": (SqueezeExcitation.from_timm(se), se), "CBAM": (CBAM.from_timm(pair), pair)}


def row(name: str, channels: int, size: int, batch: int, repeats: int) -> list[str]:
    """One gate at one size: parameters, both ratios, and how far the outputs are apart."""
    ours, timm = rivals(channels)[name]
    image = torch.randn(batch, channels, size, size)
    ours.eval(), timm.eval()
    apart = float((forward(ours, image) - forward(timm, image)).abs().max())
    assert apart < 1e-6, f"{name}: outputs are apart by {apart}"
    counts = {sum(p.numel() for p in module.parameters()) for module in (ours, timm)}
    assert len(counts) == 1, f"{name}: {counts} parameters"
    ratios = []
    for step, leaf in ((forward, image), (both_ways, image.clone().requires_grad_())):
        ours.train(step is both_ways), timm.train(step is both_ways)
        calls: dict[str, Callable[[], object]] = {
            "ours": partial(step, ours, leaf),
            "timm": partial(step, timm, leaf),
        }
        ratios.append(statistics.median(_ratio(calls, repeats) for _ in range(3)))
    shape = f"{batch} × {channels} × {size} × {size}"
    return [name, shape, f"{counts.pop():,}", *(f"{r:.2f}" for r in ratios), f"{apart:.0e}"]


def _ratio(calls: dict[str, Callable[[], object]], repeats: int) -> float:
    times = interleaved(calls, repeats)
    return times["ours"] / times["timm"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, smaller batches")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch, repeats = (4, 7) if quick else (8, 11)
    rows = [
        row(name, channels, size, batch, repeats)
        for name in ("SE", "CBAM")
        for channels, size in SIZES
    ]
    head = ["gate", "image", "parameters", "forward", "and backward", "apart"]
    table(f"time, ours over timm's (bar: at most {BAR})", head, rows)
    print(f"largest ratio: {max(float(r) for row in rows for r in row[3:5]):.2f}")


if __name__ == "__main__":
    main()
