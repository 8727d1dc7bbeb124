"""transformers' families in each of their implementations, against their eager weights."""

from __future__ import annotations

import pytest
import torch
from examine import same
from families import FAMILIES

import regard

CASES = [
    pytest.param(name, implementation, padding, id=f"{name}-{implementation}-{padding}")
    for name, family in FAMILIES.items()
    for implementation in family.implementations
    for padding in (("padded", "whole") if "attention_mask" in family.inputs() else ("whole",))
]
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning"),
    # torch's own compiler, imported when transformers asks for flex attention
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def run(model, given):
    """Without the compiler, which flex attention would otherwise be given to."""
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        return model(**given)


@pytest.mark.parametrize(("name", "implementation", "padding"), CASES)
def test_captured_weights_are_the_eager_ones(name, implementation, padding):
    family = FAMILIES[name]
    model, given = family.build(implementation), family.inputs()
    if padding == "whole":
        given.pop("attention_mask", None)
    plain = run(model, given)
    with regard.capture(model) as trace:
        watched = run(model, given)
    assert trace.names() == list(family.sites), "every site once, in order"
    assert not trace.notes
    assert same(plain, watched), "bit for bit"
    for record, want in zip(trace, family.truth(given), strict=True):
        torch.testing.assert_close(record.weights(), want, atol=1e-5, rtol=0, msg=record.name)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_default_implementation_untouched(name):
    family = FAMILIES[name]
    given = family.inputs()
    with torch.no_grad():
        trace = regard.trace(family.build(), **given)
    assert trace.names() == list(family.sites)
    for record, want in zip(trace, family.truth(given), strict=True):
        torch.testing.assert_close(record.weights(), want, atol=1e-5, rtol=0, msg=record.name)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bart", "t5", "marian", "whisper"])
def test_self_and_cross_are_told_apart(name, implementation):
    family = FAMILIES[name]
    with torch.no_grad():
        trace = regard.trace(family.build(implementation), **family.inputs())
    for record in trace:
        cross = "encoder_attn" in record.name or "EncDec" in record.name
        assert record.attends == ("cross" if cross else "self"), record.name
    assert [len(group) for group in (trace.encoder_attentions, trace.cross_attentions)] == [2, 2]


def test_t5_with_flex_attention():
    """Its position bias as a function of places; transformers can do it for a batch of one."""
    family = FAMILIES["t5"]
    model = family.build("flex_attention")
    given = {name: tensor[:1] for name, tensor in family.inputs().items()}
    plain = run(model, given)
    with regard.capture(model) as trace:
        watched = run(model, given)
    assert same(plain, watched)
    assert trace.names() == list(family.sites)
    for record, want in zip(trace, family.truth(given), strict=True):
        torch.testing.assert_close(record.weights(), want, atol=1e-5, rtol=0, msg=record.name)


def test_a_router_is_no_attention():
    family = FAMILIES["mixtral"]
    with torch.no_grad():
        trace = regard.trace(family.build(), **family.inputs())
    assert not any("gate" in record.name or "mlp" in record.name for record in trace)


def test_a_sink_takes_its_share():
    """gpt-oss: the eager weights are those without the column of the sink; rows stay below 1."""
    family = FAMILIES["gpt-oss"]
    with torch.no_grad():
        trace = regard.trace(family.build("eager"), **family.inputs())
    for record in trace:
        sums = record.weights().sum(-1)
        assert sums.max() < 1 and sums.min() > 0


def test_the_families_can_fail():
    """The comparison sees another seed, another head order and another layer."""
    family = FAMILIES["llama"]
    given = family.inputs()
    with torch.no_grad():
        trace = regard.trace(family.build("sdpa", seed=1), **given)
    first, second = family.truth(given)
    got = trace[0].weights()
    for wrong in (first, second, got.flip(1), got.mT):
        assert (got - wrong).abs().max() > 1e-2
