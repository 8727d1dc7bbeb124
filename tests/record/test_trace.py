"""Trace: a mapping by name, a sequence by order, and the parts of it one asks for."""

import copy
import pickle

import numpy as np
import pytest
import torch
from record_examples import Attention, Stack, dot, record, three_layers_twice, words
from torch import nn

import regard
from regard.errors import RegardError, UnavailableError
from regard.record import Note, Record, Trace

# -- a mapping and a sequence


def test_records_are_in_the_order_they_happened():
    trace = three_layers_twice()
    layers = [f"encoder.layer.{layer}" for layer in range(3)]
    assert trace.names() == [*layers, *(f"{name}#2" for name in layers)]
    assert list(trace) == trace.values() == [record for _, record in trace.items()]
    assert [name for name, _ in trace.items()] == trace.names()
    assert len(trace) == 6 and all(isinstance(record, Record) for record in trace)


def test_by_place():
    trace = three_layers_twice()
    every = list(trace)
    assert trace[0] is every[0] and trace[5] is trace[-1] is every[5]
    assert list(trace[1:3]) == every[1:3] and list(trace[::-2]) == every[::-2]
    assert isinstance(trace[:0], Trace) and len(trace[:0]) == 0
    for wrong in (6, -7):
        with pytest.raises(IndexError, match=f"record {wrong}, but the trace has 6"):
            trace[wrong]


def test_by_name_one_call():
    trace = Trace([record("a.0"), record("a.1")])
    assert trace["a.1"] is trace[1]


def test_by_name_several_calls():
    trace = three_layers_twice()
    calls = trace["encoder.layer.1"]
    assert isinstance(calls, Trace)
    assert list(calls) == [trace[1], trace[4]]
    assert trace["encoder.layer.1#2"] is trace[4]


OF_A_RECORD = {
    "weights", "recipe", "mixed", "gradient", "shape", "kind", "dtype", "attends", "name", "step",
    "call", "of_heads", "query_tokens", "reductions", "site",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OF_A_RECORD))
def test_what_a_record_has_asked_of_several_calls(name):
    """The message says how to take one, and what it says works."""
    trace = three_layers_twice()
    with pytest.raises(AttributeError) as raised:
        getattr(trace["encoder.layer.1"], name)
    text = str(raised.value)
    assert text.startswith(
        f"a Trace has no '{name}', a Record has: 'encoder.layer.1' ran 2 times "
        "(encoder.layer.1#1, encoder.layer.1#2); take one call, as "
    )
    call = "()" if callable(getattr(Record, name, None)) else ""
    ways = ['trace["encoder.layer.1#2"]', 'trace["encoder.layer.1"][0]']
    ways.append("trace.steps[0]['encoder.layer.1']")
    for way in ways[:2]:
        assert f"{way}.{name}{call}" in text
    assert f"{ways[2]} is that of the first pass" in text
    wanted = (trace[4], trace[1], trace[1])
    assert all(eval(way, {"trace": trace}) is record for way, record in zip(ways, wanted))


def test_what_a_record_has_asked_of_a_trace():
    trace = three_layers_twice().steps[0]
    with pytest.raises(AttributeError, match=r"take one of 3, as trace\['encoder.layer.0'\].wei"):
        trace.weights()
    with pytest.raises(AttributeError, match=r"take it, as trace\[0\].shape$"):
        trace[:1].shape  # noqa: B018
    with pytest.raises(AttributeError, match=r"this trace is empty: trace.notes says why"):
        Trace().weights()
    assert not hasattr(trace, "weights")


def test_other_attributes_fail_as_ever(monkeypatch):
    trace = three_layers_twice()
    with pytest.raises(AttributeError, match="'Trace' object has no attribute 'weigths'"):
        trace.weigths  # noqa: B018
    broken = property(lambda self: self.missing)
    monkeypatch.setattr(Trace, "attentions", broken)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        trace.attentions  # noqa: B018
    assert len(copy.copy(trace)) == len(copy.deepcopy(trace)) == 6
    assert len(pickle.loads(pickle.dumps(trace))) == 6


@pytest.mark.parametrize("where", [(0, 1), None, 1.0])
def test_an_index_that_is_none(where):
    with pytest.raises(TypeError, match=r"expected a name, a number or a slice; one head of a rec"):
        three_layers_twice()[where]


def test_a_number_of_numpy_is_a_number():
    trace = three_layers_twice()
    assert trace[np.int64(1)] is trace[1] and trace[torch.tensor(-1)] is trace[5]


