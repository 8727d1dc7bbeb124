"""The copy task of Graves et al. 2014: its data, no NaN, and what a trained machine does."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "experiments" / "mechanisms" / "ntm_copy.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("ntm_copy", SCRIPT)
    module = sys.modules["ntm_copy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ntm_copy"]


def test_the_input_has_bits_then_a_delimiter_then_silence(script):
    x, bits = script.sequences(3, 4)
    assert x.shape == (3, 9, 9) and bits.shape == (3, 4, 8)
    assert torch.equal(x[:, :4, :8], bits) and x[:, 4, 8].all()
    assert x[:, 4:].sum() == 3 and not x[:, :4, 8].any()
    assert script.wrong_bits(bits - 0.5, bits) == 0
    assert script.wrong_bits(0.5 - bits, bits) == 32


def test_a_few_updates_stay_finite(script):
    finite, loss = script.stays_finite(seed=0, updates=12)
    assert finite and 0 < loss < 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_two_thousand_updates_stay_finite(script, seed):
    finite, loss = script.stays_finite(seed)
    assert finite and loss < 0.7


@pytest.mark.slow
def test_it_learns_to_copy_and_copies_what_is_longer(script):
    machine, converged = script.train(seed=0)
    assert converged is not None
    assert script.errors(machine, 20) < 1 and script.errors(machine, 40) < 4
    assert script.errors(machine, 80) < 64  # a tenth of the bits
