"""What capture costs on top of the model's own forward pass, and what the rivals cost.

Everything is interleaved with the plain forward of the same model in one process; a figure is the
median over rounds of the ratio within a round, of processor time and of wall time. Memory is the
kernel's high-water mark above rest. The rivals are the real packages, on the same encoder with the
same weights, after their answers were compared with ours. Those that are not installed are named.

    python benchmarks/capture.py [--quick] [--only SECTION ...]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers: nothing here is downloaded

import torch
from capture_rivals import coverage, models, ways
from capture_rivals.measure import MIB, ratios, same
from capture_rivals.peak import Asked, peaks
from timing import table
from torch.utils._python_dispatch import TorchDispatchMode

import regard

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

RATIO = "{:.3f}".format


class Nothing(TorchDispatchMode):
    """A mode that does nothing: what every dispatch mode costs at least."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # without the wrapper that torch puts around a mode for its compiler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def rows_of(taken: dict, bars: dict[str, float], first: list[str]) -> list[list[str]]:
    """One row for each call but the plain one."""
    plain = next(iter(taken))
    rows = []
    for name, one in taken.items():
        if name != plain:
            bar = f"{bars[name]:.2f}" if name in bars else ""
            milliseconds = f"{1000 * taken[plain].seconds:.0f}"
            rows.append([*first, name, RATIO(one.processor), RATIO(one.wall), bar, milliseconds])
    return rows


HEAD = ["way", "× processor", "× wall", "bar", "plain ms"]


def captured(model: torch.nn.Module, ids: torch.Tensor, **how: object) -> Callable[[], object]:
    def call() -> object:
        with regard.capture(model, **how) as trace:
            model(ids)
        return trace

    return call


def forward(quick: bool, heap: str = "malloc as it is") -> None:
    """Capture of an encoder, with recipes held and with a head mean of every layer streamed."""
    model = models.masked_lm("sdpa", 2048).bert
    rows = []
    sizes = [(8, 128, 1.10, None, 31), (1, 512, 1.05, 1.3, 41), (1, 2048, 1.05, 1.8, 15)]
    for batch, length, bar, bar_mean, repeats in sizes[:2] if quick else sizes:
        ids = models.tokens(batch, length)
        calls = {"plain": lambda ids=ids: model(ids), "capture": captured(model, ids)}
        calls['capture, path="fused"'] = captured(model, ids, path="fused")
        bars = {"capture": bar}
        if bar_mean is not None:
            calls["keep=[HeadMean()]"] = captured(model, ids, keep=[regard.HeadMean()])
            bars["keep=[HeadMean()]"] = bar_mean

        def nothing(ids: torch.Tensor = ids) -> None:
            with Nothing():
                model(ids)

        calls["(a mode that does nothing)"] = nothing
        taken = ratios(calls, 5 if quick else repeats)
        rows += rows_of(taken, bars, [f"{batch} × {length}"])
    table(f"forward of a 6-layer, 384-wide, 12-head encoder; {heap}", ["tokens", *HEAD], rows)


def heap(quick: bool) -> None:
    """The same with a heap that keeps its pages, as most allocators of servers and GPUs do.

    glibc's gives the top of its heap back to the kernel between passes, now in one way and now in
    another, and faults it in again: up to 18,000 faults for one plain pass, or none.
    """
    libc = ctypes.CDLL("libc.so.6")
    for parameter, size in ((-1, 2**30), (-3, 2**25)):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
        if not libc.mallopt(parameter, size):
            print("heap: this C library takes no such option")
            return
    forward(quick, "a heap that keeps its pages")


def memory(quick: bool) -> None:
    """Peak memory of the same forward at 2048 tokens."""
    length = 2048
    asked = [ways.PLAIN, ways.REGARD[0], ways.REGARD[2], ways.ENTROPY]
    bars = {ways.REGARD[2]: "2.00"}
    repeats = 1 if quick else 3
    found = peaks([Asked(way.name, length, repeats=repeats) for way in asked])
    rows = []
    for way, one in zip(asked, found):
        row = [way.what, f"{one.high:.1f}", f"{one.held:.1f}", f"{one.results:.1f}"]
        row += [f"{one.high / found[0].high:.2f}"]
        row += [f"{(one.high - one.results) / found[0].high:.2f}", bars.get(way, "")]
        rows.append(row)
    head = ["way", "peak MiB", "held MiB", "results MiB", "× plain", "less results", "bar"]
    table(f"peak memory above rest, 1 × {length} tokens, new processes", head, rows)