@pytest.mark.parametrize(
    "part", [lambda t: t.steps[1], lambda t: t[3:], lambda t: t["encoder.layer.1"][1:]]
)
def test_a_part_answers_to_the_names_it_says_it_has(part):
    """The second pass alone: its only call of a module is what the module's name means."""
    some = part(three_layers_twice())
    assert "encoder.layer.1" in some
    assert some["encoder.layer.1"] is some["encoder.layer.1#2"]


def test_what_is_in_it():
    trace = three_layers_twice()
    for name in ("encoder.layer.1", "encoder.layer.1#2", *trace.names()):
        assert name in trace
    for name in ("encoder.layer.3", "encoder.layer.1#3", "encoder", "", 0, None):
        assert name not in trace
    for name in trace.names():
        trace[name]


def test_a_record_is_in_it():
    trace = three_layers_twice()
    assert trace[4] in trace and trace[4] in trace["encoder.layer.1"]
    assert trace[4] not in trace[:4] and record("encoder.layer.1") not in trace


def test_the_first_call_by_its_number():
    trace = three_layers_twice()
    assert "encoder.layer.1#1" in trace and trace["encoder.layer.1#1"] is trace[1]


def test_get_and_keys_as_a_mapping_has_them():
    trace = three_layers_twice()
    assert trace.keys() == trace.names()
    assert trace.get("encoder.layer.1#2") is trace[4]
    assert list(trace.get("encoder.layer.1")) == [trace[1], trace[4]]
    assert trace.get("nope") is None and trace.get("nope", 3) == 3
    one = Trace([record("a.0"), record("a.1")])
    assert dict(one) == dict(one.items()) == {"a.0": one[0], "a.1": one[1]}


def test_the_model_itself_goes_by_its_class():
    trace = Trace([record("", call=1), record("", call=2)])
    assert trace.names() == ["Attention", "Attention#2"]
    assert len(trace["Attention"]) == 2


def test_an_unknown_name_shows_near_ones():
    trace = three_layers_twice()
    with pytest.raises(KeyError) as caught:
        trace["encoder.layers.1"]
    said = str(caught.value)
    assert "no attention is named 'encoder.layers.1'" in said and "there are 6" in said
    assert "encoder.layer.1" in said.partition("near:")[2]
    with pytest.raises(KeyError) as caught:
        trace["zzz"]
    assert "near" not in str(caught.value)
    assert "there are 6: encoder.layer.0, encoder.layer.1, encoder.layer.2, enc" in str(
        caught.value
    )
    many = Trace([record(f"layer.{number}") for number in range(9)])
    with pytest.raises(KeyError, match=r"there are 9: layer\.0, .*, layer\.5, …"):
        many["zzz"]


def test_a_changed_list_is_not_the_trace():
    trace = three_layers_twice()
    trace.values().clear()
    assert len(trace) == 6


# -- parts


def test_layers():
    trace = three_layers_twice()
    assert trace.layers(1).names() == ["encoder.layer.1", "encoder.layer.1#2"]
    some = [f"encoder.layer.{layer}{call}" for call in ("", "#2") for layer in (0, 2)]
    assert trace.layers(2, 0).names() == some
    with pytest.raises(RegardError, match=r"no attention in layers \[7\].*\[0, 1, 2\]"):
        trace.layers(7)
    assert Trace([record("pool"), record("a.12.b.3")]).layers(12).names() == ["a.12.b.3"]
    for several in ([2, 0], (2, 0), range(0, 3, 2)):
        assert trace.layers(several).names() == some


def test_heads():
    trace = three_layers_twice()
    some = trace.heads(1)
    for part, whole in zip(some, trace):
        assert part.shape == (2, 1, 3, 5) and whole.shape == (2, 2, 3, 5)
        torch.testing.assert_close(part.weights(), whole.weights()[:, 1:])
        torch.testing.assert_close(part.mixed(), whole.mixed()[:, 1:])
    swapped = trace[0].of_heads(1, 0)
    torch.testing.assert_close(swapped.weights(), trace[0].weights().flip(1))
    torch.testing.assert_close(trace.heads(-1)[0].weights(), trace.heads(1)[0].weights())
    for wrong in ((2,), (0, -3)):
        with pytest.raises(RegardError, match=r"encoder.layer.0: heads .* from 0 to 1"):
            trace.heads(*wrong)
    with pytest.raises(RegardError):
        trace.heads()
    for several in ([1, 0], (1, 0), range(1, -1, -1)):
        torch.testing.assert_close(trace.heads(several)[0].weights(), swapped.weights())


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", ["0", 1.5, None, [0, "1"], torch.ones(2)], ids=str)
def test_heads_and_layers_are_whole_numbers(wrong):
    for ask in (Trace.heads, Trace.layers):
        with pytest.raises(RegardError, match=rf"{ask.__name__}: .*expected whole numbers"):
            ask(three_layers_twice(), wrong)


