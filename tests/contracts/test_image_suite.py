"""The suite of attention over images itself: each law can fail, and says what it saw."""

import pytest
from broken_images import BROKEN, BROKEN_OTHERWISE, Channels, Local
from torch import nn

from regard import Attended, RegardError
from regard.testing import ContractError, check_image_mechanism, image_checks
from regard.testing.law import LAWS

#: What a failure says, so that a law does not fail for another reason.
SAYS = {
    "shapes": "weights have 3 axes, expected 4",
    "sizes": "the grid is (4, 1), expected (1, 4)",
    "declared_kind": "expected at most 1",
    "gates_multiply": "output against the image times the gates",
    "mixes": "mixed values of weights",
    "output_of_mixed": "the best linear map of the mixed values",
    "asking_changes_nothing": "the output moved",
    "reductions": "HeadMean",
    "examples_apart": "output beside other examples",
    "dtypes": "bfloat16 in, torch.float32 out",
    "autocast": "torch.bfloat16 times torch.float32",
    "empty": "amax",
    "gradients": "weights are not in the graph",
    "training": "unused.weight has no gradient",
    "state_dict": "differs after load_state_dict",
    "copies": "pickle",
    "leaves_no_trace": "an input was changed",
    "wrong_images": "the error does not say image",
    "compiles": "data-dependent",
    "exports": "Constraints violated",
}


def _params():
    for name, law in LAWS["image"].items():
        yield pytest.param(name, marks=[pytest.mark.compiled] if law.compiles else [])


def _check(name, build):
    (check,) = [check for check in image_checks(build) if check.name == name]
    return check


def test_every_law_has_a_broken_module():
    assert set(BROKEN) == set(SAYS) == set(LAWS["image"])


@pytest.mark.parametrize("name", list(_params()))
def test_a_broken_module_is_caught(name, without_shape_checks):
    with pytest.raises(ContractError, match=name) as caught:
        _check(name, BROKEN[name])()
    assert SAYS[name] in str(caught.value)


@pytest.mark.parametrize(("name", "build"), BROKEN_OTHERWISE)
def test_what_breaks_a_law_in_another_way_is_caught(name, build, without_shape_checks):
    with pytest.raises(ContractError, match=name):
        _check(name, build)()


@pytest.mark.parametrize(
    ("build", "unchecked"),
    [(Channels, {"mixes", "output_of_mixed"}), (Local, {"gates_multiply"})],
)
def test_what_breaks_one_law_is_otherwise_sound(build, unchecked, without_shape_checks):
    compiling = {name for name, law in LAWS["image"].items() if law.compiles}
    report = check_image_mechanism(build, without=compiling)
    assert set(report.unchecked) == unchecked
    assert set(report.passed) == set(LAWS["image"]) - compiling - unchecked


class Stranger(nn.Module):
    """Somebody else's attention over positions: it returns an Attended and takes no reducers."""

    def forward(self, image, *, weights=False):
        x = image.flatten(2).mT  # (batch, position, channel)
        matrix = (x @ x.mT).softmax(-1)
        output = (matrix @ x).mT.reshape(image.shape)
        return Attended(output, matrix[:, None] if weights else None)


def test_a_stranger_is_told_what_was_not_checked():
    report = check_image_mechanism(Stranger, without=["compiles", "exports", "wrong_images"])
    unseen = "no recipe with values is kept, so the mixed values cannot be seen"
    assert report.unchecked == {
        "mixes": unseen,
        "output_of_mixed": unseen,
        "gates_multiply": "weights of kind 'distribution' are not factors of the image",
        "reductions": "forward takes no `reduce`",
    }


def test_an_unknown_law_is_refused():
    with pytest.raises(RegardError, match="no such law"):
        check_image_mechanism(Channels, without=["gravity"])


def test_a_module_is_not_what_builds_one():
    with pytest.raises(RegardError, match="build is a module"):
        check_image_mechanism(Channels())
