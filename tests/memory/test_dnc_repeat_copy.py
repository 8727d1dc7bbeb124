"""Repeat copy by a DNC: its data, and what a trained machine does."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "experiments" / "mechanisms" / "dnc_repeat_copy.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("dnc_repeat_copy", SCRIPT)
    module = sys.modules["dnc_repeat_copy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["dnc_repeat_copy"]


def test_the_bits_are_asked_for_as_often_as_the_delimiter_says(script):
    x, bits = script.sequences(2, 4, 3)
    assert x.shape == (2, 4 + 1 + 12, 5) and bits.shape == (2, 12, 4)
    assert (x[:, 4, 4] == 1).all() and not x[:, 5:].any()
    for repeat in range(3):
        assert torch.equal(bits[:, 4 * repeat : 4 * repeat + 4], x[:, :4, :4])


@pytest.mark.slow
def test_it_learns_to_repeat(script):
    dnc = script.train(seed=0)
    assert script.accuracy(dnc, 3, 2) > 0.98 and script.accuracy(dnc, 4, 3) > 0.95
