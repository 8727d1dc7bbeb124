"""The suite itself: each law can fail, and says what it did not check."""

import pytest
import torch
from broken import BROKEN, BROKEN_OTHERWISE
from honest import Float32Softmax, Gate, Signed, WrongGradient
from torch import nn

from regard import Attended, RegardError
from regard.mechanisms import DotProduct
from regard.testing import ContractError, check_mechanism, mechanism_checks
from regard.testing.assertions import refuses
from regard.testing.law import LAWS


def _params():
    for name, law in LAWS["mechanism"].items():
        yield pytest.param(name, marks=[pytest.mark.compiled] if law.compiles else [])


def test_every_law_has_a_broken_mechanism():
    assert set(BROKEN) == set(LAWS["mechanism"])


@pytest.mark.parametrize("name", list(_params()))
def test_a_broken_mechanism_is_caught(name):
    (check,) = [check for check in mechanism_checks(BROKEN[name]) if check.name == name]
    with pytest.raises(ContractError, match=name):
        check()


@pytest.mark.parametrize(("name", "build"), BROKEN_OTHERWISE)
def test_what_breaks_a_law_in_another_way_is_caught(name, build):
    (check,) = [check for check in mechanism_checks(build) if check.name == name]
    with pytest.raises(ContractError, match=name):
        check()


@pytest.mark.parametrize("name", list(_params()))
def test_a_sound_mechanism_passes(name):
    (check,) = [check for check in mechanism_checks(DotProduct) if check.name == name]
    assert check() is None


class Stranger(nn.Module):
    """Somebody else's attention: it returns an Attended and promises nothing more."""

    def forward(self, query, key, value, *, mask=None, weights=False):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        made = scores.softmax(-1)[:, None]
        return Attended(made[:, 0] @ value, made if weights else None)


def test_a_stranger_is_told_what_was_not_checked_and_what_is_broken():
    checks = {check.name: check for check in mechanism_checks(Stranger)}
    assert checks["shapes"]() is None
    assert checks["row_sums"]() is None
    assert "reduce" in checks["reductions"]()
    assert "state" in checks["step_by_step"]()
    assert "recipe" in checks["weights_times_values"]()
    with pytest.raises(ContractError, match="forbidden pair has weight"):
        checks["mask_is_applied"]()


def test_all_broken_laws_are_listed_at_once():
    with pytest.raises(ContractError) as caught:
        check_mechanism(Stranger, without=["compiles", "exports"])
    text = str(caught.value)
    assert "mask_is_applied" in text
    assert "wrong_masks" in text


def test_report_reads_like_a_report():
    report = check_mechanism(DotProduct, without=["compiles", "exports"])
    assert str(report).startswith(f"{len(report.passed)} laws hold: ")
    assert report.unchecked == {}


def test_an_unknown_law_is_refused():
    with pytest.raises(RegardError, match="no such law"):
        check_mechanism(DotProduct, without=["gravity"])


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in its compiler
def test_inductor_agrees_with_eager():
    module, x = DotProduct(), torch.randn(2, 6, 8)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(compiled(x, causal=True).output, module(x, causal=True).output)


@pytest.mark.parametrize("build", [Signed, Gate])
def test_signed_weights_and_gates_are_not_asked_for_their_entropy(build):
    report = check_mechanism(build, without=["compiles", "exports"])
    assert list(report.unchecked) == ["row_sums"]


def test_what_forward_does_not_take_is_not_checked():
    without = ["compiles", "exports", "empty", "wrong_shapes", "wrong_dtypes"]  # raw errors
    report = check_mechanism(Float32Softmax, without=without)
    assert report.unchecked["reductions"] == "forward takes no `reduce`"
    assert report.unchecked["padding"] == "forward takes no `mask`"
    assert report.unchecked["causality"] == "forward takes no `causal`"
    assert {"asking_changes_nothing", "leaves_no_trace", "gradients"} <= set(report.passed)
    assert "not checked: reductions (forward takes no `reduce`)" in str(report)


def test_a_wrong_gradient_is_seen_beside_a_float32_softmax():
    (check,) = [check for check in mechanism_checks(WrongGradient) if check.name == "gradients"]
    with pytest.raises(ContractError, match="Jacobian"):
        check()


def test_accepted_input_is_told_with_what_the_error_should_say():
    said = "^wrong input was accepted; expected an error that says key, 4, 5$"
    with pytest.raises(AssertionError, match=said):
        refuses(lambda: None, "key", "4", "5")
