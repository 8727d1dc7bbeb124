"""What linear attention and the delta rule cost: against softmax attention, a loop, transformers.

Causal, batch 1, 8 heads of width 64, all in one process and in turn, with one torch thread and with
two. The gated rule is compared with transformers' own chunks (the hybrid models on a CPU) at equal
work: features made, same inputs. Memory is the growth of the process at its peak, each length in a
process of its own.

    python benchmarks/linear.py [--quick]
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import table

from regard import masks
from regard.kernel.linear_delta_chunks import Store, additive_step, delta_step, recur
from regard.recipe import Delta, Linear, Recurrent

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

HEADS, WIDTH = 8, 64
BARS = {"additive": 0.12, "delta": 0.2}
NAMES = ("additive", "additive, not normalised", "additive, decay", "delta", "delta, decay")


def recipe(name: str, length: int) -> Recurrent:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, HEADS, length, WIDTH, generator=random) for _ in range(3))
    log_decay = None
    if name.endswith("decay"):
        log_decay = -0.1 * torch.rand(1, HEADS, length, generator=random)
    options = {"log_decay": log_decay, "mask": masks.causal()}
    if name.startswith("delta"):
        query, key = (F.normalize(features, dim=-1) for features in (query, key))
        strength = torch.rand(1, HEADS, length, generator=random)
        return Delta(query, key, strength, value, **options)
    query, key = (F.elu(features) + 1.0 for features in (query, key))
    normalised = "not normalised" not in name
    kind = "distribution" if normalised else "signed"
    return Linear(query, key, value, **options, normalised=normalised, of=kind)


def loop(recipe: Recurrent) -> torch.Tensor:
    """One step after another, as at decoding."""
    query, key, value = (
        features.flatten(0, 1) for features in (recipe.query, recipe.key, recipe.value)
    )
    zeros = key.new_zeros(HEADS, WIDTH, WIDTH)
    normalised = isinstance(recipe, Linear) and recipe.normalised
    store, outputs = Store(zeros, zeros[..., 0] if normalised else None), []
    decays = None if recipe.log_decay is None else recipe.log_decay.flatten(0, 1)
    for position in range(key.shape[1]):
        here = slice(position, position + 1)
        decay = None if decays is None else decays[:, here]
        step = (store, query[:, here], key[:, here], value[:, here])
        if isinstance(recipe, Delta):
            output, store = delta_step(*step, recipe.strength.flatten(0, 1)[:, here], decay)
        else:
            output, store = additive_step(*step, decay)
        outputs.append(output)
    return torch.cat(outputs, 1).unflatten(0, (1, HEADS))


def theirs(recipe: Delta) -> Callable[[], torch.Tensor] | None:
    """transformers' chunks on the same inputs, or None where it is not installed."""
    try:
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen
    except ImportError:
        return None
    log_decay = recipe.log_decay if recipe.log_decay is not None else recipe.strength * 0.0
    tensors = (recipe.query * WIDTH**0.5, recipe.key, recipe.value, log_decay, recipe.strength)
    inputs = [tensor.transpose(1, 2) for tensor in tensors]
    return lambda: qwen.torch_chunk_gated_delta_rule(*inputs, chunk_size=64)[0].transpose(1, 2)


def ratios(
    calls: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, tuple[float, float]]:
    """Median seconds of each call, and the median of its ratios to the first one beside it."""
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            taken[name].append(clock() - start)
    first = next(iter(taken.values()))
    return {
        name: (
            statistics.median(times),
            statistics.median(mine / other for mine, other in zip(times, first)),
        )
        for name, times in taken.items()
    }


def beside_loop(recipe: Recurrent, clock: Callable[[], float]) -> float:
    """How often chunks fit into the time of the loop."""
    calls = {"chunks": lambda: recur(recipe), "loop": lambda: loop(recipe)}
    torch.testing.assert_close(calls["chunks"]().output, calls["loop"](), rtol=1e-4, atol=1e-4)
    return ratios(calls, 3, clock)["loop"][1]


def speed(length: int, threads: int, repeats: int) -> None:
    """Against causal softmax attention, the loop and transformers."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    recipes = {name: recipe(name, length) for name in NAMES}
    plain = recipes["additive"]
    calls: dict[str, Callable[[], object]] = {
        "softmax": lambda: F.scaled_dot_product_attention(
            plain.query, plain.key, plain.value, is_causal=True
        )
    }
    for name, rule in recipes.items():
        calls[name] = lambda rule=rule: recur(rule)
    other = theirs(recipes["delta, decay"])
    if other is not None:
        torch.testing.assert_close(
            other(), recur(recipes["delta, decay"]).output, rtol=0, atol=1e-4
        )
        calls["delta, decay, transformers"] = other
    with torch.no_grad():
        measured = ratios(calls, repeats, clock)
        faster_by = {name: beside_loop(recipes[name], clock) for name in BARS}
    rows = []
    for name, (seconds, ratio) in measured.items():
        faster = f"{faster_by[name]:.1f}" if name in faster_by else ""
        rival = measured.get(f"{name}, transformers")
        beside = "" if rival is None else f"{seconds / rival[0]:.2f}"
        bar = f"{BARS[name]:.2f}" if name in BARS else ""
        rows.append([name, f"{seconds * 1e3:.1f}", f"{ratio:.3f}", bar, faster, beside])
    head = ["", "ms", "× softmax", "bar", "loop ÷ chunks (bar 9)", "× transformers (bar 1)"]
    kind = "processor time" if threads == 1 else "wall time"
    table(f"{length} tokens, {threads} threads, {kind}", head, rows)


def peak(name: str, length: int) -> int:
    """Bytes that one call adds to the process at its peak, in a process of its own."""
    code = (
        "import pathlib, re, torch, linear\n"
        "def held(line):\n"
        "    text = pathlib.Path('/proc/self/status').read_text()\n"
        "    return int(re.search(line + r':\\s+(\\d+)', text).group(1))\n"
        f"rule = linear.recipe({name!r}, {length})\n"
        f"with torch.no_grad(): linear.recur(linear.recipe({name!r}, 256))\n"
        "pathlib.Path('/proc/self/clear_refs').write_text('5')  # the peak begins anew\n"
        "before = held('VmRSS')\n"
        "with torch.no_grad(): linear.recur(rule)\n"
        "print(held('VmHWM') - before)\n"
    )
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Pages of its own for every tensor: room that was freed before would hide a call's.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return 1024 * int(run.stdout.split()[-1])


def memory(lengths: list[int]) -> None:
    """Slope 1 on a logarithmic scale is linear, 2 quadratic."""
    rows = []
    for name in ("additive", "delta, decay"):
        bytes_ = [peak(name, length) for length in lengths]
        slope = math.log(bytes_[-1] / bytes_[0]) / math.log(lengths[-1] / lengths[0])
        rows.append([name, *(f"{b / 2**20:.1f} MB" for b in bytes_), f"{slope:.2f}"])
    table("memory at its peak, beside the inputs", ["", *map(str, lengths), "slope"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    quick = parser.parse_args().quick
    restart_where_needed()
    for threads in (1, 2):
        speed(4096, threads, 3 if quick else 9)
    memory([4096, 16384] if quick else [4096, 16384, 65536])
    worst = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\nthis process at its peak: {worst:.2f} GB")


if __name__ == "__main__":
    main()
