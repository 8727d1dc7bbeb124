"""Blocks without skips around attention, values and projections learn as well as usual ones.

He & Hofmann 2023, "Simplifying Transformer Blocks", strip a block down to 10 · width² weights from
12: in an SAS block attention begins as the identity, which replaces its skip connection, its values
and its output projection; in an SAS-P block the feed-forward part stands beside it, and no skip is
left. They train 18 layers for 40,000 updates and find, in each update, the loss of a pre-norm model
of equal depth, and 15 % more updates a second.

Here six layers learn the text of Python's own manual character by character, with the settings of
the paper (RMS norms, ReLU, AdamW with decay 0.1, 5 % warm-up, gradients clipped at 1, the
feed-forward part begun with a gain of 1 / √depth). Five pre-norm blocks have as many weights as six
simplified ones. Time is measured here, and for one block of the paper's width, where products of
matrices are what costs. It depends on the machine, as equal depth does on the length of training:
both are reported, not asserted.

    python experiments/studies/simplified_blocks.py [--quick] [--picture FILE]
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import torch
from study import Figure, Outcome, main, signed_map
from torch import Tensor, nn
from torch.nn import functional as F

from regard.blocks import AttentionBlock, EncoderBlock, FeedForward, PreNorm, sas_block, sas_p_block
from regard.cli.packaged.studies.characters import (
    ALPHABET,
    CONTEXT,
    DEPTH,
    EXAMPLE,
    HEADS,
    WIDTH,
    CharacterModel,
    encode,
    sas_blocks,
)
from regard.mechanisms import MultiHead

BATCH, RATE = 16, 2e-3
EVERY = 20  # steps between two measurements of the held-out loss
PAPER_WIDTH, PAPER_HEADS, PAPER_CONTEXT = 768, 12, 128
NOISE = 0.02  #: nats, about 1 % of the loss: what the eye cannot tell apart in a curve


def pre_norm_block(width: int, n_heads: int) -> AttentionBlock:
    """The usual block, without biases in its attention."""
    return EncoderBlock(
        PreNorm(width, MultiHead(width, n_heads, bias=False), norm=nn.RMSNorm(width)),
        PreNorm(width, FeedForward(width), norm=nn.RMSNorm(width)),
    )


def sas_p_blocks() -> list[AttentionBlock]:
    gain = DEPTH**-0.5
    return [sas_p_block(WIDTH, HEADS, values=layer == 0, gain=gain) for layer in range(DEPTH)]


STACKS = {
    f"pre-norm, {DEPTH} blocks": lambda: [pre_norm_block(WIDTH, HEADS) for _ in range(DEPTH)],
    f"pre-norm, {DEPTH - 1} blocks": lambda: [
        pre_norm_block(WIDTH, HEADS) for _ in range(DEPTH - 1)
    ],
    f"SAS, {DEPTH} blocks": sas_blocks,
    f"SAS-P, {DEPTH} blocks": sas_p_blocks,
}


def manual() -> tuple[Tensor, Tensor]:
    """Training and held-out characters of Python's manual; those outside ASCII are left out."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    text = "\n".join(topics[name] for name in sorted(topics))
    codes = torch.tensor([numbers[character] for character in text if character in numbers])
    cut = int(0.9 * len(codes))
    return codes[:cut], codes[cut:]


