"""What capture reads of models from packages outside transformers, and whether it harms.

Each target runs in a process of its own: a plain run that records the truth without regard, a run
under `regard.capture`, and a check that torch and the model still work. Then the same under
`inference_mode` inside the capture, twice, to see whether the process survives that as well.

    python benchmarks/capture_packages.py [--quick] [--only PACKAGE[/MODEL] ...] [--write]

The packages belong into an environment of their own (Python 3.11 or newer):

    python -m venv .venv-packages
    .venv-packages/bin/pip install -r benchmarks/capture_rivals/packages/requirements.txt
    .venv-packages/bin/pip install --no-deps -r \
        benchmarks/capture_rivals/packages/requirements-no-deps.txt
    .venv-packages/bin/pip install --no-deps -e .

`--write` makes `docs/capture-table.md` anew. A package that is missing is said to be missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from capture_rivals.packages.target import Target, call, targets
from capture_rivals.packages.truth import Run, recorded
from timing import table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

PAGE = Path(__file__).parents[1] / "docs" / "capture-table.md"
CLOSE = 1e-5
SECONDS = 240

EXACT, NOTHING = "exact", "no softmax attention, nothing recorded"
NOTED, SILENT = "missing, with a note", "missing, silent"
WRONG, HARMED, ERROR, ABSENT = "wrong", "harmed", "error", "not installed"


@dataclass
class Result:
    """The verdict on one target."""

    key: str
    version: str = ""
    sites: int = 0
    verdict: str = ERROR
    detail: str = ""
    harmed: str = ""
    noted: bool = False  #: a mismatch that a note or the record itself admits


# one target, in its own process


def tensors(value: object) -> list[Tensor]:
    """Every tensor inside an output."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module | type):
        value = list(vars(value).values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors(part)]
    return []


def same_output(first: object, second: object) -> bool:
    pairs = list(zip(tensors(first), tensors(second)))
    equal = [
        a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=CLOSE, equal_nan=True)
        for a, b in pairs
        if a.layout == torch.strided and not a.is_quantized and not a.is_complex()
    ]
    return len(tensors(first)) == len(tensors(second)) and all(equal)


def close(weights: Tensor, truth: Tensor) -> bool:
    if weights.shape != truth.shape:
        return False
    difference = (weights.double() - truth.double()).nan_to_num(0.0).abs()
    return difference.numel() == 0 or bool(difference.max() <= CLOSE)


def reading(weights: Tensor, truth: Tensor | dict[str, Tensor]) -> str | None:
    """Which reading of a site these weights are; None when they are none of them."""
    readings = truth if isinstance(truth, dict) else {"": truth}
    return next((name for name, matrix in readings.items() if close(weights, matrix)), None)


def first_reading(truth: Tensor | dict[str, Tensor]) -> Tensor:
    return next(iter(truth.values())) if isinstance(truth, dict) else truth


def shape(truth: Tensor | dict[str, Tensor]) -> str:
    readings = truth if isinstance(truth, dict) else {"": truth}
    return " or ".join(str(tuple(matrix.shape)) for matrix in readings.values())


def same_numbers(weights: Tensor, truth: Tensor | dict[str, Tensor]) -> bool:
    """Whether the numbers above zero are the truth's, wherever they stand."""
    for matrix in truth.values() if isinstance(truth, dict) else [truth]:
        a, b = (m[m > 0].double().flatten().sort().values for m in (weights, matrix))
        if a.shape == b.shape and a.numel() and (a - b).abs().max() <= CLOSE:
            return True
    return False