def rivals(quick: bool) -> None:
    """All attention weights, or their head means, of the same encoder: time and memory."""
    length, repeats = (256, 2) if quick else (2048, 5)
    fused = lambda: models.masked_lm("sdpa", length)
    eager = lambda: models.masked_lm("eager", length)
    short = models.tokens(1, 48)
    truth = {"weights": list(eager().bert(short, output_attentions=True).attentions)}
    truth["means"] = [layer.mean(1) for layer in truth["weights"]]
    ids = models.tokens(1, length)
    plain = fused().bert
    asked = [way for way in [*ways.REGARD, *ways.RIVALS] if ways.installed(way.package)]
    wrong, taken = [], {}
    for way in asked:
        with ways.quiet():
            ask = way.build(fused(), eager())
            if not same(ways.answers(ask(short)), truth[way.keeps]):
                wrong.append(way.name)
            calls = {"plain": lambda: plain(ids), "way": lambda ask=ask: ask(ids)}
            taken[way] = ratios(calls, repeats)["way"]
            way.close()
        del ask, calls
    memory = dict.fromkeys(asked)
    if not quick:
        base, *found = peaks([Asked(way.name, length) for way in [ways.PLAIN, *asked]])
        memory = dict(zip(asked, found))
    rows = []
    for way, time in taken.items():
        row = [f"{way.package} {ways.installed(way.package)}", way.what, way.keeps]
        row += [RATIO(time.processor), RATIO(time.wall)]
        one = memory[way]
        if one is not None:
            row += [f"{one.high:.0f}", f"{one.high / base.high:.1f}"]
            row += [f"{(one.high - one.results) / base.high:.1f}"]
        rows.append(row + [""] * (8 - len(row)))
    head = ["package", "way", "gives", "× processor", "× wall", "peak MiB", "× memory"]
    title = f"the same encoder, 1 × {length} tokens, over its plain fused forward"
    table(title, [*head, "less results"], rows)
    absent = {way.package for way in ways.RIVALS} - {way.package for way in asked}
    print("not installed:", ", ".join(sorted(absent)) or "none", end="; ")
    print("answers that differ from eager attention:", ", ".join(wrong) or "none")


def decode(quick: bool) -> None:
    """Greedy generation with a cache, one token at a time: the worst case for any mode."""
    model, prompt = models.llama(), models.tokens(1, 16)
    tokens = 16 if quick else 64

    def generate() -> torch.Tensor:
        mask = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=mask, max_new_tokens=tokens, do_sample=False)

    def under(**how: object) -> Callable[[], object]:
        def call() -> object:
            with regard.capture(model, **how) as trace:
                generate()
            return trace

        return call

    def nothing() -> None:
        with Nothing():
            generate()

    calls: dict[str, Callable[[], object]] = {"plain": generate}
    for path in ("auto", "full", "fused"):
        calls[f'capture, path="{path}"'] = under(path=path)
    calls["(a mode that does nothing)"] = nothing
    rows = rows_of(ratios(calls, 3 if quick else 21), {'capture, path="auto"': 1.6}, [])
    table(f"generate() {tokens} tokens: Llama, 4 layers, 256 wide", HEAD, rows)
    full, fused = (under(path=path)() for path in ("full", "fused"))
    equal = same([r.weights() for r in fused], [r.weights() for r in full])
    print(f"{len(full)} sites by the full path, {len(fused)} by the fused one; equal: {equal}")


