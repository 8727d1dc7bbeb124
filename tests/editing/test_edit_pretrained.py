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
LENGTH, BEST = 40, 12


def ranks(values: Tensor) -> Tensor:
    return values.argsort().argsort().double()


def test_induction_heads_are_those_that_copy(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside each of the best a head of the same layer, drawn from those that score low: layers
    differ in how much any head of theirs matters, so heads of other layers would be no rivals."""
    from loaders import smollm2

    model, _ = smollm2()
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(1000, 40_000, (2, LENGTH), generator=generator)
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
        best = [divmod(number, heads) for number in scores.flatten().topk(BEST).indices.tolist()]
        drawn = torch.rand(scores.shape, generator=generator)
        drawn = drawn.masked_fill(scores > scores.median(), -1.0)
        rivals = []
        for layer, _ in best:
            rivals.append((layer, int(drawn[layer].argmax())))
            drawn[rivals[-1]] = -1.0
        plain, damage = loss(), []
        for layer, head in [*best, *rivals]:
            path = trace[layer].path
            change = silence(heads=head, where=lambda site, path=path: site.path == path)
            with regard.edit(model, change, like=trace):
                damage.append(loss() - plain)
    hurt = torch.tensor(damage)
    by_score = torch.tensor([float(scores[place]) for place in [*best, *rivals]])
    correlation = float(torch.corrcoef(torch.stack([ranks(by_score), ranks(hurt)]))[0, 1])
    worse = int((hurt[:BEST] > hurt[BEST:]).sum())
    with capsys.disabled():
        print(
            f"\nSmolLM2: loss {plain:.3f}; silencing one of the {BEST} best induction heads adds "
            f"{float(hurt[:BEST].mean()):.4f}, a low-scoring head of its layer "
            f"{float(hurt[BEST:].mean()):.4f}; worse in {worse} of {BEST} pairs; rank correlation "
            f"{correlation:.2f}"
        )
    assert hurt[:BEST].mean() > 2 * hurt[BEST:].mean().abs()
    assert worse > BEST / 2
