"""On SmolLM2: the induction heads that capture finds are those whose silence hurts copying most."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard.editing import silence

pytestmark = pytest.mark.slow
sys.path.insert(0, str(Path(__file__).parents[1] / "tracing" / "pretrained"))
LENGTH, OTHERS = 40, 24


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def test_induction_heads_are_those_that_copy(capsys: pytest.CaptureFixture[str]) -> None:
    from loaders import smollm2

    model, _ = smollm2()
    half = torch.randint(1000, 40_000, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    words = torch.cat([half, half], 1)
    second = torch.arange(LENGTH, 2 * LENGTH - 1)

    def loss() -> float:
        """Of the second half, which repeats the first."""
        logits = model(words).logits[:, LENGTH:-1].log_softmax(-1)
        return -float(logits.gather(-1, words[:, LENGTH + 1 :, None]).mean())

    with torch.no_grad():
        trace = regard.trace(model, words)
        followed = second - LENGTH + 1
        scores = torch.stack(
            [record.weights()[:, :, second, followed].mean((0, 2)) for record in trace]
        )
        heads = scores.shape[1]
        order = scores.flatten().argsort(descending=True)
        chosen = torch.cat([order[:12], order[12 :: len(order[12:]) // OTHERS]])
        plain, damage = loss(), []
        for number in chosen.tolist():
            path = trace[number // heads].path
            change = silence(heads=number % heads, where=lambda site, path=path: site.path == path)
            with regard.edit(model, change, like=trace):
                damage.append(loss() - plain)
    hurt = torch.tensor(damage)
    correlation = float(
        torch.corrcoef(torch.stack([ranks(scores.flatten()[chosen]), ranks(hurt)]))[0, 1]
    )
    with capsys.disabled():
        print(
            f"\nSmolLM2: loss {plain:.3f}; silencing one of the 12 best induction heads adds "
            f"{float(hurt[:12].mean()):.4f}, one of {len(hurt) - 12} others "
            f"{float(hurt[12:].mean()):.4f}; rank correlation {correlation:.2f}"
        )
    assert hurt[:12].mean() > 2 * hurt[12:].mean().abs()
    # The correlation is only printed: most heads score near 0, where ranks are noise.
