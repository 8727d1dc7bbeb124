"""What capture reads of models from packages outside transformers, and whether it harms.

Each target runs in a process of its own: a plain run that records the truth without regard, a run
under `regard.capture`, and a check that torch and the model still work. Then the same under
`inference_mode` inside the capture, twice, to see whether the process survives that as well.

    python benchmarks/capture_packages.py [--quick] [--only PACKAGE[/MODEL] ...]
        [--json FILE [--resume]] [--seconds N] [--write]

The packages belong into an environment of their own (Python 3.11 or newer):

    python -m venv .venv-packages
    .venv-packages/bin/pip install -r benchmarks/capture_rivals/packages/requirements.txt
    .venv-packages/bin/pip install --no-deps -r \
        benchmarks/capture_rivals/packages/requirements-no-deps.txt
    .venv-packages/bin/pip install --no-deps -e .

`--write` makes `docs/capture-table.md` anew. A package that is missing is said to be missing. With
`--json FILE` each result is added to those of earlier runs, and the page is made of all of them;
`--resume` goes on where a run ended. On a busy machine allow more time with `--seconds`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import IO

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from capture_rivals.packages.measure import (
    ABSENT,
    ERROR,
    EXACT,
    HARMED,
    NOTHING,
    SILENT,
    WRONG,
    Result,
    measured,
    prepared,
    survives,
)
from capture_rivals.packages.target import Target, targets
from timing import table

import regard

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

PAGE = Path(__file__).parents[1] / "docs" / "capture-table.md"


def worker(target: Target) -> None:
    """Measure one target, and print what is known of it after each step."""
    warnings.simplefilter("ignore")
    result = Result(target.key, target.version() or "")
    if not result.version:
        result.verdict = ABSENT
        say(result)
        return
    try:
        plain, truth = prepared(target)
    except Exception as error:
        traceback.print_exc()
        result.detail = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        say(result)
        return
    say(replace(result, sites=len(truth), verdict=HARMED))  # should the process die in what follows
    result = measured(target, plain, truth)
    say(result)
    if not result.harmed:
        result.harmed = "two passes in inference mode"
        say(result)
        result.harmed = survives(target)
        say(result)


def say(result: Result) -> None:
    print("\nRESULT " + json.dumps(asdict(result)), flush=True)


# all targets


def start(target: Target, output: IO[str]) -> int:
    """A process for one target, that writes what it says into a file. A fork has torch already."""
    process = os.fork()
    if not process:
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            loaded = set(sys.modules)
            worker(target)
            print("\nMODULES " + " ".join(name for name in sys.modules if name not in loaded))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return process


def ended(process: int, until: float) -> int:
    """The exit code of a process, which is killed when its time is over."""
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


def import_all(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def measure_package(keys: list[str], seconds: float, verbose: bool) -> list[Result]:
    """Targets of one package, each in a process of its own, that has what the one before it had to
    import."""
    chosen = [target for target in targets() if target.key in keys]
    return [measure_apart(target, seconds, verbose) for target in chosen]


def measure_apart(target: Target, seconds: float, verbose: bool) -> Result:
    """One target in a process of its own; the last that it said, if it dies or hangs."""
    with tempfile.TemporaryFile("w+") as output:
        code = ended(start(target, output), time.monotonic() + seconds)
        output.seek(0)
        text = output.read()
    if verbose:
        print(text, file=sys.stderr)
    lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
    result = Result(**json.loads(lines[-1][7:])) if lines else Result(target.key)
    for line in text.splitlines():
        if line.startswith("MODULES "):
            import_all(list(dict.fromkeys(name.partition(".")[0] for name in line.split()[1:])))
    if code < 0:
        result.harmed = f"{result.harmed} ended by {signal.Signals(-code).name}".strip()
    if not lines:
        result.detail = " ".join(text.split())[-200:]
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
    lines = [
        f"{len(measured_)} targets from {len(packages)} packages",
        f"exact: {len(exact)} of {len(softmax)} with softmax attention ({share})",
        f"without softmax attention: {right} of {len(none)} record nothing",
        f"wrong without a note: {len(wrong)}",
        f"missing in silence: {len(silent)}",
        f"processes harmed: {sum(bool(r.harmed) for r in measured_)}",
    ]
    counts = Counter(r.verdict for r in results if r.verdict in (ABSENT, ERROR))
    return lines + [f"{verdict}: {count}" for verdict, count in counts.items()]


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
    shown = [result for result in results if result.verdict != ABSENT]
    lines = [
        "# What capture reads: the table",
        "",
        "Models of packages outside transformers, measured by `benchmarks/capture_packages.py`:",
        "small, with random weights, in eval mode. The truth comes from the package itself, or",
        "from the softmaxes of a run without regard.",
        "",
        "- *Exact*: all sites were recorded, in order, as (batch, head, query, key), to 10⁻⁵; no",
        "  self or cross label is wrong; the output did not change. Where several readings are",
        "  right, as a window that is an example of the batch, the one that was read is named.",
        "- *Missing*: sites that were not recorded; with a note where the trace says so.",
        "- *Wrong*: other axes, values, labels, or a site too many.",
        "- *Sound*: torch and the model work afterwards, also after two passes in `inference_mode`",
        "  inside one capture.",
        "",
        f"regard {regard.__version__}, torch {torch.__version__.split('+')[0]} on CPU.",
        "",
        *[f"- {line}" for line in totals(shown)],
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + "---|" * len(HEAD),
    ]
    for row in rows(shown, 160):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    PAGE.write_text("\n".join(lines) + "\n")


def updated(file: Path, results: list[Result]) -> list[Result]:
    """The results of a file, with those of now in place of older ones; written back."""
    entries = json.loads(file.read_text()) if file.exists() else []
    known = {entry["key"]: Result(**entry) for entry in entries}
    known |= {result.key: result for result in results if result.verdict != ABSENT}
    merged = [known[target.key] for target in targets() if target.key in known]
    merged.sort(key=lambda result: result.key.lower())
    file.write_text(json.dumps([asdict(result) for result in merged], indent=1))
    return merged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a dozen targets")
    parser.add_argument("--only", nargs="+", default=[], help="packages, or package/model")
    parser.add_argument("--write", action="store_true", help="write docs/capture-table.md")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="what the processes print")
    parser.add_argument("--json", type=Path, help="add the results to this file")
    parser.add_argument("--resume", action="store_true", help="without those that FILE has")
    parser.add_argument("--seconds", type=float, default=240, help="for each target, of the clock")
    arguments = parser.parse_args()
    chosen = targets()
    if arguments.only:
        chosen = [t for t in chosen if {t.package, t.key} & set(arguments.only)]
    if arguments.quick:
        chosen = [target for target in chosen if target.quick]
    if arguments.resume:
        done = {result.key for result in updated(arguments.json, [])}
        chosen = [target for target in chosen if target.key not in done]
    packages: dict[str, list[str]] = {}
    for target in chosen:
        packages.setdefault(target.package, []).append(target.key)
    measure = partial(measure_package, seconds=arguments.seconds, verbose=arguments.verbose)
    results = []
    with get_context("fork").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for result in chain.from_iterable(pool.imap_unordered(measure, packages.values())):
            harmed = f"  HARMED {result.harmed}" if result.harmed else ""
            text = f"{result.key}: {result.verdict} {result.detail}{harmed}"
            print(text, file=sys.stderr, flush=True)
            results.append(result)
            if arguments.json:
                updated(arguments.json, [result])
    if arguments.json:
        results = updated(arguments.json, [])
    results.sort(key=lambda result: result.key.lower())
    table("What capture reads", HEAD, rows(results, 70))
    print()
    print("\n".join(totals(results)))
    if arguments.write:
        write(results)


if __name__ == "__main__":
    restart_where_needed()
    main()
