"""A neural Turing machine learns to copy, and copies what is four times as long.

The task of Graves et al. 2014, section 4.1: a sequence of random 8-bit vectors, a delimiter, then
silence, during which the sequence is to be given back. Lengths 1 to 20 in training, the same for
all sequences of an update; memory 128 × 20, LSTM of width 100, one head of each kind. RMSProp
(momentum 0.9, α 0.95) as in most published code, with gradients clipped to a norm of 10 and batches
of 16. The rate falls from 4e-4 to 0: at a constant rate machines that had learnt it lost it again,
for a while, and not all of them copied what is longer.

    python experiments/mechanisms/ntm_copy.py [--seeds 0] [--compile] [--picture PNG] [--page HTML]
    python experiments/mechanisms/ntm_copy.py --finite 0 1 2 3 4 5 6 7 8 9 [--compile]

trains with each seed and prints the loss on the way and wrong bits a sequence at lengths 20, 40 and
80; or looks for NaN in losses, gradients and parameters of these seeds, over 2,000 updates at batch
16 and a constant rate.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from regard.memory import NTM

BITS, LONGEST = 8, 20
LENGTHS = (20, 40, 80)
SEQUENCES, BATCH = 30_000, 16


def sequences(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Input (batch, 2 · length + 1, bits + 1), and the bits (batch, length, bits) to give back."""
    bits = torch.randint(2, (batch, length, BITS)).float()
    x = torch.zeros(batch, 2 * length + 1, BITS + 1)
    x[:, :length, :BITS] = bits
    x[:, length, BITS] = 1.0  # the delimiter has a channel of its own
    return x, bits


def wrong_bits(output: Tensor, bits: Tensor) -> float:
    """Wrong bits a sequence, of length · 8."""
    return ((output > 0) != (bits > 0)).float().sum((1, 2)).mean().item()


@torch.no_grad()
def errors(machine: NTM, length: int, batch: int = 50) -> float:
    """Wrong bits a sequence on fresh sequences of one length."""
    x, bits = sequences(batch, length)
    return wrong_bits(machine(x).output[:, -length:], bits)


class Training:
    """A machine, its optimiser, and updates; its step compiled or not."""

    def __init__(self, seed: int, *, compiled: bool = False) -> None:
        torch.manual_seed(seed)
        self.machine = NTM(BITS + 1, BITS)
        self.optimiser = torch.optim.RMSprop(
            self.machine.parameters(), lr=4e-4, momentum=0.9, alpha=0.95
        )
        if compiled:
            self.machine.step = torch.compile(self.machine.step)

    def update(self, longest: int = LONGEST) -> tuple[float, float]:
        """One batch: its loss, and its wrong bits a sequence."""
        length = int(torch.randint(1, longest + 1, ()))
        x, bits = sequences(BATCH, length)
        output = self.machine(x).output[:, -length:]
        loss = binary_cross_entropy_with_logits(output, bits)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.machine.parameters(), 10.0)
        self.optimiser.step()
        return loss.item(), wrong_bits(output, bits)


def train(seed: int, *, compiled: bool = False) -> tuple[NTM, int | None]:
    """The machine after 30,000 sequences, and how many of them it took to converge.

    Converged: fewer than 0.1 wrong bits a sequence over 100 updates, from there to the end.
    """
    training, converged, recent = Training(seed, compiled=compiled), None, []
    updates = SEQUENCES // BATCH
    schedule = torch.optim.lr_scheduler.LinearLR(training.optimiser, 1.0, 0.0, updates)
    start = time.process_time()
    for update in range(1, updates + 1):
        recent.append(training.update())
        schedule.step()
        if update % 100 == 0:
            loss, wrong = (sum(column) / len(recent) for column in zip(*recent))
            seconds = time.process_time() - start
            print(f"{update * BATCH:6} {loss:8.4f} {wrong:8.3f} {seconds:8.0f} s", flush=True)
            recent = []
            converged = None if wrong >= 0.1 else converged or update * BATCH
    vars(training.machine).pop("step", None)  # other batch sizes would be compiled anew
    return training.machine, converged


def stays_finite(seed: int, updates: int = 2000, *, compiled: bool = False) -> tuple[bool, float]:
    """Whether losses, gradients and parameters were finite at every update; the last mean loss."""
    training, losses, finite = Training(seed, compiled=compiled), [], True
    for _ in range(updates):
        losses.append(training.update()[0])
        parameters = list(training.machine.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        finite &= all(bool(tensor.isfinite().all()) for tensor in [*parameters, *gradients])
    last = losses[-100:]
    return finite and all(loss == loss for loss in losses), sum(last) / len(last)


def draw(machine: NTM, path: str, length: int = LONGEST) -> None:
    """Write and read weights over the steps of one sequence, as two heatmaps beside each other."""
    import matplotlib.pyplot as plt

    torch.manual_seed(0)
    with torch.no_grad():
        trace = machine(sequences(1, length)[0], weights=True).trace
    middle = machine.slots // 2  # slots lie in a ring: heads start in the middle of the picture
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
    for side, name in zip(axes, ("write", "read")):
        weights = trace[name].weights()[0, 0].roll(middle, -1).T
        extent = (-0.5, weights.shape[1] - 0.5, -middle - 0.5, machine.slots - middle - 0.5)
        side.imshow(weights, origin="lower", aspect="auto", vmin=0, vmax=1, extent=extent)
        side.axvline(length, color="white", linewidth=0.8, linestyle=":")
        side.set(title=f"{name} weights", xlabel="step", ylim=(-2.2 * length, 2.2 * length))
    axes[0].set_ylabel("memory slot, from where heads start")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train and print, or look for NaN."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--finite", type=int, nargs="*", default=[], metavar="SEED")
    parser.add_argument("--compile", action="store_true", help="compile the step")
    parser.add_argument("--updates", type=int, default=2000, help="of --finite")
    parser.add_argument("--picture", help="write and read weights as a picture")
    parser.add_argument("--page", help="the same as a page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.finite:
        finite, loss = stays_finite(seed, options.updates, compiled=options.compile)
        word = "finite" if finite else "NOT FINITE"
        print(f"seed {seed}: {word}, loss of the last 100 updates {loss:.4f}", flush=True)
    if options.finite:
        return
    for seed in options.seeds:
        print(f"seed {seed}: sequences, loss, wrong bits a sequence, processor time")
        machine, converged = train(seed, compiled=options.compile)
        wrong = ", ".join(f"{length}: {errors(machine, length):.2f}" for length in LENGTHS)
        print(f"seed {seed}: converged at {converged} sequences; wrong bits at length {wrong}")
        if seed == options.seeds[0] and options.picture:
            draw(machine, options.picture)
        if seed == options.seeds[0] and options.page:
            torch.manual_seed(0)
            with torch.no_grad():
                machine(sequences(1, LONGEST)[0], weights=True).trace.save(options.page)


if __name__ == "__main__":
    main()