def passages(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Passages at random, each with the character behind it: (passage, context + 1)."""
    starts = torch.randint(len(text) - CONTEXT, (count, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)]


def loss_of(model: nn.Module, passage: Tensor) -> Tensor:
    """Mean loss in nats a character."""
    return F.cross_entropy(model(passage[:, :-1]).flatten(0, 1), passage[:, 1:].flatten())


@dataclass(frozen=True)
class Training:
    """A model, its held-out loss by step, and the seconds of a step."""

    model: CharacterModel
    losses: dict[int, float]
    seconds: float

    @property
    def final(self) -> float:
        return list(self.losses.values())[-1]

    @property
    def weights(self) -> int:
        """Entries of the matrices of its blocks."""
        return matrix_entries(self.model.stack)


def matrix_entries(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)


def train(blocks: list[AttentionBlock], steps: int, seed: int) -> Training:
    text, held_out = manual()
    probe = passages(held_out, 128, torch.Generator().manual_seed(0))
    model = CharacterModel(blocks)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, RATE, steps, pct_start=0.05, anneal_strategy="linear", cycle_momentum=False
    )
    generator = torch.Generator().manual_seed(seed)
    losses, spent = {}, 0.0
    for step in range(steps + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                losses[step] = loss_of(model, probe).item()
        if step == steps:
            break
        began = time.process_time()
        optimiser.zero_grad()
        loss_of(model, passages(text, BATCH, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        spent += time.process_time() - began
    return Training(model.eval(), losses, spent / steps)


def seconds_of_blocks() -> dict[str, float]:
    """What a forward and backward pass of one block takes at the width of the paper."""
    blocks = {
        "pre-norm": pre_norm_block(PAPER_WIDTH, PAPER_HEADS),
        "SAS": sas_block(PAPER_WIDTH, PAPER_HEADS),
        "SAS-P": sas_p_block(PAPER_WIDTH, PAPER_HEADS),
    }
    x = torch.randn(2, PAPER_CONTEXT, PAPER_WIDTH)
    seconds = dict.fromkeys(blocks, float("inf"))
    for _ in range(8):  # the fastest of several, in turn: what else the machine does adds to all
        for name, block in blocks.items():
            began = time.process_time()
            block(x, causal=True).output.sum().backward()
            seconds[name] = min(seconds[name], time.process_time() - began)
    return seconds


@torch.no_grad()
def change_at_the_start() -> float:
    """What the attention of an untrained SAS block makes of its input, besides the input."""
    attention = sas_block(WIDTH, HEADS).self_attention.part
    x = torch.randn(4, CONTEXT, WIDTH)
    return (attention(x, causal=True).output - x).abs().max().item()


@dataclass(frozen=True)
class Shown:
    """The training of each stack, and the weights of one head on a text."""

    trainings: dict[str, Training]
    text: str
    head: str
    weights: Tensor


@torch.no_grad()
def shown_of(trainings: dict[str, Training], model: CharacterModel) -> Shown:
    """With the head that has gone farthest from a multiple of the identity."""
    text = EXAMPLE[0]
    blocked = model.stack(model.embedded(encode(text).inputs["text"]), causal=True, weights=True)
    weights = torch.cat([attended.weights[0] for attended in blocked.attentions.values()])
    apart = weights.tril(-1).abs().sum((1, 2))  # (head of all layers,)
    layer, head = divmod(int(apart.argmax()), HEADS)
    return Shown(trainings, text, f"layer {layer} head {head}", weights[layer * HEADS + head])


def study(quick: bool, seed: int) -> Outcome:
    torch.manual_seed(seed)
    start = change_at_the_start()
    seconds = seconds_of_blocks()
    trainings = {}
    for name, blocks in STACKS.items():
        torch.manual_seed(seed)
        trainings[name] = train(blocks(), 120 if quick else 300, seed)
    deep, shallow, sas, sas_p = trainings.values()
    of_block = matrix_entries(sas_block(WIDTH, HEADS)) / matrix_entries(
        pre_norm_block(WIDTH, HEADS)
    )
    figures = [
        Figure(
            "weights of a block, SAS over pre-norm", 10 / 12, of_block, 1e-6, "10 and 12 width²"
        ),
        Figure("attention of a new SAS block: |y − x|", 0.0, start, 1e-6, "the identity"),
    ]
    for name, training in (("SAS", sas), ("SAS-P", sas_p)):
        times = {  # of one block as wide as the paper's, and of a whole step here
            f"a block, width {PAPER_WIDTH}": seconds[name] / seconds["pre-norm"],
            f"a step here, width {WIDTH}": training.seconds / deep.seconds,
        }
        figures += [
            Figure(
                f"{name}: loss above pre-norm of equal weights",
                0.0,
                training.final - shallow.final,
                NOISE,
                "He & Hofmann",
                "at most",
            ),
            Figure(
                f"{name}: loss above pre-norm of equal depth",
                0.0,
                training.final - deep.final,
                NOISE,
                "He & Hofmann",
                "at most",
                asserted=False,
            ),
            *(
                Figure(
                    f"{name}: time of {what}, over pre-norm",
                    1 / 1.15,
                    ratio,
                    0.05,
                    "15 % faster",
                    "at most",
                    asserted=False,
                )
                for what, ratio in times.items()
            ),
        ]
    return Outcome(figures, shown_of(trainings, sas.model), sas.model)


def draw(outcome: Outcome, figure: Any) -> None:
    """Held-out loss over steps and over time, and the weights of one head."""
    shown = outcome.shown
    steps, times, weights = figure.subplots(1, 3, width_ratios=[1.2, 1.2, 1])
    styles = [("0.5", "-"), ("0.5", ":"), ("C0", "-."), ("C1", "--")]
    for (name, training), (colour, line) in zip(shown.trainings.items(), styles):
        at, losses = list(training.losses), list(training.losses.values())
        steps.plot(at, losses, line, color=colour, linewidth=1.2, label=name)
        times.plot(
            [step * training.seconds for step in at], losses, line, color=colour, linewidth=1.2
        )
    final = min(training.final for training in shown.trainings.values())
    for axis, unit in ((steps, "step"), (times, "seconds of processor")):
        axis.set(xlabel=unit, ylabel="held-out nats a character", ylim=(final - 0.1, final + 1))
    steps.legend(frameon=False, fontsize=7)
    most = shown.weights.tril(-1).abs().max().item()  # the identity is beyond the scale
    signed_map(figure, weights, shown.weights, most)
    letters = [letter.replace(" ", "␣") for letter in shown.text]
    weights.tick_params(length=0, pad=1)
    weights.set_xticks(range(len(letters)), letters, fontsize=4)
    weights.set_yticks(range(len(letters)), letters, fontsize=4)
    weights.set_title(f"SAS, {shown.head}", fontsize=8)


if __name__ == "__main__":
    main(__doc__, study, draw)
