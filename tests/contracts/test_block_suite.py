"""The suite of blocks itself: each law can fail for its own reason, and says what it saw."""

import pytest
from block_members import decoder, encoder
from broken_blocks import BROKEN, Encoder, ForgetsGradientsCompiled
from torch import nn

from regard import RegardError
from regard.blocks import BlockOutput
from regard.testing import ContractError, block_checks, check_block
from regard.testing.law import LAWS

#: What a failure says, where a law could also fail for another reason.
SAYS = {
    "shapes": "3 axes, expected 4",
    "asking_changes_nothing": "the output moved",
    "reductions": "HeadMean of weights of self",
    "permutation": "output of a permuted set",
    "weights_of_the_output": "against those of self_attention",
    "weights_before_dropout": "weights of self in training",
    "dtypes": "bfloat16 in, torch.float32 out",
    "autocast": "x is torch.bfloat16, expected torch.float32",
    "mask_is_applied": "a masked position was flipped, and others moved",
    "context_mask_is_applied": "masked position of the context flipped",
    "padding": "gradient of self_attention",
    "context_padding": "NaN",
    "causality": "output before the change",
    "causal_and_mask": "causal or mask forbids",
    "masked_rows": "may look at nothing has weight",
    "empty": "amax",
    "step_by_step": "in steps of 1",
    "state_is_a_pytree": "the leaves of a state are {'Hidden'}",
    "gradients": "weights of self are not in the graph",
    "state_dict": "differs after load_state_dict",
    "copies": "pickle",
    "leaves_no_trace": "random numbers were drawn",
    "compiles": "data-dependent",
    "exports": "length",
}


def _params():
    for name, law in LAWS["block"].items():
        yield pytest.param(name, marks=[pytest.mark.compiled] if law.compiles else [])


def test_every_law_has_a_broken_block():
    assert set(BROKEN) == set(LAWS["block"])


@pytest.mark.parametrize("name", list(_params()))
def test_a_broken_block_is_caught(name, without_shape_checks):
    (check,) = [check for check in block_checks(BROKEN[name]) if check.name == name]
    with pytest.raises(ContractError, match=name) as caught:
        check()
    assert SAYS.get(name, "the error does not say") in str(caught.value)


@pytest.mark.compiled
def test_gradients_of_a_compiled_block_are_compared():
    checks = block_checks(ForgetsGradientsCompiled)
    (check,) = [check for check in checks if check.name == "compiles"]
    with pytest.raises(ContractError, match="compiled, with masks: gradient of self_attention"):
        check()


def test_what_breaks_one_law_is_otherwise_sound():
    laws = [name for name, law in LAWS["block"].items() if law.compiles]
    assert len(check_block(Encoder, without=laws).passed) == len(LAWS["block"]) - len(laws) - 3


class Stranger(nn.Module):
    """Somebody else's block: it returns a BlockOutput and promises nothing more."""

    def __init__(self):
        super().__init__()
        self.block = encoder()

    def forward(self, x, *, mask=None, weights=False):
        return self.block(x, weights=weights)


def test_a_stranger_is_told_what_was_not_checked_and_what_is_broken():
    checks = {check.name: check for check in block_checks(Stranger)}
    assert checks["shapes"]() is None
    assert "state" in checks["step_by_step"]()
    assert "causal" in checks["causality"]()
    assert "context" in checks["context_padding"]()
    with pytest.raises(ContractError, match="NaN"):
        checks["padding"]()


def test_a_stranger_with_a_context_says_so_by_its_width():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = decoder()

        def forward(self, x, context, *, mask=None, weights=False):
            return self.block(x, context, weights=weights)

    (check,) = [c for c in block_checks(Both, context_width=16) if c.name == "shapes"]
    assert check() is None


class NotEven(nn.Module):
    def forward(self, x, **options):
        return BlockOutput(x)


def test_all_broken_laws_are_listed_at_once():
    with pytest.raises(ContractError) as caught:
        check_block(NotEven, without=["compiles", "exports"])
    text = str(caught.value)
    assert "there is no attention named self" in text
    assert "mask_is_applied" in text


def test_an_unknown_law_is_refused():
    with pytest.raises(RegardError, match="no such law"):
        check_block(encoder, without=["gravity"])


def test_a_module_is_not_what_builds_one():
    with pytest.raises(RegardError, match="build is a module"):
        check_block(encoder())
