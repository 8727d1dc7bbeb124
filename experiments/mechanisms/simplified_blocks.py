"""Character models of equal depth: pre-norm blocks, SAS and SAS-P.

He & Hofmann 2023, "Simplifying transformer blocks", train 18 layers for 40,000 steps and find that
simplified blocks learn as fast for each update, with fewer weights. This is the same comparison, as
small as it can be: RMS norms, ReLU, AdamW at 1e-3 with decay 0.1, 5 % warm-up and clipped gradients
as in the paper, on the text of Python's own manual.

    python experiments/mechanisms/simplified_blocks.py
"""

from __future__ import annotations

import argparse
import statistics
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.blocks import (
    AttentionBlock,
    EncoderBlock,
    FeedForward,
    PreNorm,
    Stack,
    sas_block,
    sas_p_block,
)
from regard.mechanisms import MultiHead

WIDTH, HEADS, DEPTH, CONTEXT, BATCH = 64, 4, 6, 64, 16


def pre_norm_block(layer: int) -> AttentionBlock:
    """The usual block, without biases in its attention."""
    return EncoderBlock(
        PreNorm(WIDTH, MultiHead(WIDTH, HEADS, bias=False), norm=nn.RMSNorm(WIDTH)),
        PreNorm(WIDTH, FeedForward(WIDTH), norm=nn.RMSNorm(WIDTH)),
    )


BLOCKS = {
    "pre-norm": pre_norm_block,
    "SAS": lambda layer: sas_block(WIDTH, HEADS, values=layer == 0),
    "SAS-P": lambda layer: sas_p_block(WIDTH, HEADS, values=layer == 0),
}


class CharacterModel(nn.Module):
    """Embeddings of characters and positions, a stack, and scores of the next character."""

    def __init__(self, name: str, n_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(n_characters, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        blocks = [BLOCKS[name](layer) for layer in range(DEPTH)]
        self.stack = Stack(blocks, norm=nn.RMSNorm(WIDTH))
        self.to_scores = nn.Linear(WIDTH, n_characters)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, position) characters to (batch, position, character) scores."""
        x = self.characters(text) + self.positions.weight[: text.shape[1]]
        scores: Tensor = self.to_scores(self.stack(x, causal=True).output)
        return scores


def manual() -> tuple[Tensor, Tensor, int]:
    """Training and held-out characters of Python's manual, and how many different ones."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])
    cut = int(0.9 * len(numbers))
    return numbers[:cut], numbers[cut:], len(alphabet)


def passages(numbers: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Passages at random, and the character behind each of theirs."""
    starts = torch.randint(len(numbers) - CONTEXT, (count, 1), generator=generator)
    rows = numbers[starts + torch.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    text, following = batch
    return F.cross_entropy(model(text).flatten(0, 1), following.flatten())


def trained_loss(name: str, seed: int, steps: int) -> float:
    """Held-out loss, in nats a character, after training."""
    training, held_out, n_characters = manual()
    torch.manual_seed(seed)
    model = CharacterModel(name, n_characters)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / warm_up, max(0.0, 1 - step / steps) * 1.05)
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimiser.zero_grad()
        loss_of(model, passages(training, BATCH, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return float(loss_of(model, passages(held_out, 512, torch.Generator().manual_seed(0))))


def weights_of_a_block(name: str) -> int:
    block = BLOCKS[name](1)  # the first has a projection of values besides
    return sum(parameter.numel() for parameter in block.parameters() if parameter.dim() == 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(f"{DEPTH} layers of width {WIDTH}, {options.steps} steps, held-out nats a character")
    for name in BLOCKS:
        losses = [trained_loss(name, seed, options.steps) for seed in range(options.seeds)]
        shown = ", ".join(f"{loss:.3f}" for loss in losses)
        squares = weights_of_a_block(name) / WIDTH**2
        print(
            f"{name:9} {statistics.mean(losses):.3f} (seeds {shown}), {squares:g} · width² a block",
            flush=True,
        )


if __name__ == "__main__":
    main()
