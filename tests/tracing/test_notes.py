"""Never silent: what was not seen, not read, left out or lost is said by its module path."""

import warnings

import pytest
import torch
from capture_models import Attention, Custom, NumpyAttention, Stack, fused, handmade, words
from torch import nn

import regard
from regard.errors import RegardError


def capture(model, x, passes=1, **options):
    """The trace, and the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model, **options) as trace:
            for _ in range(passes):
                model(x)
    assert all(warning.category is regard.CaptureWarning for warning in caught)
    return trace, [str(warning.message) for warning in caught]


def said_once(trace, said, kind, *words_):
    """One note of this kind, one warning and one line of the table, each with these words."""
    (note,) = (note for note in trace.notes if note.kind == kind)
    assert len(trace.notes) == len(said)
    (warning,) = (text for text in said if note.text in text)
    for word in words_:
        assert word in str(note) and word in warning
    assert repr(trace).count(f"note: {note}") == 1


def test_nothing_to_say():
    for model in (fused(), handmade(), Stack(Attention(), Attention(False))):
        trace, said = capture(model, words(2, 5, 8), 3)
        assert trace.notes == [] and said == [] and "note" not in repr(trace)


# -- empty


def test_an_empty_trace():
    trace, said = capture(nn.Linear(8, 8), words(2, 5, 8))
    assert len(trace) == 0
    said_once(trace, said, "empty", "no attention was seen")


def test_a_model_that_did_not_run():
    with (
        pytest.warns(regard.CaptureWarning, match="did the model run"),
        regard.capture(fused()) as trace,
    ):
        pass
    assert [note.kind for note in trace.notes] == ["empty"]


def test_another_model_ran():
    with (
        pytest.warns(regard.CaptureWarning, match="no attention was seen"),
        regard.capture(fused()) as trace,
    ):
        fused()(words(2, 5, 8))
    assert len(trace) == 0


def test_regard_trace_warns_too():
    with pytest.warns(regard.CaptureWarning, match="no attention was seen"):
        trace = regard.trace(nn.Linear(8, 8), words(2, 5, 8))
    assert trace.output.shape == (2, 5, 8)


@pytest.mark.compiled  # run-time checks stand between the caller and us in the stack
def test_the_warning_points_at_the_user():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regard.trace(nn.Linear(8, 8), words(2, 5, 8))
        with regard.capture(nn.Linear(8, 8)):
            pass

        @regard.capture(nn.Linear(8, 8))
        def run():
            pass

        run()
    assert [warning.filename for warning in caught] == [__file__] * 3


# -- unread: an operator that looks like attention


class Named(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.block = nn.ModuleDict({"mixer": inner})

    def forward(self, x):
        return self.block["mixer"](x)


@pytest.mark.parametrize("path", ["auto", "full"])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_custom_operator(path, context):
    """Its module and its name are said, once, however often it ran; its softmax is hidden."""
    model = Named(Custom())
    with context():
        trace, said = capture(model, words(2, 5, 8), 3, path=path)
    assert len(trace) == 0
    said_once(
        trace, said, "unread", "block.mixer", "regard_tests::flash_attn", "regard.register_recipe"
    )


def test_a_custom_operator_beside_others():
    model = Stack(Attention(), Custom())
    trace, said = capture(model, words(2, 5, 8))
    assert trace.names() == ["layers.0"]
    said_once(trace, said, "unread", "layers.1")


def test_a_custom_operator_beside_fused_attention_for_several_passes():
    """The cheaper path does not see it: then the capture must not go there, or say so."""
    model = Stack(Attention(), Custom())
    trace, said = capture(model, words(2, 5, 8), 4)
    assert trace.names() == ["layers.0", "layers.0#2", "layers.0#3", "layers.0#4"]
    said_once(trace, said, "unread", "layers.1")


def test_a_custom_operator_of_another_model():
    model, other, x = fused(1), Custom(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
        other(x)
    assert trace.notes == []


@torch.library.custom_op("regard_tests::rotate", mutates_args=())
def rotate(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1)


def test_other_custom_operators_are_let_be():
    class Rotates(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention()

        def forward(self, x):
            return self.inner(rotate(x))

    trace, said = capture(Rotates(), words(2, 5, 8))
    assert len(trace) == 1 and said == []


# -- unseen: attention by its name, and nothing was seen


class Reader(nn.Module):
    def __init__(self, path, module):
        super().__init__()
        self.seen = Attention()
        self.add_module(path, module)
        self.path = path

    def forward(self, x):
        return getattr(self, self.path)(self.seen(x))


@pytest.mark.parametrize("path", ["numpy", "self_attn"])
def test_attention_in_numpy(path):
    """By its class, `NumpyAttention`."""
    model = Reader(path, NumpyAttention())
    trace, said = capture(model, words(2, 5, 8))
    assert trace.names() == ["seen"]
    said_once(trace, said, "unseen", path, "NumpyAttention")


def test_attention_by_the_name_of_its_path():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 8)

        def forward(self, x):
            return self.project(x).sigmoid() * x

    trace, said = capture(Reader("cross_attention", Mixer()), words(2, 5, 8))
    said_once(trace, said, "unseen", "cross_attention", "Mixer")
    trace, said = capture(Reader("mixer", Mixer()), words(2, 5, 8))
    assert said == []


def test_attention_that_did_not_run_is_not_missed():
    model = Reader("spare_attention", NumpyAttention())
    model.path = "seen"
    trace, said = capture(model, words(2, 5, 8))
    assert said == [] and len(trace) == 2


def test_a_wrapper_called_attention_is_not_missed():
    """What it wraps was seen, or it lies in what was seen."""

    class BlockAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention()

        def forward(self, x):
            return self.inner(x)

    trace, said = capture(Reader("attention", BlockAttention()), words(2, 5, 8))
    assert trace.names() == ["seen", "attention.inner"] and said == []


def test_unseen_on_the_second_pass_only():
    """A module that first runs when the cheaper path is on."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.late, self.passes = Attention(), NumpyAttention(), 0

        def forward(self, x):
            self.passes += 1
            x = self.first(x)
            return self.late(x) if self.passes > 2 else x

    trace, said = capture(Late(), words(2, 5, 8), 4)
    assert len(trace) == 4
    said_once(trace, said, "unseen", "late", "NumpyAttention")


