"""The search and the Transformer against transformers' Marian with the same weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "translate_speed.py"


@pytest.fixture(scope="module")
def speed():
    spec = importlib.util.spec_from_file_location("translate_speed_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("length", [9, None])
def test_the_same_tokens_from_the_same_weights(speed, beam, length):
    sizes = speed.Sizes("tiny", 2, 32, 4, 64, 500)
    ours, theirs = speed.translators(sizes, 6, beam, length, True)
    assert ours() == theirs()
