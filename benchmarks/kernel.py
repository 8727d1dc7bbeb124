"""What reductions cost on top of the attention itself.

One thread, batch 1, head width 64, interleaved with `F.scaled_dot_product_attention` in one
process. *Extra* is the time of the reductions alone over that of SDPA; the dense way computes all
weights, the output and the same answers, and its figure includes the forward pass.

    python benchmarks/kernel.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import interleaved, table

import regard
from regard.kernel.reducers import Offsets, Repeats
from regard.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

QUESTIONS = {
    "received": [regard.ReceivedAttention()],
    "entropy": [regard.Entropy()],
    "received + entropy": [regard.ReceivedAttention(), regard.Entropy()],
    "head mean": [regard.HeadMean()],
    "head max": [regard.HeadMax()],
    "top 8": [regard.TopK(8)],
}
BARS = {
    ("received", 2048): 0.7,
    ("received", 8192): 0.7,
    ("received + entropy", 2048): 0.9,
    ("received + entropy", 8192): 0.9,
    ("head mean", 2048): 0.85,
    ("head max", 2048): 0.85,
    ("top 8", 8192): 1.1,
}


def inputs(heads: int, length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shape = (1, heads, length, 64)
    return [torch.randn(shape, generator=random).to(dtype) for _ in range(3)]


def recipe_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Recipe:
    recipe = regard.attend(q, k, v, causal=causal, reduce=[regard.QueryRows([0])]).recipe
    assert recipe is not None
    return recipe


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What people do today for received mass and entropy."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ v, weights.sum(2), -torch.xlogy(weights, weights).sum(-1)


def same_answers(length: int = 600) -> None:
    """Both ways must agree before either is timed."""
    q, k, v = inputs(2, length)
    for causal in (False, True):
        output, received, entropy = dense(q, k, v, causal)
        found = regard.attend(q, k, v, causal=causal, reduce=QUESTIONS["received + entropy"])
        for mine, theirs in zip((found.output, *found.reductions), (output, received, entropy)):
            torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-5)


def extra_cost(heads: int, length: int, names: list[str], repeats: int, dtype: torch.dtype) -> None:
    rows = []
    for causal in (False, True):
        q, k, v = inputs(heads, length, dtype)
        recipe = recipe_of(q, k, v, causal)
        sdpa = lambda q=q, k=k, v=v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c)
        calls = {"sdpa": sdpa}
        for name in names:
            calls[name] = lambda r=recipe, n=name: regard.reduce(r, QUESTIONS[n])
        if length <= 2048 and dtype == torch.float32:
            calls["dense way"] = lambda q=q, k=k, v=v, c=causal: dense(q, k, v, c)
        taken = interleaved(calls, repeats)
        for name in [*names, *(["dense way"] if "dense way" in calls else [])]:
            bar = 1.35 if dtype == torch.bfloat16 else BARS.get((name, length))
            ratio = taken[name] / taken["sdpa"]
            shape = "causal" if causal else "full"
            rows.append([name, shape, f"{ratio:.2f}", "" if bar is None else f"{bar:.2f}"])
    title = f"extra cost over SDPA: {heads} heads, {length} tokens, {dtype}"
    table(title, ["question", "mask", "× SDPA", "bar"], rows)


def forward_cost(lengths: list[int], repeats: int) -> None:
    rows = []
    for length in lengths:
        q, k, v = inputs(12, length)
        taken = interleaved(
            {
                "sdpa": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
                "attend": lambda q=q, k=k, v=v: regard.attend(q, k, v),
            },
            repeats,
        )
        rows.append([str(length), f"{taken['attend'] / taken['sdpa']:.3f}", "1.03"])
    table("attend without reductions: 12 heads", ["tokens", "× SDPA", "bar"], rows)


def small_matrices(sizes: list[tuple[int, int]], repeats: int) -> None:
    """Matrices stacked, beside a walk over each: 12 heads of width 32."""
    rows = []
    for batch, length in sizes:
        q, k, v = torch.randn(3, batch, 12, length, 32).unbind()
        recipe = recipe_of(q, k, v, False)
        tokens = torch.randint(0, 50, (batch, length))
        together = [
            regard.Entropy(),
            regard.EffectiveKeys(),
            regard.ReceivedAttention(),
            Offsets(),
            Repeats(tokens, 1),
        ]
        for name, reducers in {"entropy": together[:1], "five reducers": together}.items():
            calls = {
                "stacked": lambda r=recipe, a=reducers: regard.reduce(r, a),
                "one by one": lambda r=recipe, a=reducers, n=length: regard.reduce(
                    r, a, tile=(n, n)
                ),
            }
            taken = interleaved(calls, repeats)
            faster = taken["one by one"] / taken["stacked"]
            rows.append([f"{batch} × 12 × {length}", name, f"{faster:.1f}"])
    table("small matrices, stacked", ["batch × head × tokens", "question", "× faster"], rows)


MEMORY = """
import resource, sys, time, torch, regard
heads, length = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
def now(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":")) / 1024
q, k, v = (torch.randn(1, heads, length, 64) for _ in range(3))
small = [tensor[:, :, :600] for tensor in (q, k, v)]
regard.attend(*small, reduce=[regard.ReceivedAttention(), regard.Entropy()])
start = time.process_time()
attended = regard.attend(q, k, v, reduce=[regard.QueryRows([0])])
forward = time.process_time() - start
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before, start = now("VmRSS"), time.process_time()
answers = regard.reduce(attended.recipe, [regard.ReceivedAttention(), regard.Entropy()])
seconds = time.process_time() - start
results = sum(answer.numel() * answer.element_size() for answer in answers) / 2**20
print(forward, seconds, now("VmHWM") - before - results)
"""


def memory(cases: list[tuple[int, int, float | None]]) -> None:
    """Peak memory of received + entropy beyond inputs, output and results, in a fresh process."""
    rows = []
    for heads, length, bar in cases:
        child = [sys.executable, "-c", MEMORY, str(heads), str(length)]
        out = subprocess.run(child, check=True, capture_output=True, text=True).stdout.split()
        forward, seconds, megabytes = map(float, out)
        full = heads * length * length * 4 / 2**20
        rows.append(
            [
                str(heads),
                str(length),
                f"{forward:.2f}",
                f"{seconds:.2f}",
                f"{seconds / forward:.2f}",
            ]
        )
        rows[-1] += [f"{megabytes:.1f}", "" if bar is None else f"{bar:.0f}", f"{full:.0f}"]
    head = ["heads", "tokens", "SDPA s", "extra s", "ratio", "extra MB", "bar", "weights MB"]
    table("received + entropy: how time and memory grow", head, rows)


def import_time(repeats: int) -> None:
    timed = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); "
        "import regard; print(b - a, time.perf_counter() - b)"
    )
    runs = []
    for _ in range(repeats):
        out = subprocess.run([sys.executable, "-c", timed], check=True, capture_output=True)
        runs.append([float(seconds) for seconds in out.stdout.split()])
    torch_alone, more = (statistics.median(times) for times in zip(*runs))
    rows = [[f"{torch_alone:.2f} s", f"{1000 * more:.0f} ms", "80 ms"]]
    table("import regard", ["import torch", "more with regard", "bar"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    quick = parser.parse_args().quick
    restart_where_needed()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, batch 1, head width 64")
    same_answers()
    every = list(QUESTIONS)
    long = ["received", "received + entropy", "top 8"]
    forward_cost([256, 512] if quick else [256, 512, 1024, 2048], 21 if quick else 51)
    extra_cost(12, 2048, every, 3 if quick else 9, torch.float32)
    extra_cost(1 if quick else 12, 8192, long, 3 if quick else 5, torch.float32)
    extra_cost(12, 2048, ["received", "entropy"], 3 if quick else 9, torch.bfloat16)
    small_matrices([(64, 16), (16, 64), (8, 130)], 3 if quick else 9)
    grow: list[tuple[int, int, float | None]] = [(4, length, None) for length in (2048, 4096, 8192)]
    grow.append((4, 16384, 40.0))
    if quick:
        memory([grow[0], grow[1], grow[3]])
    else:
        memory([*grow, (4, 32768, None), (12, 32768, 60.0)])
    import_time(3 if quick else 11)


if __name__ == "__main__":
    main()
