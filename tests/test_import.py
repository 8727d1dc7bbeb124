"""Importing regard loads torch and jaxtyping, nothing optional, and changes nothing."""

import subprocess
import sys

OPTIONAL = """
matplotlib typer rich transformers tokenizers safetensors starlette uvicorn lightning scipy
pyarrow ray sentencepiece sacrebleu hypothesis beartype
"""
STATES = [
    "torch.get_num_threads()",
    "torch.get_default_dtype()",
    "torch.is_grad_enabled()",
    "torch.get_rng_state().tolist()",
    "random.getstate()",
    "warnings.filters[:]",
    "logging.root.handlers[:]",
]


def fresh(code):
    """The words that a new process prints."""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return run.stdout.split()


def test_nothing_optional_is_loaded():
    loaded = fresh(
        "import sys, torch; before = set(sys.modules); import regard; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    assert "regard" in loaded
    assert not set(loaded) & set(OPTIONAL.split())


def test_importing_changes_nothing():
    states = f"[{', '.join(STATES)}]"
    changed = fresh(
        "import logging, random, warnings, torch, jaxtyping; torch.set_num_threads(2); "
        f"torch.set_default_dtype(torch.float64); before = {states}; import regard; "
        f"print(*[i for i, (a, b) in enumerate(zip(before, {states})) if a != b], 'done')"
    )
    assert changed == ["done"], [STATES[int(index)] for index in changed[:-1]]
