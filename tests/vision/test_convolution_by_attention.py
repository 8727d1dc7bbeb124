"""Nine heads that score offsets reproduce a 3 × 3 convolution (Cordonnier et al. 2020)."""

import runpy
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "experiments/mechanisms/convolution_by_attention.py"


@pytest.mark.parametrize(
    ("alpha", "low", "high"), [(1.0, 0.6, 1.0), (5.0, 0.02, 0.04), (20.0, 1e-8, 5e-7)]
)
def test_errors_vanish_as_heads_sharpen(alpha: float, low: float, high: float) -> None:
    """About 0.7, 0.03 and 1e-7, of the output's norm and, for the largest, of its maximum."""
    relative, largest = runpy.run_path(str(STUDY))["errors"](alpha)
    assert low < relative < high and low < largest < high


def test_every_head_looks_at_its_own_offset() -> None:
    study = runpy.run_path(str(STUDY))
    weights = study["kernels"](20.0).weights[0, :, 4, 4]  # (head, dy, dx)
    for head, (dy, dx) in zip(weights, study["KERNEL"].tolist()):
        assert head[dy + 2, dx + 2] == pytest.approx(1.0, abs=1e-6)