def test_a_custom_operator_in_a_module_called_attention():
    """One thing to say, not two."""

    class FlashAttention(Custom):
        pass

    trace, said = capture(Named(FlashAttention()), words(2, 5, 8))
    said_once(trace, said, "unread", "block.mixer")


# -- gates: softmaxes that are not attention


def test_a_router_is_in_the_list_of_gates():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.score = Attention(), nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            x = self.attn(x)
            gates = self.score(x).softmax(-1)
            every = torch.stack([expert(x) for expert in self.experts], -1)
            return (every @ gates[..., None]).squeeze(-1)

    trace, said = capture(Router(), words(2, 5, 8))
    assert trace.names() == ["attn"] and said == []
    assert len(trace.gates) == 1 and "parameter" in trace.gates[0].reason
    assert trace.gates[0].module_class == "Router" and trace.gates[0].shape == (2, 5, 3)
    assert "1 softmax not taken for attention (Router): trace.gates" in repr(trace)


# -- errors: what fails in regard does not break the model


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_a_filter_that_fails(build, path):
    model, x = build(1), words(2, 5, 8)
    expected = model(x)

    def where(site):
        raise ZeroDivisionError("in the filter")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model, where=where, path=path) as trace:
            for _ in range(3):
                assert torch.equal(model(x), expected)
    kinds = [note.kind for note in trace.notes]
    assert kinds == ["error"] and len(caught) == 1 and len(trace) == 0
    assert "layers.0" in str(trace.notes[0]) and "in the filter" in str(trace.notes[0])


