"""Runs the Python examples of README.md and docs/ as tests."""

import os
import sys
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from cpu_probe import needed

os.environ.update(needed())  # before torch starts; see tools/cpu_probe.py

PARTS = ("mechanisms", "memory", "translate", "vision")

_run = PythonEvaluator()


def _run_up_to(example: Example) -> None:
    """Run this example, and first those above it on the page that have not run yet.

    Examples of a page share their names, and an example may be picked alone: by hand, or because
    another worker of pytest-xdist got the ones above.
    """
    done = example.namespace.setdefault("_examples_run", set())
    for other in example.document:
        if other.start <= example.start and other.start not in done:
            done.add(other.start)
            _run(other)


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples that write a file leave nothing in the repository."""
    monkeypatch.chdir(tmp_path)


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser("python", _run_up_to)],
    patterns=["README.md", "docs/*.md", *(f"docs/{part}/*.md" for part in PARTS)],
    fixtures=["_elsewhere"],
).pytest()
