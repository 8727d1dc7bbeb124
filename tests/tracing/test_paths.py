"""The full path and the cheaper one: the same records, and nothing lost between them."""

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from torch import nn
from torch.nn import functional as F

import regard


def records(model, x, path, passes=3, **options):
    with torch.no_grad(), regard.capture(model, path=path, **options) as trace:
        for _ in range(passes):
            model(x)
    return trace


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"causal": True}], ids=str)
def test_every_path_gives_the_same_records(options):
    model, x = fused(2, **options), words(2, 5, 8)
    full, auto, cheap = (records(model, x, path) for path in ("full", "auto", "fused"))
    for one, two, three in zip(full, auto, cheap, strict=True):
        assert one.name == two.name == three.name and one.step == two.step == three.step
        assert one.operator == two.operator == three.operator
        assert one.source == two.source == three.source and one.attends == two.attends == "self"
        assert torch.equal(one.weights(), two.weights())
        assert torch.equal(one.weights(), three.weights())
        assert repr(one.recipe) == repr(two.recipe) == repr(three.recipe)
        assert one.nbytes == two.nbytes == three.nbytes


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_every_path_reads_masks(context, masked):
    class Masked(nn.Module):
        def forward(self, x, mask):
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    model, x = Masked(), words(2, 2, 5, 4)
    allowed = torch.ones(5, 5).tril().bool()
    added = torch.zeros(5, 5).masked_fill(~allowed, -torch.inf)
    mask = {None: None, "bool": allowed, "float": added + 0.5 * allowed}[masked]
    scores = x @ x.mT / 2
    truth = (scores if mask is None else scores + added).softmax(-1)
    for path in ("auto", "full", "fused"):
        with context(), regard.capture(model, path=path) as trace:
            for _ in range(3):
                model(x, mask)
        assert len(trace) == 3
        for record in trace:
            torch.testing.assert_close(record.weights(), truth)


def test_the_cheap_path_is_taken():
    """After one full pass no dispatch mode is on any more: that is what makes it cheap."""
    seen = []

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fused(1)

        def forward(self, x):
            seen.append(torch.utils._python_dispatch._get_current_dispatch_mode() is not None)
            return self.inner(x)

    model, x = Looks(), words(2, 5, 8)
    for path, modes in (
        ("auto", [True, False, False]),
        ("full", [True] * 3),
        ("fused", [False] * 3),
    ):
        seen.clear()
        trace = records(model, x, path)
        assert seen == modes and len(trace) == 3 and trace.notes == []


@pytest.mark.parametrize("keep", ["recipe", "weights", [regard.Entropy()]], ids=str)
def test_the_cheap_path_is_taken_whatever_is_kept(keep):
    """Making weights is regard's own softmax, not the model's."""
    model, x = fused(), words(2, 5, 8)
    trace = records(model, x, "auto", 5, keep=keep)
    assert trace.notes == [] and len(trace) == 10


@pytest.mark.parametrize("build", [handmade, lambda: Stack(Attention(), Attention(False))])
def test_models_with_a_softmax_stay_on_the_full_path(build):
    model, x = build(), words(2, 5, 8)
    trace = records(model, x, "auto", 4)
    assert trace.notes == [] and len(trace) == 8
    for record, truth in zip(trace, model.weigh(x) * 4):
        torch.testing.assert_close(record.weights(), truth.detach())


class Changes(nn.Module):
    """Fused attention, and from some pass on a softmax of its own."""

    def __init__(self, when):
        super().__init__()
        self.fused, self.made, self.when, self.passes = Attention(), Attention(False), when, 0

    def forward(self, x):
        self.passes += 1
        return self.made(x) if self.passes >= self.when else self.fused(x)


def run_with_warning(model, x, passes, said, **options):
    with (
        pytest.warns(regard.CaptureWarning, match=said),
        torch.no_grad(),
        regard.capture(model, **options) as trace,
    ):
        [model(x) for _ in range(passes)]
    return trace


@pytest.mark.parametrize("when", [2, 3])
def test_a_softmax_that_comes_up_later(when):
    """It is noticed; the passes after it are read fully, and the note says what was missed."""
    model, x = Changes(when), words(2, 5, 8)
    said = "made: _softmax ran, unlike in the pass .* weights are missing; later passes are read"
    trace = run_with_warning(model, x, 6, said)
    assert [note.kind for note in trace.notes] == ["changed"]
    assert [record.step for record in trace if record.path == "made"] == list(range(when, 6))
    assert [record.step for record in trace if record.path == "fused"] == list(range(when - 1))
    for record in trace:
        truth = (model.made if record.path == "made" else model.fused).weigh(x)
        torch.testing.assert_close(record.weights(), truth.detach())


def test_the_fused_path_stays_as_asked():
    model, x = Changes(3), words(2, 5, 8)
    trace = run_with_warning(
        model, x, 6, r"made: _softmax ran.*cannot read.*weights are missing.*'full'", path="fused"
    )
    assert [note.kind for note in trace.notes] == ["changed"]
    assert {record.path for record in trace} == {"fused"} and len(trace) == 2


@pytest.mark.parametrize("path", ["auto", "fused"])
def test_a_softmax_in_the_last_pass_is_said_too(path):
    """No later pass is there to change on, and still it must not be silent."""
    model, x = Changes(3), words(2, 5, 8)
    trace = run_with_warning(model, x, 3, "softmax", path=path)
    assert [note.kind for note in trace.notes] == ["changed"]
    assert [record.path for record in trace] == ["fused", "fused"]


def test_the_fused_path_on_a_handmade_model_is_not_silent():
    model, x = handmade(1), words(2, 5, 8)
    with pytest.warns(regard.CaptureWarning), regard.capture(model, path="fused") as trace:
        model(x)
    assert len(trace) == 0 and trace.notes


def test_softmax_outside_the_model_does_not_matter():
    model, x = fused(1), words(2, 5, 8)
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(4):
            model(x).softmax(-1)
    assert trace.notes == [] and len(trace) == 4
