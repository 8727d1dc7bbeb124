"""A differentiable neural computer learns to repeat a sequence as often as it is told.

The repeat copy of Graves et al. 2014, section 4.2, which the authors' DNC code trains on too:
random 4-bit vectors, a delimiter that carries the number of repeats, then silence, during which the
sequence is to be given back that many times. Lengths 1 to 4, repeats 1 to 3; memory 12 × 10, two
read heads, LSTM of width 64. Adam 1e-3, batches of 8, gradients clipped to a norm of 10.

    python experiments/mechanisms/dnc_repeat_copy.py [--seed 0] [--picture PATH.png]

prints the loss on the way, and the share of right bits for each length and number of repeats, with
one more of each than in training.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from regard.memory import DNC
from regard.memory.controllers import LSTMController

BITS, LONGEST, REPEATS = 4, 4, 3
BATCH, SEQUENCES = 8, 40_000
SLOTS, SLOT_WIDTH, READ_HEADS = 12, 10, 2


def machine() -> DNC:
    """The machine that is trained."""
    controller = LSTMController(BITS + 1 + READ_HEADS * SLOT_WIDTH, 64)
    return DNC(
        BITS + 1,
        BITS,
        slots=SLOTS,
        slot_width=SLOT_WIDTH,
        read_heads=READ_HEADS,
        controller=controller,
    )


def sequences(batch: int, length: int, repeats: int) -> tuple[Tensor, Tensor]:
    """Input (batch, step, bits + 1), and the bits (batch, length · repeats, bits) to give back."""
    bits = torch.randint(2, (batch, length, BITS)).float()
    x = torch.zeros(batch, length + 1 + length * repeats, BITS + 1)
    x[:, :length, :BITS] = bits
    x[:, length, BITS] = repeats / REPEATS
    return x, bits.repeat(1, repeats, 1)


def right_bits(output: Tensor, bits: Tensor) -> float:
    """The share of right bits."""
    return ((output > 0) == (bits > 0)).float().mean().item()


@torch.no_grad()
def accuracy(dnc: DNC, length: int, repeats: int, batch: int = 50) -> float:
    """The share of right bits on fresh sequences."""
    x, bits = sequences(batch, length, repeats)
    return right_bits(dnc(x).output[:, -length * repeats :], bits)


def train(seed: int, sequences_at_most: int = SEQUENCES) -> DNC:
    """Until 99.9 % of the bits of 2,000 sequences are right, for 40,000 sequences at most."""
    torch.manual_seed(seed)
    dnc, recent, start = machine(), [], time.process_time()
    optimiser = torch.optim.Adam(dnc.parameters(), lr=1e-3)
    for update in range(1, sequences_at_most // BATCH + 1):
        length, repeats = (int(torch.randint(1, most + 1, ())) for most in (LONGEST, REPEATS))
        x, bits = sequences(BATCH, length, repeats)
        output = dnc(x).output[:, -length * repeats :]
        loss = binary_cross_entropy_with_logits(output, bits)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(dnc.parameters(), 10.0)
        optimiser.step()
        recent.append((loss.item(), right_bits(output, bits)))
        if update * BATCH % 2000 == 0:
            loss_mean, right = (sum(column) / len(recent) for column in zip(*recent))
            seconds = time.process_time() - start
            print(f"{update * BATCH:6} {loss_mean:8.4f} {right:8.2%} {seconds:8.0f} s", flush=True)
            recent = []
            if right > 0.999:
                break
    return dnc


def draw(dnc: DNC, path: str, length: int = 4, repeats: int = 3) -> None:
    """Usage, write and read weights over the steps, and the links after the last write."""
    import matplotlib.pyplot as plt

    torch.manual_seed(0)
    x, _ = sequences(1, length, repeats)
    state, usage, links = None, [], None
    with torch.no_grad():
        trace = dnc(x, weights=True).trace
        for step in range(x.shape[1]):
            state = dnc(x[:, step : step + 1], state=state).state
            usage.append(state.usage[0])
            links = state.links[0] if step == length else links
    panels = {
        "write weights": trace["write"].weights()[0, 0].T,
        "usage": torch.stack(usage, 1),
        "read weights, head 0": trace["read"].weights()[0, 0].T,
        "read weights, head 1": trace["read"].weights()[0, 1].T,
    }
    figure, axes = plt.subplots(1, 5, figsize=(15, 3.4))
    for side, (title, weights) in zip(axes, panels.items()):
        side.imshow(weights, cmap="viridis", origin="lower", aspect="auto", vmin=0, vmax=1)
        for end in range(length, x.shape[1], length):
            side.axvline(end + 0.5, color="white", linewidth=0.6, linestyle=":")
        side.set(title=title, xlabel="step")
    axes[0].set_ylabel("memory slot")
    axes[4].imshow(links, cmap="viridis", origin="lower", vmin=0, vmax=1)
    axes[4].set(title="links at the delimiter", xlabel="slot written before", ylabel="slot")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--picture", help="usage, weights and links as a picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"seed {options.seed}: sequences, loss, right bits, processor time")
    dnc = train(options.seed, options.sequences)
    print("right bits at length".ljust(22) + "".join(f"{n:9}" for n in range(1, LONGEST + 2)))
    for repeats in range(1, REPEATS + 2):
        row = "".join(f"{accuracy(dnc, length, repeats):9.2%}" for length in range(1, LONGEST + 2))
        print(f"{repeats} repeats".ljust(22) + row, flush=True)
    if options.picture:
        draw(dnc, options.picture)


if __name__ == "__main__":
    main()
