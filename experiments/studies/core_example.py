"""One head of a trained encoder, step by step: "that" looks at "girl" in "see that girl run".

A head is not chosen by hand: all 72 of MiniLM are ranked by what "that" gives "girl", and the first
one is taken apart. Its query of "that" meets every key, the scores go through a softmax, and the
weights mix the values into a context vector: softmax(q Kᵀ / √d) V, from the weight matrices of the
model, beside what the model itself did.

The model is pretrained, and nothing here is random: all seeds give the same.

    python experiments/studies/core_example.py [--quick] [--picture FILE]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main, signed_map
from torch import Tensor

import regard
from regard.cli.packaged import minilm, quietly

SENTENCE, WORD, PARTNER = "see that girl run", "that", "girl"


@dataclass(frozen=True)
class Steps:
    """One head's calculation for one word; rows of keys and values are tokens."""

    layer: int
    head: int
    tokens: list[str]
    query: Tensor  #: (head width,)
    keys: Tensor  #: (token, head width)
    scores: Tensor  #: (token,)
    weights: Tensor  #: (token,)
    values: Tensor  #: (token, head width)
    context: Tensor  #: (head width,)


def step_by_step(x: Tensor, attention: Any, head: int, position: int) -> dict[str, Tensor]:
    """What one head does for one position, from its input x (token, width)."""
    width = attention.attention_head_size
    rows = slice(head * width, (head + 1) * width)

    def projected(linear: Any) -> Tensor:
        return x @ linear.weight[rows].T + linear.bias[rows]

    query = projected(attention.query)[position]
    keys, values = projected(attention.key), projected(attention.value)
    scores = keys @ query / width**0.5
    weights = scores.exp() / scores.exp().sum()
    return {
        "query": query,
        "keys": keys,
        "scores": scores,
        "weights": weights,
        "values": values,
        "context": weights @ values,
    }


def inputs_and_outputs(model: Any, layer: int, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What goes into the attention of a layer, and what its heads mixed: (token, width) each."""
    seen: list[Tensor] = []
    attention = model.encoder.layer[layer].attention
    handles = [
        attention.self.register_forward_pre_hook(lambda _, args: seen.append(args[0][0])),
        attention.output.dense.register_forward_pre_hook(lambda _, args: seen.append(args[0][0])),
    ]
    try:
        model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    x, mixed = seen
    return x, mixed


@torch.no_grad()
def study(quick: bool, seed: int) -> Outcome:
    with quietly():
        encoder = minilm()
    text = encoder.encode(SENTENCE)
    with regard.capture(encoder.model, tokens=text.tokens, values=True) as trace:
        encoder.model(**text.inputs)
    best, second, *_ = trace.find(WORD, PARTNER)
    position = text.tokens.index(WORD)
    x, mixed = inputs_and_outputs(encoder.model, best.layer, text.inputs)
    attention = encoder.model.encoder.layer[best.layer].attention.self
    parts = step_by_step(x, attention, best.head, position)
    steps = Steps(best.layer, best.head, text.tokens, **parts)
    record = trace[best.layer]
    width = attention.attention_head_size
    own_context = mixed[position, best.head * width : (best.head + 1) * width]
    girl = text.tokens.index(PARTNER)
    others = torch.cat([steps.scores[:girl], steps.scores[girl + 1 :]])
    figures = [
        Figure(f"weight of “{PARTNER}”, found by find", 0.97, best.weight, 0.005, "regard look"),
        Figure("the same in the next best head", 0.7, second.weight, 0.05, "regard look"),
        Figure(
            "weight of “girl”, calculated", best.weight, steps.weights[girl].item(), 1e-5, "found"
        ),
        Figure(
            "|weights − captured|",
            0.0,
            (steps.weights - record.weights()[0, best.head, position]).abs().max().item(),
            1e-6,
            "the model's own",
        ),
        Figure(
            "|context − the model's|",
            0.0,
            (steps.context - own_context).abs().max().item(),
            1e-5,
            "the model's own",
        ),
        Figure(
            "score of “girl” above the next",
            1.0,
            (steps.scores[girl] - others.max()).item(),
            0.0,
            "a clear winner",
            "at least",
        ),
    ]
    return Outcome(figures, steps)


def draw(outcome: Outcome, figure: Any) -> None:
    """Query, keys, scores, weights, values and context, in the order of the calculation."""
    steps = outcome.shown
    numbers = range(len(steps.tokens))
    panels = figure.subplots(
        2, 4, width_ratios=[3, 0.55, 0.55, 3], height_ratios=[1, 6], sharex="col"
    )
    for axis in (panels[0, 1], panels[0, 2]):
        axis.set_axis_off()
    most = max(steps.keys.abs().max().item(), steps.query.abs().max().item())
    largest = steps.values.abs().max().item()
    rows = [
        (panels[0, 0], steps.query[None], f"query of “{WORD}”, q", most),
        (panels[1, 0], steps.keys, "keys K", most),
        (panels[1, 3], steps.values, "values V", largest),
        (
            panels[0, 3],
            steps.context[None],
            "context, weights · V",
            largest,
        ),
    ]
    for axis, matrix, title, reach in rows:
        signed_map(None, axis, matrix, reach)
        axis.set_aspect("auto")
        axis.set_title(title, fontsize=8)
    for axis, column, title in (
        (panels[1, 1], steps.scores, "q·k / √d"),
        (panels[1, 2], steps.weights, "softmax"),
    ):
        axis.imshow(column[:, None].numpy(), cmap="viridis", aspect="auto")
        for row, value in enumerate(column.tolist()):
            dark = value < (column.max().item() + column.min().item()) / 2
            colour = "white" if dark else "black"
            axis.text(0, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
        axis.set(xticks=[], yticks=[])
        axis.set_title(title, fontsize=8)
        axis.spines[:].set_visible(False)
    panels[1, 0].set_yticks(numbers, steps.tokens)
    panels[1, 0].set_xlabel(f"features of layer {steps.layer} head {steps.head}")
    panels[1, 3].set_xlabel("features")


if __name__ == "__main__":
    main(__doc__, study, draw)