def learned(quick: bool) -> None:
    """Models that an earlier capture has learned: one pass each, of sizes where Python counts."""
    torch.manual_seed(0)
    image, text = torch.randn(2, 3, 112, 112), models.tokens(2, 16)
    protein, sound = torch.randint(4, 24, (1, 32)), torch.randn(1, 16000)
    cases = {
        "ESM-2-like encoder, 1 × 32": (models.esm(), {"input_ids": protein}, 1.25),
        "CLIP, 2 × (49 + 16)": (models.clip(), {"input_ids": text, "pixel_values": image}, 1.25),
        "Conformer, 1 × 1 s": (models.conformer(), {"input_values": sound}, 1.25),
        "location-aware decoder, 20 steps": (
            models.LocationAware().eval(),
            {"memory": torch.randn(4, 50, 128)},
            2.0,
        ),
    }
    rows = []
    for name, (model, inputs, bar) in cases.items():

        def under(model: torch.nn.Module = model, inputs: dict = inputs, **how: object) -> object:
            with regard.capture(model, **how) as trace:
                model(**inputs)
            return trace

        calls = {"plain": lambda model=model, inputs=inputs: model(**inputs), "capture": under}
        calls['capture, path="full"'] = lambda under=under: under(path="full")
        taken = ratios(calls, 7 if quick else 41)
        rows += rows_of(taken, {"capture": bar}, [name])
        full = [record.weights() for record in under(path="full")]
        equal = same([record.weights() for record in under()], full)
        print(f"{name}: {len(full)} sites, equal on both paths: {equal}")
    table("a pass of a learned model", ["model", *HEAD], rows)


def held(quick: bool) -> None:
    """What a trace holds after a pass of 12 heads of width 64, and what that grows with."""
    length, many = (512, 12) if quick else (4096, 12)
    cases = [(ways.REGARD[0], many)]
    cases += [(ways.ENTROPY, 2), (ways.ENTROPY, many)]
    if not quick:
        cases += [(ways.REGARD[2], 2), (ways.REGARD[2], many)]
    found = peaks([Asked(way.name, length, layers, 768, 1) for way, layers in cases])
    rows = []
    for (way, layers), one in zip(cases, found):
        weights = layers * 12 * length**2 * 4 / MIB
        share = f"1/{weights / one.reported:.1f}" if one.reported else ""
        bar = f"1/{30 * length / 4096:.1f}" if way is ways.REGARD[0] else ""
        row = [way.what, str(layers), f"{weights:.0f}", f"{one.reported:.1f}", f"{one.held:.1f}"]
        row += [f"{one.results:.1f}", f"{one.high - one.results:.1f}", share, bar]
        rows.append(row)
    head = ["way", "layers", "all weights MiB", "trace.nbytes", "really held", "results"]
    head += ["peak less results", "of weights", "bar"]
    table(f"held after a pass: 12 heads of width 64, {length} tokens", head, rows)


def targets(quick: bool) -> None:
    """Which of the test targets each tool can read."""
    tools = [tool for tool in coverage.TOOLS if tool != "nnsight" or ways.installed("nnsight")]
    with torch.enable_grad():
        found = coverage.rows(tools, quick)
    rows = [[row.group, row.target, str(row.sites), *row.cells.values()] for row in found]
    table("targets of tests/tracing", ["group", "target", "sites", *tools], rows)
    print(
        f"{len(rows)} rows. {coverage.YES} all sites exact; eager: only once it was switched to it;"
        f" {coverage.NO} or n/m: not, or not all; {coverage.NOT}: cannot be tried."
    )
    groups = [*dict.fromkeys(row.group for row in found), "all"]
    rows = []
    for group in groups:
        row = [group]
        for tool in tools:
            cells = [one.cells[tool] for one in found if group in (one.group, "all")]
            tried = [cell for cell in cells if cell != coverage.NOT]
            right = sum(cell.startswith(coverage.YES) for cell in tried)
            row.append(f"{right} of {len(tried)}" if tried else coverage.NOT)
        rows.append(row)
    table("the same by group: right, of those that can be tried", ["group", *tools], rows)


SECTIONS = {
    "forward": forward,
    "memory": memory,
    "decode": decode,
    "learned": learned,
    "held": held,
    "rivals": rivals,
    "targets": targets,
    "heap": heap,  # the last: it changes the allocator of this process
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    options.only.sort(key=list(SECTIONS).index)
    restart_where_needed()
    torch.set_num_threads(1)
    packages = ["torch", *dict.fromkeys(way.package for way in ways.RIVALS)]
    print("; ".join(f"{package} {ways.installed(package) or 'absent'}" for package in packages))
    print(f"{torch.get_num_threads()} thread, no gradients, random weights")
    for name in options.only:
        with torch.no_grad(), contextlib.ExitStack() as after:
            after.callback(gc.collect)
            SECTIONS[name](options.quick)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