def test_heads_of_what_holds_no_matrix():
    """Only answers were kept: some heads of them are not to be had, and nobody pretends."""
    model = Stack(True)
    with regard.capture(model, keep=[regard.Entropy()]) as trace:
        model(words(2, 5, 8))
    with pytest.raises(UnavailableError, match=r"layers\.0"):
        trace.heads(1)


def test_heads_take_the_output_and_the_gradient_along():
    model = Stack(True, False)
    with regard.capture(model, grad=True, outputs=True, values=True) as trace:
        out = model(words(2, 5, 8))
    out.square().sum().backward()
    for whole, part in zip(trace, trace.heads(1)):
        torch.testing.assert_close(part.gradient(), whole.gradient()[:, 1:])
        torch.testing.assert_close(part.mixed(), whole.mixed()[:, 1:])
        assert part.output is None or part.output.shape[1] == 1
    torch.testing.assert_close(trace.heads(1)[0].output, trace[0].output[:, 1:])


def test_steps():
    trace = three_layers_twice()
    first, second = trace.steps
    assert list(first) == list(trace)[:3] and list(second) == list(trace)[3:]
    assert Trace().steps == []


def test_notes_and_gates_stay_with_every_part():
    trace = Trace(list(three_layers_twice()), notes=[Note("unread", "a", "b")])
    for part in (trace[:2], trace.layers(0), trace.heads(0), trace.to("cpu"), trace.steps[0]):
        assert part.notes == trace.notes


# -- devices


def test_to_a_device():
    model = Stack(True, False)
    with regard.capture(model, values=True, outputs=True) as trace:
        model(words(2, 5, 8))
    moved = trace.to("meta")
    for record_, there in zip(trace, moved):
        assert there.weights().device.type == there.mixed().device.type == "meta"
        assert there.output.device.type == "meta"
        assert there.weights().shape == record_.shape
        assert record_.weights().device.type == "cpu"
    torch.testing.assert_close(trace.to("cpu")[1].weights(), trace[1].weights())


def test_to_a_device_with_the_gradient():
    """Before backward and after it; the first trace keeps its own."""
    model = Stack(True, False)
    with regard.capture(model, grad=True) as trace:
        out = model(words(2, 5, 8))
    early = trace.to("meta")
    out.square().sum().backward()
    for first, moved in zip([*trace, *trace], [*early, *trace.to("meta")]):
        assert moved.gradient().device.type == "meta" and first.gradient().device.type == "cpu"
        assert moved.gradient().shape == first.gradient().shape
    for first, moved in zip(trace, trace.to("cpu")):
        torch.testing.assert_close(moved.gradient(), first.gradient())
        torch.testing.assert_close(moved.of_heads(1).gradient(), first.gradient()[:, 1:])


def test_to_a_device_with_reductions():
    model = Stack(True)
    with regard.capture(model, keep=[regard.Entropy(), regard.TopK(2)]) as trace:
        model(words(2, 5, 8))
    entropy, top = trace.to("meta")[0].reductions
    assert entropy.device.type == top.keys.device.type == "meta"


# -- labels and words


@pytest.mark.usefixtures("without_shape_checks")
def test_relabel():
    trace = three_layers_twice()
    other = trace.relabel({"encoder.layer.1": "cross", "encoder.layer.2#2": "self"})
    unknown = "unknown"
    assert [r.attends for r in other] == [unknown, "cross", unknown, unknown, "cross", "self"]
    assert {r.attends for r in trace} == {unknown}
    with pytest.raises(RegardError, match="no attention is named 'nope'"):
        trace.relabel({"nope": "self"})
    with pytest.raises(RegardError, match="crossed"):
        trace.relabel({"encoder.layer.1": "crossed"})
    with pytest.raises(RegardError, match=r"relabel: 'self', expected names and labels"):
        trace.relabel("self")


def test_tokens_where_they_fit():
    trace = Trace([record("a", dot(queries=3, keys=5)), record("b", dot(queries=5, keys=5))])
    told = trace.with_tokens(list("abc"), list("vwxyz"))
    assert told[0].query_tokens == list("abc") and told[0].key_tokens == list("vwxyz")
    assert told[1].query_tokens is None and told[1].key_tokens == list("vwxyz")
    same = trace.with_tokens(list("vwxyz"))
    assert same[1].query_tokens == same[1].key_tokens == list("vwxyz")
    assert same[0].query_tokens is None and same[0].key_tokens == list("vwxyz")
    assert trace[0].query_tokens is None


