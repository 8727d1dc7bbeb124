"""One layer of linear attention learns to regress from the examples in its context.

A prompt is N examples (xᵢ, yᵢ) of a linear function that changes with each prompt, and a query x:

    E = [x₁ … x_N x; y₁ … y_N 0],  output = E + W_PV E (Eᵀ W_KQ E) / N,

of which the entry below x is the prediction (Zhang, Frei and Bartlett 2024, "Trained transformers
learn linear models in-context"). The paper shows where training ends: at one step of gradient
descent preconditioned with Γ = (1 + 1/N) Λ + tr(Λ)/N, not at least squares. For x and the function
standard normal in d dimensions the loss is then d (d + 1) / (N + d + 1). Γ keeps the N of training,
whatever the length of later prompts.

The layer is `LinearAttention` with the identity as feature map and rows not divided by their sums.
Its implied weight of an example is what the attention shows: xᵀ Γ⁻¹ xᵢ / N.

    python experiments/studies/in_context_regression.py [--quick] [--picture FILE]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main
from torch import Tensor, nn

import regard
from regard.mechanisms import IdentityFeatures, LinearAttention

WIDTH, EXAMPLES = 5, 20  # d and N
LENGTHS = (10, 20, 40, 80)
PROMPTS = 100_000  # to measure a loss on


class Regression(nn.Module):
    """One layer of linear attention over the examples of a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = LinearAttention(
            WIDTH + 1, 1, bias=False, feature_map=IdentityFeatures(), normalised=False
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)

    def forward(self, prompt: Tensor) -> Tensor:
        """Prompts (batch, example and query, d + 1), answers (batch,)."""
        examples = prompt.shape[1] - 1  # divided by N: the query's own y says nothing
        output: Tensor = self.attention(prompt[:, -1:], prompt).output / examples
        return output[:, 0, -1]


def prompts(count: int, examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Prompts, and what the query's y is."""
    x = torch.randn(count, examples + 1, WIDTH, generator=generator)
    function = torch.randn(count, WIDTH, 1, generator=generator)
    y = x @ function
    prompt = torch.cat([x, y], -1)
    prompt[:, -1, -1] = 0.0
    return prompt, y[:, -1, 0]


def train(steps: int, seed: int) -> Regression:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Regression()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, steps)
    for _ in range(steps):
        prompt, y = prompts(4096, EXAMPLES, generator)
        loss = (model(prompt) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


def predicted(length: float) -> float:
    """The loss of one step preconditioned with the Γ of training, on prompts of some length."""
    gamma = 1 + (1 + WIDTH) / EXAMPLES
    return WIDTH * (1 - 2 / gamma + (1 + (WIDTH + 1) / length) / gamma**2)


@dataclass(frozen=True)
class Shown:
    """Losses by length, and the weights of examples beside those of the preconditioned step."""

    losses: dict[int, float]
    weights: Tensor
    gradient_step: Tensor


def study(quick: bool, seed: int) -> Outcome:
    return measure(train(500 if quick else 2000, seed), seed)


@torch.no_grad()
def measure(model: Regression, seed: int) -> Outcome:
    generator = torch.Generator().manual_seed(1000 + seed)
    losses = {}
    for length in LENGTHS:
        prompt, y = prompts(PROMPTS, length, generator)
        losses[length] = (model(prompt) - y).square().mean().item()
    prompt, _ = prompts(50, EXAMPLES, generator)
    with regard.capture(model) as trace:
        model(prompt)
    (record,) = trace
    # How much of an example's y the answer takes: its weight, times what the value path makes of y.
    taken = model.attention.to_output.weight[-1] @ model.attention.to_value.weight[:, -1]
    weights = record.weights()[:, 0, 0, :-1] * taken / EXAMPLES  # (prompt, example)
    gamma = 1 + (1 + WIDTH) / EXAMPLES
    x, query = prompt[:, :-1, :-1], prompt[:, -1, :-1, None]
    gradient_step = (x @ query)[..., 0] / gamma / EXAMPLES
    agreement = torch.corrcoef(torch.stack([weights.flatten(), gradient_step.flatten()]))[0, 1]
    figures = [
        Figure(
            f"loss, {length} examples" + (" (as trained)" if length == EXAMPLES else ""),
            predicted(length),
            loss,
            0.05 * predicted(length),
            "d (d + 1) / (N + d + 1)" if length == EXAMPLES else "Γ of 20 examples",
        )
        for length, loss in losses.items()
    ]
    figures.append(Figure("weights, xᵀ Γ⁻¹ xᵢ / N: correlation", 1.0, agreement.item(), 0.01, "Γ"))
    return Outcome(figures, Shown(losses, weights, gradient_step))


def draw(outcome: Outcome, figure: Any) -> None:
    """Losses over lengths, and the weights of examples over those of the gradient step."""
    shown = outcome.shown
    left, right = figure.subplots(1, 2)
    lengths = torch.logspace(0.7, 2.1, 60).tolist()
    left.plot(lengths, [predicted(n) for n in lengths], color="0.6", label="theory, Γ of N = 20")
    left.plot(
        list(shown.losses), list(shown.losses.values()), "o", color="C0", label="trained layer"
    )
    left.set(xscale="log", xlabel="examples in the prompt", ylabel="squared error")
    left.set_xticks(LENGTHS, [str(n) for n in LENGTHS])
    left.minorticks_off()
    left.legend(frameon=False)
    right.plot(
        shown.gradient_step.flatten().numpy(),
        shown.weights.flatten().numpy(),
        ".",
        markersize=2,
        color="C0",
    )
    right.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    right.set(
        xlabel="weight in the gradient step, xᵀ Γ⁻¹ xᵢ / N", ylabel="implied attention weight"
    )


if __name__ == "__main__":
    main(__doc__, study, draw)