def compared(trace, truth: list, attends: object) -> tuple[str, str]:
    """The verdict on the records of a trace, and what is the matter."""
    records = [(record, record.weights()) for record in trace]
    labels = list(attends) if isinstance(attends, tuple) else [attends] * len(truth)
    if not truth:
        if records:
            return WRONG, f"extra site {records[0][0].name} {tuple(records[0][1].shape)}"
        return NOTHING, ""
    matched: dict[int, int] = {}  # site -> record
    strays, names = [], set()
    for index, (_, weights) in enumerate(records):
        options = [s for s in range(len(truth)) if s not in matched]
        site = next((s for s in options if reading(weights, truth[s]) is not None), None)
        if site is None:
            strays.append(index)
        else:
            matched[site] = index
            names.add(reading(weights, truth[site]))
    if strays:
        record, weights = records[strays[0]]
        open_ = [s for s in range(len(truth)) if s not in matched]
        where = f"{record.name} {tuple(weights.shape)}"
        count = f" ({len(strays)} of {len(records)} records, {len(truth)} sites)"
        alike = [s for s in open_ if same_numbers(weights, truth[s])]
        if alike:
            return WRONG, f"axes: {where}, expected {shape(truth[alike[0]])}{count}"
        if open_ and len(records) <= len(truth):
            return WRONG, f"values: {where}, expected {shape(truth[open_[0]])}{count}"
        return WRONG, f"extra site {where}{count}"
    absent = [s for s in range(len(truth)) if s not in matched]
    order = [matched[s] for s in sorted(matched)]
    if order != sorted(order):
        return WRONG, f"order {order}"
    for site, index in matched.items():
        label, record = labels[site], records[index][0]
        if label and record.attends not in (label, "unknown"):
            return WRONG, f"label: {record.name} is {label}, not {record.attends}"
    if absent:
        missing = f"{len(absent)} of {len(truth)} sites, the first {shape(truth[absent[0]])}"
        sizes = [first_reading(truth[site]).numel() for site in absent]
        gates = [math.prod(gate.shape) for gate in trace.gates]  # rejected, with the reason
        told = trace.notes or all(size in gates for size in sizes)
        return (NOTED if told else SILENT), missing
    return EXACT, ", ".join(sorted(filter(None, names)))


def sound() -> str:
    """What is wrong with torch in this process, if anything."""
    try:
        x = torch.ones(2, 3)
        (x @ x.mT).softmax(-1)
        with torch.inference_mode():
            torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])
        torch.nn.Linear(3, 3)(x).sum().backward()
        assert not torch._C._len_torch_dispatch_stack(), "a dispatch mode is left"
        assert not torch._C._len_torch_function_stack(), "a function mode is left"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return ""


def measured(target: Target) -> Result:
    """One target in this process."""
    import regard

    result = Result(target.key, target.version() or "")
    if not result.version:
        result.verdict = ABSENT
        return result
    plain = call(*target.case())
    run = Run()
    model, args, kwargs = target.case()
    run.model, run.args = model, args
    with recorded(run.calls, target.record):
        model, args, kwargs = target.case()  # again: a partial of F.softmax is made here
        run.output = call(model, args, kwargs)
    truth = list(target.truth(run))
    result.sites = len(truth)
    if not same_output(plain, run.output):
        result.detail = "the model gives another output each time"
        return result
    model, args, kwargs = target.case()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with regard.capture(model) as trace:
            output = call(model, args, kwargs)
        result.verdict, result.detail = compared(trace, truth, target.attends)
    words = [str(note) for note in trace.notes]
    words += [f"gate {gate.path}: {gate.reason}" for gate in trace.gates]
    result.noted = any("axes" in word for word in words)
    if words and result.verdict not in (EXACT, NOTHING):
        result.detail += f"; {len(words)} notes: {words[0][:160]}"
    if not same_output(plain, output):
        result.verdict, result.detail = WRONG, "the output changed"
    result.harmed = sound()
    if not result.harmed and not same_output(plain, call(*target.case())):
        result.harmed = "a later plain run gives another output"
    return result


def survives(target: Target) -> str:
    """Two passes in inference mode inside one capture: what is wrong with torch afterwards."""
    import regard

    model, args, kwargs = target.case()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with regard.capture(model), torch.inference_mode():
                model(*args, **kwargs)
                model(*args, **kwargs)
        except Exception as error:
            broken = sound()
            return f"two passes in inference mode: {broken}" if broken else f"fails: {error!r}"
    broken = sound()
    return f"two passes in inference mode: {broken}" if broken else ""


def worker(key: str) -> None:
    """Measure one target, and print its result as the last lines."""
    target = next(target for target in targets() if target.key == key)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = measured(target)
    except Exception as error:
        import traceback

        traceback.print_exc()
        result = Result(key, target.version() or "", detail=f"{type(error).__name__}: {error}")
        result.detail = " ".join(result.detail.split())[:200]
    print("\nRESULT " + json.dumps(asdict(result)), flush=True)
    if result.verdict not in (ABSENT, ERROR) and not result.harmed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = survives_plain(target)
            result.harmed = survives(target) if plain else ""
        print("\nRESULT " + json.dumps(asdict(result)), flush=True)


def survives_plain(target: Target) -> bool:
    """Whether the model runs in inference mode without capture."""
    model, args, kwargs = target.case()
    try:
        with torch.inference_mode():
            model(*args, **kwargs)
            model(*args, **kwargs)
    except Exception:
        return False
    return True


