"""A capture never harms its process: every way to run a model, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_safety import CONTEXTS, PATHS, POSITIONS, TRANSFORMS

HERE = Path(__file__).parent
CASES = [
    (context, position, path)
    for context in (*CONTEXTS, *TRANSFORMS)
    for position in POSITIONS
    for path in PATHS
]
#: Those of `make test`; the others are slow.
USUAL = {
    ("inference_mode", "inside", "auto"),
    ("inference_mode", "around_one", "auto"),
    ("inference_mode", "outside", "full"),
    ("inference_mode", "inside", "fused"),
    ("no_grad", "around_one", "auto"),
    ("autocast", "inside", "auto"),
    ("sdpa_kernel", "around_one", "auto"),
    ("grad", "around_one", "auto"),
    ("vmap", "inside", "auto"),
    ("dispatch_mode", "around_one", "auto"),
    ("function_mode", "inside", "auto"),
}


def run_script(name: str, *arguments: str) -> None:
    """A script beside this file, in a new process; it prints "fine" at its end."""
    paths = [str(HERE), *sys.path]
    done = subprocess.run(
        [sys.executable, str(HERE / name), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    assert done.stdout.strip().endswith("fine")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(case), marks=() if case in USUAL else pytest.mark.slow)
        for case in CASES
    ],
)
def test_process_is_unharmed(case: tuple[str, str, str]) -> None:
    run_script("process_safety.py", *case)


def test_a_compiler_that_is_imported_during_a_capture() -> None:
    """Nothing is compiled, and traced by the capture, until its end."""
    run_script("late_compiler.py")
