"""What aggregation over layers costs: rollout and relevance of one token, streamed.

A stack of causal or full self-attention layers is captured for real, with gradients; the figures
are over the time of its `F.scaled_dot_product_attention` calls alone, interleaved in one process
on one thread. The dense way makes every layer's weights, and the gradient by them, and multiplies.

    python benchmarks/aggregate.py [--quick] [--only SECTION ...]
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from capture_rivals.measure import MIB, peak, settle
from timing import interleaved, table
from torch import Tensor, nn

import regard

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed


class Stack(nn.Module):
    """Self-attention layers with residuals and nothing else."""

    def __init__(self, layers: int, heads: int, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.causal = heads, causal
        width = 64 * heads
        self.inward = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outward = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for inward, outward in zip(self.inward, self.outward):
            q, k, v = (
                part.unflatten(-1, (self.heads, 64)).transpose(1, 2)
                for part in inward(x).chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + outward(mixed.transpose(1, 2).flatten(2))
        return x


def captured(layers: int, heads: int, length: int, causal: bool) -> regard.Trace:
    """A trace of the stack after backward of one number at the last token."""
    model = Stack(layers, heads, causal)
    x = torch.randn(1, length, 64 * heads, generator=torch.Generator().manual_seed(1))
    with regard.capture(model, grad=True) as trace:
        out = model(x)
    out[0, -1, 0].backward()
    return trace


def attend_alone(trace: regard.Trace, causal: bool) -> None:
    """The attention of every layer and nothing else."""
    for record in trace:
        recipe, (_, value) = record.recipe, record.gradient_parts()
        F.scaled_dot_product_attention(recipe.query, recipe.key, value, is_causal=causal)


def dense_rollout(trace: regard.Trace) -> Tensor:
    """Every layer's weights as people make them, all heads of them at once, then products."""
    rows: Tensor | None = None
    for record in reversed(list(trace)):
        mean = _weights(record).mean(1)
        mixed = 0.5 * mean + 0.5 * torch.eye(mean.shape[-1])
        rows = mixed[:, -1] if rows is None else torch.einsum("bq,bqk->bk", rows, mixed)
    assert rows is not None
    return rows


def dense_relevance(trace: regard.Trace) -> Tensor:
    rows: Tensor | None = None
    for record in reversed(list(trace)):
        gradient, value = record.gradient_parts()
        step = (_weights(record) * (gradient @ value.mT)).clamp_min(0.0).mean(1)
        if rows is None:
            rows = torch.zeros(1, step.shape[-1])
            rows[:, -1] = 1.0
        rows = rows + torch.einsum("bq,bqk->bk", rows, step)
    assert rows is not None
    return rows


def _weights(record: regard.Record) -> Tensor:
    recipe = record.recipe
    scores = recipe.query @ recipe.key.mT * recipe.scale
    if recipe.mask is not None:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
        scores.masked_fill_(later, -torch.inf)
    return scores.softmax(-1)


def one_token(quick: bool) -> None:
    """Rollout and relevance of the last token, over the layers' own attention."""
    layers, heads, length = (4, 12, 1024) if quick else (12, 12, 4096)
    rows = []
    for causal in (False, True):
        trace = captured(layers, heads, length, causal)
        alone = functools.partial(attend_alone, trace, causal)
        for name, ask, dense, bar in (
            ("rollout", regard.rollout, dense_rollout, "0.90"),
            ("relevance", regard.relevance, dense_relevance, "1.60"),
        ):
            with torch.no_grad():
                found = ask(trace, -1)
                memory = peak(functools.partial(ask, trace, -1), lambda result: result, 1)
                calls = {"attention": alone, "ours": functools.partial(ask, trace, -1)}
                taken = interleaved(calls, 3 if quick else 2)
                spent, room, truth = once(functools.partial(dense, trace))
            row = ["causal" if causal else "full", name]
            row += [f"{taken['ours'] / taken['attention']:.2f}", bar, f"{memory.high:.0f}"]
            row += [f"{spent / taken['attention']:.2f}", f"{room / 1024:.2f}"]
            row += [f"{layers * heads * length**2 * 4 / MIB / 1024:.1f}"]
            rows.append([*row, f"{(truth - found).abs().max() / truth.abs().max():.0e}"])
            print(" ".join(rows[-1]), file=sys.stderr)
        del trace, alone, calls
        settle()
    head = ["mask", "what", "× attention", "bar", "peak MiB", "dense ×", "dense peak GiB"]
    head += ["all weights GiB", "difference"]
    table(f"one token, {layers} layers, {heads} heads, {length} tokens", head, rows)


def once(call: Callable[[], Tensor]) -> tuple[float, float, Tensor]:
    """Processor seconds, peak MiB and the answer of one call, for work that takes minutes."""
    answers: list[Tensor] = []
    start = time.process_time()
    room = peak(lambda: answers.append(call()), lambda result: None, 1)
    return time.process_time() - start, room.high, answers[0]


def long(quick: bool) -> None:
    """16k tokens in a new process: everything it takes, model and capture included."""
    length = 4096 if quick else 16384
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_long, (length,))
    rows = [[name, f"{high:.2f}", "2.00"] for name, high in found]
    table(f"4 layers, 4 heads, causal, {length} tokens", ["after", "GiB in all", "bar"], rows)


def _long(length: int) -> list[tuple[str, float]]:
    torch.set_num_threads(1)
    trace = captured(4, 4, length, causal=True)
    found = [("capture and backward", _high())]
    regard.rollout(trace, -1)
    found.append(("rollout", _high()))
    regard.relevance(trace, -1)
    return [*found, ("relevance", _high())]


def _high() -> float:
    with open("/proc/self/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return kib / 2**20


SECTIONS = {"one_token": one_token, "long": long}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    restart_where_needed()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, float32")
    for name in options.only:
        SECTIONS[name](options.quick)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
