"""What a step of a machine costs: NTM beside a plain loop, DNC beside the package of that name.

Forward, and forward with backward, of one sequence, in one process and in turn, one torch thread.
The plain loop is the paper's equations as one would write them down, one head of each kind, with
the parameters of our machine; its outputs are compared before anything is timed. The package `dnc`
(PyPI) is taken where it is installed, with the same sizes: one LSTM layer, one interface map.

    python benchmarks/memory.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import interleaved, table
from torch import Tensor, nn

from regard.memory import DNC, NTM
from regard.memory.controllers import LSTMController

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

NTM_BAR, DNC_BAR = 1.2, 1.0


def plain_ntm(machine: NTM, x: Tensor) -> Tensor:
    """The equations of Graves et al. 2014, as they stand, with the parameters of `machine`."""
    batch, slots, width = x.shape[0], machine.slots, machine.slot_width
    memory = torch.full((batch, slots, width), 1e-6)
    start = torch.zeros(batch, slots)
    start[:, 0] = 1.0
    weights, outputs = [start, start], []
    hidden = cell = torch.zeros(batch, machine.controller.width)
    read = memory[:, 0]
    for step in range(x.shape[1]):
        hidden, cell = machine.controller.cell(torch.cat([x[:, step], read], 1), (hidden, cell))
        interface = machine.to_interface(hidden)
        keys, sharpness, gates, kernels, added = interface.split(machine.interface_widths, 1)
        for head in range(2):
            key = keys[:, head * width : (head + 1) * width]
            strength = F.softplus(sharpness[:, head : head + 1])
            exponent = 1 + F.softplus(sharpness[:, head + 2 : head + 3])
            gate = torch.sigmoid(gates[:, head : head + 1])
            kernel = torch.softmax(kernels[:, 3 * head : 3 * head + 3], 1)
            similar = F.cosine_similarity(key[:, None], memory, dim=-1)
            content = torch.softmax(strength * similar, 1)
            mixed = gate * content + (1 - gate) * weights[head]
            moved = (
                kernel[:, 0:1] * mixed.roll(-1, 1)
                + kernel[:, 1:2] * mixed
                + kernel[:, 2:3] * mixed.roll(1, 1)
            )
            powers = (moved + 1e-16) ** exponent
            weights[head] = powers / powers.sum(1, keepdim=True)
        read = (weights[0][:, None] @ memory)[:, 0]
        erase = torch.sigmoid(gates[:, 2:])
        memory = memory * (1 - weights[1][:, :, None] * erase[:, None])
        memory = memory + weights[1][:, :, None] * torch.tanh(added)[:, None]
        outputs.append(machine.to_output(torch.cat([hidden, read], 1)))
    return torch.stack(outputs, 1)


def timed(calls: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds of each call, forward alone and with the backward pass."""

    def without_graph(call: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return call()

        return run

    def with_backward(call: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: call().square().mean().backward()

    forward = interleaved({name: without_graph(call) for name, call in calls.items()}, repeats)
    both = interleaved({name: with_backward(call) for name, call in calls.items()}, repeats)
    return {name: (forward[name], both[name]) for name in calls}


def row(size: str, steps: int, ours: tuple[float, float], theirs: tuple[float, float]) -> list[str]:
    cells = [size]
    for mine, other in zip(ours, theirs):
        cells += [f"{mine / steps * 1e6:.0f}", f"{other / steps * 1e6:.0f}", f"{mine / other:.2f}"]
    return cells


def head(rival: str) -> list[str]:
    return ["", "forward µs", rival, "ratio", "with backward µs", rival, "ratio"]


def of_ntm(batches: list[int], steps: int, repeats: int) -> list[float]:
    rows, worst = [], []
    for batch in batches:
        torch.manual_seed(0)
        machine, x = NTM(9, 8), torch.rand(batch, steps, 9)
        with torch.no_grad():
            difference = (machine(x).output - plain_ntm(machine, x)).abs().max()
        assert difference < 1e-3, difference
        calls = {
            "ours": lambda machine=machine, x=x: machine(x).output,
            "loop": lambda machine=machine, x=x: plain_ntm(machine, x),
        }
        seconds = timed(calls, repeats)
        rows.append(row(f"batch {batch}", steps, seconds["ours"], seconds["loop"]))
        worst += [mine / other for mine, other in zip(seconds["ours"], seconds["loop"])]
    title = f"NTM, a step of {steps}: memory 128 × 20, LSTM 100 (bar {NTM_BAR} × the loop)"
    table(title, head("loop µs"), rows)
    return worst


def of_dnc(sizes: list[tuple[int, int, int]], steps: int, repeats: int) -> list[float]:
    try:
        import dnc
    except ImportError:
        print("\nthe package dnc is not installed: no figures of a DNC beside it")
        return []
    rows, worst = [], []
    for batch, slots, heads in sizes:
        torch.manual_seed(0)
        width, hidden = 20, 100
        controller = LSTMController(8 + heads * width, hidden)
        machine: nn.Module = DNC(
            8, 8, slots=slots, slot_width=width, read_heads=heads, controller=controller
        )
        theirs = dnc.DNC(
            input_size=8,
            hidden_size=hidden,
            num_hidden_layers=1,
            nr_cells=slots,
            read_heads=heads,
            cell_size=width,
            batch_first=True,
            gpu_id=-1,
        )
        x = torch.rand(batch, steps, 8)
        calls = {
            "ours": lambda machine=machine, x=x: machine(x).output,
            "theirs": lambda theirs=theirs, x=x: theirs(
                x, (None, None, None), reset_experience=True, pass_through_memory=True
            )[0],
        }
        seconds = timed(calls, repeats)
        name = f"batch {batch}, {slots} slots, {heads} read heads"
        rows.append(row(name, steps, seconds["ours"], seconds["theirs"]))
        worst += [mine / other for mine, other in zip(seconds["ours"], seconds["theirs"])]
    title = f"DNC, a step of {steps}: slot width 20, LSTM 100 (bar {DNC_BAR} × the package dnc)"
    table(title, head("dnc µs"), rows)
    return worst


def main() -> int:
    """Print both tables; the exit code says whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats and sizes")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    steps, repeats = (10, 7) if quick else (20, 21)
    ntm = of_ntm([16] if quick else [1, 16], steps, repeats)
    sizes = [(16, 64, 4)] if quick else [(1, 16, 1), (16, 64, 4), (16, 128, 4)]
    dnc = of_dnc(sizes, steps, repeats)
    missed = [f"NTM {ratio:.2f}" for ratio in ntm if ratio > NTM_BAR]
    missed += [f"DNC {ratio:.2f}" for ratio in dnc if ratio > DNC_BAR]
    print(f"\n{'bars missed: ' + ', '.join(missed) if missed else 'all bars hold'}")
    return 1 if missed else 0


if __name__ == "__main__":
    restart_where_needed()
    sys.exit(main())
