"""Record: one attention that happened, what it knows and what it refuses."""

import copy
from pathlib import Path

import pytest
import torch
from record_examples import Stack, dot, record, words

import regard
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.recipe import Dot, Given
from regard.record import Record, Site

# -- where it happened


def test_a_site_and_its_names():
    first = Site("encoder.layer.3.attention.self", "Attention", "bert.py:9", "softmax")
    assert first.base == first.name == "encoder.layer.3.attention.self" and first.layer == 3
    again = Site("a.b", "Attention", "x.py:1", "softmax", call=12)
    assert again.name == "a.b#12" and again.base == "a.b" and again.layer is None
    root = Site("", "Model", "x.py:1", "softmax")
    assert root.name == "Model" and root.layer is None
    assert Site("h.10.attn.2", "A", "", "").layer == 10
    assert Site("conv2d.layer3.attn", "A", "", "").layer is None


def test_what_a_captured_record_knows():
    model = Stack(True, False)
    with regard.capture(model) as trace:
        model(words(2, 5, 8))
    fused, made = trace
    for found, path in ((fused, "layers.0"), (made, "layers.1")):
        assert found.path == found.name == path
        assert found.module_class == "Attention"
        assert (found.call, found.step, found.layer) == (1, 0, int(path[-1]))
        assert found.attends == "self" and found.kind == "distribution"
        assert found.shape == (2, 2, 5, 5) and found.dtype == torch.float32
        assert found.held == "recipe" and not found.value_held and found.output is None
    assert "flash_attention" in fused.operator and made.operator == "softmax"
    assert isinstance(fused.recipe, Dot) and isinstance(made.recipe, Given)


@pytest.mark.compiled  # run-time checks stand between the model and us in the stack
def test_the_line_it_was_on():
    model = Stack(True, False)
    with regard.capture(model) as trace:
        model(words(2, 5, 8))
    code = Path(__file__).with_name("record_examples.py").read_text().splitlines()
    for found, spelt in zip(trace, ("F.scaled_dot_product_attention", ".softmax(-1)")):
        file, _, line = found.source.partition(":")
        assert file == "record_examples.py" and spelt in code[int(line) - 1]


def test_repr():
    said = repr(record("encoder.layer.3", attends="cross"))
    assert said == "Record('encoder.layer.3': cross distribution, 2 heads, 3 × 5, batch 2, recipe)"


# -- weights


def test_weights_whole_and_in_blocks():
    found, expected = record("a"), dot().weights()
    torch.testing.assert_close(found.weights(), expected)
    torch.testing.assert_close(found.weights(slice(1, 3)), expected[:, :, 1:3])
    torch.testing.assert_close(found.weights(columns=slice(2, 4)), expected[..., 2:4])
    torch.testing.assert_close(found.weights(slice(0, 2), slice(1, None)), expected[:, :, :2, 1:])
    torch.testing.assert_close(found.weights(slice(-1, None)), expected[:, :, -1:])


def test_mixed_and_reduce():
    found, expected = record("a"), dot().weights()
    torch.testing.assert_close(found.mixed(), expected @ dot().value)
    mean, entropy = found.reduce(regard.HeadMean(), regard.Entropy())
    torch.testing.assert_close(mean, expected.mean(1))
    torch.testing.assert_close(entropy, -(expected * expected.log()).sum(-1))


def test_with_weights_holds_them():
    found = record("a").with_weights()
    assert found.held == "weights" and isinstance(found.recipe, Given)
    torch.testing.assert_close(found.weights(), dot().weights())
    assert found.nbytes == 4 * 2 * 2 * 3 * 5


def test_detach():
    recipe = dot().map(lambda x: x.requires_grad_())
    found = record("a", recipe)
    assert found.weights().requires_grad and not found.detach().weights().requires_grad


def test_detached_with_its_output():
    model = Stack(True, False)
    with regard.capture(model, attached=True, outputs=True) as trace:
        model(words(2, 5, 8))
    for found in trace:
        assert found.output.requires_grad and not found.detach().output.requires_grad
        torch.testing.assert_close(found.detach().output, found.output.detach())


@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_detached_where_nothing_is_held(tmp_path):
    for keep, budget in (("recipe", 0), ([regard.Entropy()], None), (tmp_path, None)):
        model = Stack(True)
        with regard.capture(model, keep=keep, max_bytes=budget) as trace:
            model(words(2, 5, 8))
        assert trace[0].detach().held == trace[0].held


# -- what is not there


def test_without_values():
    model = Stack(True, False)
    with regard.capture(model) as trace:
        model(words(2, 5, 8))
    for found in trace:
        with pytest.raises(
            UnavailableError, match=r"layers\.\d: no values were kept: capture\(values=True\)"
        ):
            found.mixed()


def test_without_gradient():
    model = Stack(True)
    with regard.capture(model) as trace:
        model(words(2, 5, 8))
    with pytest.raises(UnavailableError, match=r"layers\.0: there is no gradient.*grad=True"):
        trace[0].gradient()


@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_dropped_and_reduced_say_why():
    model = Stack(True)
    with regard.capture(model, max_bytes=0) as dropped:
        model(words(2, 5, 8))
    with regard.capture(model, keep=[regard.Entropy()]) as reduced:
        model(words(2, 5, 8))
    asked = (Record.weights, Record.mixed, lambda r: r.recipe, lambda r: r.reduce(regard.Entropy()))
    for ask in asked:
        with pytest.raises(UnavailableError, match=r"layers\.0: .*max_bytes"):
            ask(dropped[0])
        with pytest.raises(UnavailableError, match=r"layers\.0: .*record\.reductions"):
            ask(reduced[0])
    assert dropped[0].nbytes == 0 and reduced[0].nbytes == 4 * 2 * 2 * 5
    for found in (dropped[0], reduced[0]):
        assert found.shape == (2, 2, 5, 5)
        assert found.kind == "distribution" and found.dtype == torch.float32


def test_a_step_in_a_block_is_refused():
    with pytest.raises(RegardError, match="step 2"):
        record("a").weights(slice(0, 3, 2))


def test_changed_records_leave_the_first_alone():
    first = record("a")
    first.of_heads(0), first.to("meta"), first.relabelled("cross"), first.with_weights()
    first.with_tokens(list("abc"), list("vwxyz"))
    assert first.shape == (2, 2, 3, 5) and first.attends == "unknown" and first.held == "recipe"
    assert first.query_tokens is None and first.weights().device.type == "cpu"


def test_copies():
    first = record("a")
    for again in (copy.copy(first), copy.deepcopy(first)):
        torch.testing.assert_close(again.weights(), first.weights())
        assert again.name == "a" and again.shape == first.shape


def test_a_row_by_its_number_is_a_slice():
    trace = regard.trace(Stack(True), words(2, 5, 8))
    with pytest.raises(ShapeError, match=r"is a slice, as slice\(3, 4\); got rows=3"):
        trace[0].weights(3)
