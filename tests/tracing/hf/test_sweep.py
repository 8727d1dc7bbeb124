"""Architectures of transformers, tiny, in their default implementation: are the weights right?

`sweep.py` does the work in processes of its own. A few run always; all of them in the slow form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SWEEP = Path(__file__).with_name("sweep.py")

QUICK = [
    "albert", "bart", "bert", "bloom", "clip", "deberta-v2", "deepseek_v3", "distilbert",
    "electra", "falcon", "funnel", "gemma3_text", "gpt2", "gpt_oss", "llama", "llava", "mixtral",
    "opt", "phi3", "qwen2_vl", "qwen3", "roberta", "sam", "swin", "t5", "vit", "wav2vec2",
    "whisper",
]  # fmt: skip

# Wrong, and why. An entry that turns right fails the test: take it out.
KNOWN: dict[str, str] = {
    "groupvit": "a hard assignment to groups: its softmax never meets the values (a note says so)",
    "led": "banded products: the weights lie along diagonals (notes say so)",
    "longformer": "as led",
    "mobilevitv2": "values of a product and a sum are not held: nothing to check the weights with",
}


def swept(folder: Path, *names: str) -> dict[str, dict]:
    """Results by architecture."""
    file = folder / "results.json"
    command = [sys.executable, str(SWEEP), *names, "-j", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return {found["architecture"]: found for found in json.loads(file.read_text())}


def test_a_few_architectures(tmp_path):
    results = swept(tmp_path, *QUICK)
    assert {
        name: found["reason"] for name, found in results.items() if found["verdict"] != "right"
    } == {}
    assert all(found["captured"] for found in results.values())
    assert [odd for found in results.values() for odd in found["roles"]] == [], "self or cross"


@pytest.mark.slow
def test_every_architecture(tmp_path):
    results = swept(tmp_path)
    by = {
        verdict: {name for name, found in results.items() if found["verdict"] == verdict}
        for verdict in ("right", "wrong", "none", "unbuilt")
    }
    reasons = {name: results[name]["reason"] for name in by["wrong"] - set(KNOWN)}
    assert reasons == {}, "not right, and not known"
    assert set(KNOWN) - by["wrong"] == set(), "known to be wrong, and right now"
    assert len(by["right"]) >= 0.95 * (len(by["right"]) + len(by["wrong"]))
    assert len(by["right"]) >= 490, "most architectures can still be built"


def test_the_sweep_can_fail(monkeypatch):
    """A trace with a wrong scale, a missing site or a changed output is not right."""
    import examine

    import regard

    assert examine.examine("llama").verdict == "right"

    honest = regard.Record.weights
    monkeypatch.setattr(regard.Record, "weights", lambda self, *a: honest(self, *a).sqrt())
    found = examine.examine("llama")
    assert found.verdict == "wrong" and "off by" in found.reason
    monkeypatch.undo()

    monkeypatch.setattr(regard.Trace, "__iter__", lambda self: iter(self._records[1:]))
    found = examine.examine("llama")
    assert found.verdict == "wrong" and "missed layers.0.self_attn" in found.reason
    monkeypatch.undo()

    run, count = examine._run, iter(range(10))
    shift = lambda model, given: {"x": run(model, given)[0] + torch.tensor(float(next(count)))}
    monkeypatch.setattr(examine, "_run", shift)
    found = examine.examine("llama")
    assert found.verdict == "wrong" and "the output changed" in found.reason