def test_tokens_for_each_example():
    trace = Trace([record("a", dot(queries=3, keys=5)), record("b", dot(queries=5, keys=5))])
    texts = [list("abcde"), list("vwxyz")]
    told = trace.with_tokens(texts)
    assert told[1].query_tokens == told[1].key_tokens == texts
    assert told[0].query_tokens is None and told[0].key_tokens == texts
    texts[0][0] = "changed"
    assert told[1].key_tokens[0][0] == "a"
    other = trace.with_tokens([list("abc"), list("def")], list("vwxyz"))
    assert other[0].query_tokens[1] == list("def") and other[0].key_tokens == list("vwxyz")
    for part in (told.heads(0), told.to("cpu"), told[:]):
        assert part[1].query_tokens == told[1].query_tokens


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("vwxyz", "'vwxyz', expected a list of words"),
        ([1, 2, 3, 4, 5], r"\[1, 2, 3, 4, 5\], expected a list of words"),
        (torch.arange(5), "expected a list of words"),
        (["vwxyz", ["a"]], "expected a list of words"),
        ([list("abcde"), list("abc")], "lists of 3 to 5 words.*padding"),
        (list("ab"), r"2 words fit no attention.*\(2, 3, 5\)"),
        ([list("abcde")], r"1 × 5 words fit no attention.*\(2, 3, 5\)"),
    ],
)
def test_tokens_that_are_none(tokens, said):
    with pytest.raises(RegardError, match=f"with_tokens: .*{said}|with_tokens: {said}"):
        Trace([record("a")]).with_tokens(tokens)


def test_an_empty_trace_takes_any_tokens():
    assert len(Trace().with_tokens(["a"])) == 0


def test_tokens_that_do_not_fit_a_record():
    with pytest.raises(RegardError, match="a: 1 × 3 query tokens, expected 2 × 3"):
        record("a").with_tokens([list("abc")])
    with pytest.raises(RegardError, match="a: 2 key tokens, expected 5"):
        record("a").with_tokens(list("abc"), list("de"))
    with pytest.raises(RegardError, match="a: 2 query tokens, expected 3"):
        record("a").with_tokens(list("de"))


# -- memory


def test_shared_memory_counts_once():
    recipe = dot()
    one, two = record("a", recipe), record("b", recipe)
    assert one.nbytes == two.nbytes == recipe.nbytes > 0
    assert Trace([one, two]).nbytes == recipe.nbytes
    assert Trace([one, record("b", dot(7))]).nbytes == 2 * recipe.nbytes
    assert Trace().nbytes == 0


def test_memory_of_a_model_with_one_projection():
    """Query, key and value are views of one tensor: its bytes are what is kept alive."""

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.all = nn.Linear(8, 24)

        def forward(self, x):
            parts = self.all(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(*parts)

    model = Packed()
    with regard.capture(model) as trace:
        model(words(2, 5, 8))
    lse = 4 * 2 * 2 * 5
    assert trace.nbytes == 4 * 2 * 5 * 24 + lse


def test_outputs_count():
    model = Stack(True)
    with regard.capture(model) as plain:
        model(words(2, 5, 8))
    with regard.capture(model, outputs=True) as trace:
        model(words(2, 5, 8))
    assert trace.nbytes == plain.nbytes + trace[0].output.untyped_storage().nbytes()


# -- questions to all of it


def test_reduce():
    trace = three_layers_twice()
    answers = trace.reduce(regard.HeadMean(), regard.ReceivedAttention())
    assert list(answers) == trace.names()
    for name, (mean, received) in answers.items():
        weights = next(r for r in trace if r.name == name).weights()
        torch.testing.assert_close(mean, weights.mean(1))
        torch.testing.assert_close(received, weights.sum(2))
    with pytest.raises(RegardError, match=r"needs reducers"):
        trace.reduce()


def test_a_reducer_can_be_used_again():
    """Each record starts it anew: nothing of one is in the answer of another."""
    trace, entropy = three_layers_twice(), regard.Entropy()
    first, second = trace.reduce(entropy), trace.reduce(entropy)
    for name in trace.names():
        torch.testing.assert_close(first[name], second[name])


def test_bool_of_an_empty_trace():
    assert not Trace() and three_layers_twice()
    assert list(Trace()) == [] and Trace().names() == []
    assert Trace().attentions == ()


def test_attention_class_is_used():
    """The example model gives self-attention, and cross-attention to a memory."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.other = Attention(), Attention()

        def forward(self, x, memory):
            return self.other(self.own(x), memory)

    model = Both()
    with regard.capture(model) as trace:
        model(words(2, 3, 8), words(2, 5, 8, seed=1))
    assert [r.attends for r in trace] == ["self", "cross"]
    assert [r.shape.keys for r in trace] == [3, 5]
