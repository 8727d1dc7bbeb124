"""The associative retrieval of Schlag et al. 2021: capacity, and associations that change.

Limits leave room for the spread over seeds that `experiments/mechanisms/results` shows.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "mechanisms" / "associative_retrieval.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("associative_retrieval", SCRIPT)
    module = sys.modules["associative_retrieval"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["associative_retrieval"]


def test_the_last_value_of_a_key_is_asked_for(script):
    for setting in script.SETTINGS[2:4]:
        keys, values, asked, target = script.batch(setting, setting.n_keys, 50)
        for example in range(50):
            positions = [i for i, key in enumerate(keys[example]) if key == asked[example]]
            assert positions and (values[example, positions[-1]] == target[example]).all()
        distinct = {len(set(row)) for row in keys.tolist()}
        assert (distinct == {setting.n_keys}) != setting.repeated


@pytest.mark.slow
def test_what_memories_hold(script):
    limits = [(0.0, 0.002), (0.07, 0.2), (0.0, 0.03), (0.07, 0.16), (0.0, 0.003)]
    for setting, (low, high) in zip(script.SETTINGS, limits, strict=True):
        loss, right = script.run(setting, seed=0)
        assert low <= loss < high, f"{setting.name}: {loss:.4f}"
        assert (right > 0.95) == (low == 0.0), f"{setting.name}: {right:.1%}"