# all targets


def measure_apart(target: Target, verbose: bool) -> Result:
    """One target in a process of its own."""
    command = [sys.executable, __file__, "--worker", target.key]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Result(target.key, target.version() or "", detail=f"more than {SECONDS} s")
    if verbose:
        print(done.stdout, done.stderr, file=sys.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result = Result(**json.loads(lines[-1][7:])) if lines else Result(target.key)
    if done.returncode < 0:
        result.harmed = f"the process died of {signal.Signals(-done.returncode).name}"
    elif not lines:
        result.detail = " ".join(done.stderr.split())[-200:]
    return result


def totals(results: list[Result]) -> list[str]:
    """The figures below the table."""
    measured_ = [r for r in results if r.verdict not in (ABSENT, ERROR)]
    softmax = [r for r in measured_ if r.sites]
    exact = [r for r in softmax if r.verdict == EXACT]
    wrong = [r for r in measured_ if r.verdict == WRONG and not r.noted]
    silent = [r for r in measured_ if r.verdict == SILENT]
    packages = {r.key.split("/")[0] for r in measured_}
    none = [r for r in measured_ if not r.sites]
    right = sum(r.verdict == NOTHING for r in none)
    share = f"{len(exact) / len(softmax):.1%}" if softmax else "–"
    return [
        f"{len(measured_)} targets from {len(packages)} packages",
        f"exact: {len(exact)} of {len(softmax)} with softmax attention ({share})",
        f"without softmax attention: {right} of {len(none)} record nothing",
        f"wrong without a note: {len(wrong)}",
        f"missing in silence: {len(silent)}",
        f"processes harmed: {sum(bool(r.harmed) for r in measured_)}",
        f"not measured: {len(results) - len(measured_)} "
        f"{dict(Counter(r.verdict for r in results if r.verdict in (ABSENT, ERROR)))}",
    ]


HEAD = ["package", "version", "model", "sites", "verdict", "process"]


def rows(results: list[Result], width: int) -> list[list[str]]:
    cells = []
    for result in results:
        package, model = result.key.split("/", 1)
        verdict = result.verdict
        if result.detail:
            verdict += f": {result.detail}"
        verdict = verdict if len(verdict) <= width else verdict[: width - 1] + "…"
        harmed = result.harmed if len(result.harmed) <= width else result.harmed[: width - 1] + "…"
        cells.append(
            [package, result.version, model, str(result.sites), verdict, harmed or "sound"]
        )
    return cells


def write(results: list[Result]) -> None:
    """`docs/capture-table.md`."""
    import regard

    lines = [
        "# What capture reads: the table",
        "",
        "Models of packages outside transformers, as `benchmarks/capture_packages.py` measured them:",
        "small, with random weights, in eval mode. The truth comes from the package itself or from",
        "the softmaxes of a run without regard. *Exact* means that all sites were recorded, in order,",
        "as (batch, head, query, key) with errors of at most 10⁻⁵, that no label is wrong and that",
        "the output did not change. *Sound* means that torch and the model work afterwards, also",
        "after two passes in `inference_mode` inside one capture.",
        "",
        f"regard {regard.__version__}, torch {torch.__version__.split('+')[0]} on CPU.",
        "",
        *[f"- {line}" for line in totals([r for r in results if r.verdict != ABSENT])],
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
    ]
    for row in rows([r for r in results if r.verdict != ABSENT], 160):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a dozen targets")
    parser.add_argument("--only", nargs="+", default=[], help="packages, or package/model")
    parser.add_argument("--write", action="store_true", help="write docs/capture-table.md")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="what the processes print")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    chosen = targets()
    if arguments.only:
        chosen = [t for t in chosen if {t.package, t.key} & set(arguments.only)]
    if arguments.quick:
        chosen = [target for target in chosen if target.quick]

    def run(target: Target) -> Result:
        result = measure_apart(target, arguments.verbose)
        harmed = f"  HARMED {result.harmed}" if result.harmed else ""
        text = f"{result.key}: {result.verdict} {result.detail}{harmed}"
        print(text, file=sys.stderr, flush=True)
        return result

    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(run, chosen))
    results.sort(key=lambda result: result.key.lower())
    table("What capture reads", HEAD, rows(results, 70))
    print()
    print("\n".join(totals(results)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    if arguments.write:
        write(results)


if __name__ == "__main__":
    if "--worker" not in sys.argv:  # a worker has its parent's environment
        restart_where_needed()
    main()