class Explodes(regard.Reducer):
    def __init__(self, error):
        self.error = error

    def start(self, matrix):
        raise self.error

    def tile(self, rows, columns, log_weights, weights):
        pass

    def merge(self, other):
        pass

    def result(self):
        pass


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
@pytest.mark.parametrize(
    "error", [ValueError("boom"), RegardError("boom"), AssertionError("boom")], ids=repr
)
def test_a_reducer_that_fails(path, error):
    model, x = fused(2), words(2, 5, 8)
    expected = model(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model, keep=[Explodes(error)], path=path) as trace:
            for _ in range(3):
                assert torch.equal(model(x), expected)
    refused = isinstance(error, RegardError)  # a reducer that cannot answer says so like this
    assert {note.kind for note in trace.notes} == {"dropped" if refused else "error"}
    assert {note.where for note in trace.notes} == {"layers.0", "layers.1"}
    assert all("boom" in note.text for note in trace.notes)
    assert len(caught) == len(trace.notes) == 2


def test_a_reducer_that_cannot_answer_for_one_site():
    """Entropy of signed weights does not exist; the other sites have theirs."""

    class Talking(nn.Module):
        num_heads = 2

        def __init__(self):
            super().__init__()
            self.query, self.mix = nn.Linear(8, 8), nn.Parameter(words(2, 2))

        def forward(self, x):
            query, key = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in (self.query(x), x))
            weights = torch.einsum("bhqk,hg->bgqk", (query @ key.mT).softmax(-1), self.mix)
            return (weights @ key).transpose(1, 2).flatten(2)

    model, x = Stack(Attention(), Talking(), Attention()), words(2, 5, 8)
    expected = model(x)
    with (
        pytest.warns(regard.CaptureWarning, match=r"layers\.1.*no logarithm"),
        regard.capture(model, keep=[regard.Entropy()]) as trace,
    ):
        out = model(x)
    assert torch.equal(out, expected)
    answered = [record.name for record in trace if record.reductions]
    assert answered == ["layers.0", "layers.2"]


def test_a_handler_of_regard_that_fails(monkeypatch):
    """Whatever it is: a note, and the model goes on."""

    def fails(*args, **kwargs):
        raise KeyError("a bug of ours")

    monkeypatch.setattr("regard.tracing.collect.Collector._add", fails)
    model, x = Stack(Attention(), Attention(False)), words(2, 5, 8)
    expected = model(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.capture(model) as trace:
            assert torch.equal(model(x), expected)
    assert "error" in {note.kind for note in trace.notes} and caught
    assert any("a bug of ours" in note.text for note in trace.notes)


def test_keyboard_interrupt_is_not_swallowed():
    model, x = fused(1), words(2, 5, 8)

    def where(site):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), regard.capture(model, where=where):
        model(x)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


# -- warnings


@pytest.mark.parametrize("path", ["auto", "full"])
def test_many_dropped_calls_are_one_warning(path):
    """A long generation drops thousands of records: their site is named once."""
    trace, said = capture(fused(2), words(2, 5, 8), 20, max_bytes=2000, path=path)
    held = [record.held for record in trace]
    assert held.count("dropped") > 30
    assert len(said) == 2 and {note.where.partition("#")[0] for note in trace.notes} == {
        "layers.0",
        "layers.1",
    }


def test_every_capture_warns_anew():
    """Python shows a warning once a line; ours is made for each capture."""
    for _ in range(2):
        with pytest.warns(regard.CaptureWarning):
            regard.trace(nn.Linear(8, 8), words(2, 5, 8))


def test_warnings_as_errors_leave_nothing_behind():
    model, x = nn.Linear(8, 8), words(2, 5, 8)
    with pytest.raises(regard.CaptureWarning), regard.capture(model):
        model(x)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert len(regard.trace(fused(), x)) == 2


def test_a_capture_warning_is_a_user_warning():
    assert issubclass(regard.CaptureWarning, UserWarning)
