"""Never silent: what was not seen, not read or left out is said by its module path."""

import warnings

import pytest
import torch
from capture_models import Attention, Custom, NumpyAttention, Stack, fused, handmade, words
from torch import nn

import regard


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
        pytest.warns(regard.CaptureWarning, match=r"the model, Stack, did not run; Linear did"),
        regard.capture(fused()) as trace,
    ):
        nn.Linear(8, 2)(words(2, 5, 8))
    assert len(trace) == 0


def test_a_part_of_the_model_ran():
    """It is the model that ran, as far as it did."""
    model = Stack(nn.Linear(8, 8))
    with (
        pytest.warns(regard.CaptureWarning, match="in the model, which ran"),
        regard.capture(model),
    ):
        nn.Linear(8, 8)(model.layers[0](words(2, 5, 8)))


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


# -- unread: attention that is no softmax, or never divided, beside attention that was read


class Beside(nn.Module):
    """Attention, and on the next line what cannot be read."""

    def __init__(self, unread, attention):
        super().__init__()
        self.unread, self.attention = unread, attention
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        if self.attention == "fused":
            x = nn.functional.scaled_dot_product_attention(x, x, x)
        elif self.attention == "softmax":
            x = (self.query(x) @ self.key(x).mT).softmax(-1) @ x
        elif self.attention == "late":
            powers = (self.query(x) @ self.key(x).mT).exp()
            x = powers @ x / powers.sum(-1, keepdim=True)
        return self.unread(self.query(x) @ self.key(x).mT) @ x


@pytest.mark.compiled  # run-time checks stand between the model's line and us in the stack
@pytest.mark.parametrize("attention", [None, "fused", "softmax", "late"])
@pytest.mark.parametrize(
    ("unread", "text"),
    [(torch.sigmoid, "rules='sigmoid'"), (torch.exp, "not divided by their sum")],
)
def test_unread_beside_attention(unread, text, attention):
    """What was read of a module does not hide what was not; the line is named."""
    model = Beside(unread, attention)
    trace, said = capture(model, words(2, 5, 8), 2)
    assert len(trace) == (0 if attention is None else 2)
    line = Beside.forward.__code__.co_firstlineno + 8
    said_once(trace, said, "unread", "Beside", text, f"test_notes.py:{line}")


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


# -- softmaxes that are not attention


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
    assert len(trace.other_softmaxes) == 1 and "parameter" in trace.other_softmaxes[0].reason
    assert trace.other_softmaxes[0].module_class == "Router" and trace.other_softmaxes[0].shape == (
        2,
        5,
        3,
    )
    assert "1 softmax not taken for attention (Router): trace.other_softmaxes" in repr(trace)
    model = Router()
    model.attn = nn.Identity()
    _, said = capture(model, words(2, 5, 8))
    assert (
        "no attention was seen; 1 softmax was taken for something else: trace.other_softmaxes"
        in said[0]
    )


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


class SparseBeside(nn.Module):
    """A sparse softmax behind attention that is read."""

    def __init__(self):
        super().__init__()
        self.first = fused()

    def forward(self, x):
        x = self.first(x)[0]
        scores = (x @ x.mT).to_sparse()
        return torch.sparse.mm(torch.sparse.softmax(scores, 1), x)


def test_a_sparse_softmax_beside_other_attention():
    trace, said = capture(SparseBeside().eval(), words(1, 5, 8))
    assert len(trace) > 0
    said_once(trace, said, "unread", "SparseBeside", "sparse tensor is not followed")
