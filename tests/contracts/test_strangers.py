"""Other people's attention under the contract: each breaks what it breaks, and nothing more."""

from pathlib import Path

import pytest
from strangers import CaptureAdapter, TorchAdapter, XTransformersAdapter

from regard.testing import ContractError, mechanism_checks

ERRORS = {"wrong_shapes", "wrong_dtypes"}  # raw errors of torch


def verdicts(build):
    """The laws that are broken, and those that were not checked with the reason."""
    broken, unchecked = set(), {}
    for check in mechanism_checks(build, without=["compiles", "exports"]):
        try:
            reason = check()
        except ContractError:
            broken.add(check.name)
        else:
            unchecked |= {} if reason is None else {check.name: reason}
    return broken, unchecked


def test_torch():
    broken, unchecked = verdicts(TorchAdapter)
    assert broken == {"empty", *ERRORS}  # the bias of its output projection speaks for no keys
    assert unchecked["mask_is_applied"] == "forward takes no `mask`"
    assert unchecked["reductions"] == "forward takes no `reduce`"
    assert "weights_of_the_output" not in unchecked


def test_x_transformers():
    pytest.importorskip("x_transformers")
    broken, unchecked = verdicts(XTransformersAdapter)
    assert broken == ERRORS
    assert "weights_of_the_output" not in unchecked  # against those that capture sees


def test_timm(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tracing" / "hf")
    from torchvision_stub import imported

    attention = imported("timm.layers.attention").Attention
    broken, unchecked = verdicts(lambda: CaptureAdapter(attention(16, num_heads=4)))
    assert broken == {"empty"}  # nothing attends, so nothing is captured
    assert unchecked["key_permutation"] == "the module declares that order matters"
    assert "gradients" not in unchecked
