"""Options of a capture: which sites, and what is held of them."""

import inspect
import re

import pytest
import torch
from allocations import peak_bytes
from capture_models import Attention, Stack, fused, handmade, words
from torch import nn

import regard
from regard.errors import RegardError
from regard.record import Site

# -- where


class Model(nn.Module):
    """Names with numbers, of fused and of hand-written attention."""

    def __init__(self):
        super().__init__()
        self.encoder = Stack(Attention(), Attention(False), Attention())
        self.pool = Attention(False)

    def forward(self, x):
        return self.pool(self.encoder(x))


SITES = ["encoder.layers.0", "encoder.layers.1", "encoder.layers.2", "pool"]
WHERE = {
    "everything": (None, SITES),
    "glob": ("encoder.*", SITES[:3]),
    "glob in the middle": ("*.layers.[02]", SITES[:3:2]),
    "the very name": ("pool", SITES[3:]),
    "regex": (re.compile(r"layers\.[12]$"), SITES[1:3]),
    "regex anywhere": (re.compile("oo"), SITES[3:]),
    "layer": (1, SITES[1:2]),
    "first layer": (0, SITES[:1]),
    "range": (range(1, 3), SITES[1:3]),
    "layers": ([0, 2], SITES[:3:2]),
    "of several kinds": ([2, "pool", re.compile(r"\.0$")], [SITES[0], SITES[2], SITES[3]]),
    "nested lists": ([[0], (2,)], SITES[:3:2]),
    "tuple": (("pool", 1), [SITES[1], SITES[3]]),
    "generator": ((n for n in (0, 1)), SITES[:2]),
    "function of the class": (lambda site: site.module_class == "Attention", SITES),
    "function of the path": (lambda site: site.path.endswith("2"), SITES[2:3]),
    "function of the layer": (lambda site: (site.layer or 0) > 0, SITES[1:3]),
}


@pytest.mark.parametrize(("where", "names"), WHERE.values(), ids=WHERE)
def test_where(where, names):
    model, x = Model(), words(2, 5, 8)
    with regard.capture(model) as whole:
        model(x)
    with regard.capture(model, where=where) as trace:
        model(x)
    assert trace.names() == names
    for record in trace:
        torch.testing.assert_close(record.weights(), whole[record.name].weights())
        assert record.attends == whole[record.name].attends


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
def test_where_on_every_path(path):
    model, x = fused(3), words(2, 5, 8)
    with regard.capture(model, where=[0, 2], path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.names() == [f"layers.{n}{call}" for call in ("", "#2", "#3") for n in (0, 2)]


def test_a_predicate_is_given_a_site():
    seen = []
    model = Model()
    with regard.capture(model, where=lambda site: seen.append(site) or True):
        model(words(2, 5, 8))
    assert {site.path for site in seen} == set(SITES)
    assert all(isinstance(site, Site) for site in seen)
    assert {(site.attends, site.call, site.step) for site in seen} == {("unknown", 1, 0)}


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
def test_a_filter_that_matches_nothing_names_the_sites(path):
    model = Stack(Attention(), Attention())
    with (
        pytest.warns(regard.CaptureWarning, match=r"matched none of 2 sites.*layers\.0, layers\.1"),
        regard.capture(model, where="decoder.*", path=path) as trace,
    ):
        model(words(2, 5, 8))
    assert len(trace) == 0 and [note.kind for note in trace.notes] == ["filter"]


def test_a_filter_that_matches_nothing_is_repeated():
    def mine(site):
        return False

    for where, said in (
        ("decoder.*", "'decoder.*'"),
        (re.compile("x$"), r"re.compile('x$')"),
        ([7, "y"], "[7, 'y']"),
        (mine, "the function test_a_filter_that_matches_nothing_is_repeated.<locals>.mine"),
    ):
        model = Model()
        with pytest.warns(regard.CaptureWarning), regard.capture(model, where=where) as trace:
            model(words(2, 5, 8))
        (note,) = trace.notes
        assert note.text.startswith(f"where={said} matched none of 4 sites: ")
        assert note.text.endswith("encoder.layers.2, …")


def test_what_a_filter_left_out_is_not_called_unseen():
    """`attention` by its name, and it ran without a record: because nobody asked."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.self_attn = Attention(), Attention(False)

        def forward(self, x):
            return self.self_attn(self.attention(x))

    model = Named()
    with regard.capture(model, where="attention") as trace:
        model(words(2, 5, 8))
    assert trace.names() == ["attention"] and trace.notes == []


class Counts(regard.Reducer):
    """How many matrices it was shown, over all records."""

    shown = 0

    def start(self, matrix):
        type(self).shown += 1

    def tile(self, rows, columns, log_weights, weights):
        pass

    def merge(self, other):
        pass

    def result(self):
        return torch.zeros(())


@pytest.mark.parametrize("path", ["full", "auto"])
@pytest.mark.parametrize("build", [fused, handmade])
def test_unmatched_sites_cost_nothing(build, path):
    """Nothing is held of them, and no reducer is shown them."""
    model, x = build(4), words(2, 5, 8)
    for keep in ("recipe", "weights"):
        sizes = {}
        for where in (0, None):
            with regard.capture(model, where=where, keep=keep, path=path) as trace:
                model(x)
            sizes[where] = trace.nbytes
        assert sizes[None] == 4 * sizes[0]
    for where, matrices in ((2, 4), (range(4), 16)):
        Counts.shown = 0
        with regard.capture(model, where=where, keep=[Counts()], path=path):
            model(x)
        assert Counts.shown >= matrices and Counts.shown % matrices == 0
        assert where != 2 or Counts.shown < 16


def test_unmatched_sites_take_no_memory_in_passing():
    model, x = fused(4), words(1, 256, 8)

    def run(where):
        with torch.no_grad(), regard.capture(model, where=where, keep="weights"):
            model(x)

    matrix = 4 * 2 * 256 * 256
    one, four = (peak_bytes(lambda where=where: run(where)) for where in (3, range(4)))
    assert four - one > 2.5 * matrix


@pytest.mark.parametrize(
    "where",
    [3.5, True, [], object(), ["a", 2.5], b"encoder"],
    ids=["float", "bool", "empty", "object", "list", "bytes"],
)
def test_where_that_means_nothing(where):
    with pytest.raises(RegardError, match="where="):
        regard.capture(None, where=where)


@pytest.mark.parametrize("where", [Model(), nn.Linear], ids=["module", "class"])
def test_where_is_a_module(where):
    """Of which the repr may have hundreds of lines."""
    with pytest.raises(RegardError, match=r"where= is a (Model|class), expected a pat") as said:
        regard.capture(None, where=where)
    assert len(str(said.value)) < 150


# -- keep


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_keep_weights(build, path):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model, keep="weights", path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.notes == [] and len(trace) == 6
    for record, truth in zip(trace, model.weigh(x) * 3):
        torch.testing.assert_close(record.weights(), truth.detach())
        assert record.held == "weights" and record.nbytes == 4 * 2 * 2 * 5 * 5


def test_kept_weights_are_not_the_models_memory():
    """A model may use its matrix again; what is kept as weights is kept."""

    class Reuses(nn.Module):
        def forward(self, x):
            weights = (x @ x.mT).softmax(-1)
            out = weights @ x
            weights.zero_()
            return out

    model, x = Reuses(), words(2, 5, 8)
    reducers = [regard.FullWeights()]
    for keep in ("weights", reducers):
        with torch.no_grad(), regard.capture(model, keep=keep) as trace:
            model(x)
        found = trace[0].weights() if keep == "weights" else trace[0].reductions[0]
        torch.testing.assert_close(found, (x @ x.mT).softmax(-1)[:, None])


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_keep_reductions(build, path):
    model, x = build(), words(2, 5, 8)
    asked = [regard.Entropy(), regard.HeadMean(), regard.TopK(2)]
    with regard.capture(model, keep=asked, path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.notes == [] and len(trace) == 6
    for record, truth in zip(trace, model.weigh(x) * 3):
        entropy, mean, top = record.reductions
        torch.testing.assert_close(mean, truth.detach().mean(1))
        torch.testing.assert_close(entropy, -(truth * truth.log()).sum(-1).detach())
        torch.testing.assert_close(top.weights, truth.detach().topk(2).values)
        assert record.held == "reductions"
        assert record.nbytes == sum(x.nbytes for x in (entropy, mean, *top))
        assert not any(x.requires_grad for x in (entropy, mean, top.weights))


def test_one_reducer_needs_no_list():
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, keep=regard.Entropy()) as trace:
        model(x)
    assert trace[0].reductions[0].shape == (2, 2, 5)


def test_reductions_hold_nothing_of_the_model():
    """With answers of one number a row, memory does not grow with the keys or the layers."""
    model, x = fused(4), words(1, 256, 8)
    with torch.no_grad(), regard.capture(model, keep=[regard.Entropy()]) as trace:
        model(x)
    storages = {
        r.reductions[0].untyped_storage().data_ptr(): r.reductions[0].untyped_storage()
        for r in trace
    }
    assert sum(storage.nbytes() for storage in storages.values()) <= 4 * 4 * 2 * 256 + 1024
    assert trace.nbytes == 4 * 4 * 2 * 256


def test_keep_on_disk(tmp_path):
    model, x = (
        Stack(
            Attention(), Attention(False), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        ),
        words(2, 5, 8),
    )
    model.eval()
    folder = tmp_path / "new" / "folder"
    with torch.no_grad():
        with regard.capture(model) as plain:
            model(x)
        with regard.capture(model, keep=folder, values=True, tokens=list("abcde")) as trace:
            model(x)
    assert [file.name for file in sorted(folder.glob("*.safetensors"))] == [
        f"{n:06d}.safetensors" for n in (1, 2, 3)
    ]
    loaded = regard.load_trace(folder)
    for one, other, again in zip(plain, trace, loaded, strict=True):
        assert other.held == "disk" and other.nbytes == 0 and other.value_held
        for found in (other, again):
            assert found.site == one.site and found.query_tokens == list("abcde")
            assert torch.equal(found.weights(), one.weights())
            assert found.mixed().shape == (2, 2, 5, 4)
    torch.testing.assert_close(trace.heads(1)[0].weights(), plain[0].weights()[:, 1:])
    mean = trace.reduce(regard.HeadMean())
    torch.testing.assert_close(mean["layers.1"][0], plain[1].weights().mean(1))


def test_disk_keeps_outputs_and_notes(tmp_path):
    model, x = Stack(Attention()), words(2, 5, 8)
    with regard.capture(model, keep=tmp_path, outputs=True) as trace:
        model(x)
    loaded = regard.load_trace(tmp_path)
    torch.testing.assert_close(loaded[0].output, model.layers[0].mixed.detach())
    assert loaded.notes == trace.notes


def test_many_passes_on_disk_come_back_in_order(tmp_path):
    model = fused(1)
    with torch.no_grad(), regard.capture(model, keep=tmp_path) as trace:
        for length in range(1, 13):
            model(words(1, length, 8))
    assert trace.notes == []
    assert [record.shape.keys for record in regard.load_trace(tmp_path)] == list(range(1, 13))
    assert regard.load_trace(tmp_path).names() == trace.names()


def test_a_folder_that_holds_records_is_refused(tmp_path):
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, keep=tmp_path):
        model(x)
    with pytest.raises(RegardError, match="already holds records"):
        regard.capture(model, keep=tmp_path)


def test_a_record_whose_file_went_away(tmp_path):
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, keep=tmp_path) as trace:
        model(x)
    (tmp_path / "000001.safetensors").unlink()
    with pytest.raises(RegardError, match=r"no file .*000001"):
        trace[0].weights()


def test_a_full_disk_does_not_break_the_model(tmp_path, monkeypatch):
    model, x = fused(1), words(2, 5, 8)
    expected = model(x)

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with (
        pytest.warns(regard.CaptureWarning, match=r"layers\.0.*no space left"),
        regard.capture(model, keep=tmp_path) as trace,
    ):
        assert torch.equal(model(x), expected)
    assert [note.kind for note in trace.notes] == ["error"]


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("matrix", r"keep='matrix', expected 'recipe', 'weights'"),
        ([], r"keep=\[\], expected a list of reducers"),
        ([3], "keep has 3, which is not a Reducer"),
        ([regard.Entropy], r"which is not a Reducer; pass an instance, as Entropy\(\)"),
        (regard.Entropy, r"which is not a Reducer; pass an instance, as Entropy\(\)"),
        (None, "keep=None"),
        ("some/folder", r"a folder as pathlib\.Path"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_keep_that_means_nothing(keep, said):
    with pytest.raises(RegardError, match=said):
        regard.capture(None, keep=keep)


# -- mistakes people make


@pytest.mark.usefixtures("without_shape_checks")
def test_a_list_of_reducers_where_they_are_asked_one_by_one():
    trace = regard.trace(fused(1), words(2, 5, 8))
    for asked in (trace, trace[0]):
        with pytest.raises(
            RegardError, match=r"one by one, as reduce\(Entropy\(\), HeadMean\(\)\)"
        ):
            asked.reduce([regard.Entropy()])


def test_a_class_is_refused():
    with pytest.raises(regard.RegardError, match=r"the class Linear, expected an object of it"):
        regard.capture(nn.Linear)


@pytest.mark.parametrize(
    "ask",
    [
        lambda trace: trace[0],
        lambda trace: trace["layers.0"],
        lambda trace: len(trace),
        lambda trace: list(trace),
        lambda trace: trace.names(),
        lambda trace: trace.attentions,
        lambda trace: trace.notes,
        lambda trace: trace.output,
        lambda trace: trace.weights(),
        lambda trace: trace.edges,
        lambda trace: trace.shape,
        lambda trace: trace.query_tokens,
    ],
)
def test_a_forgotten_with_says_so(ask):
    """The capture itself is taken for a trace."""
    trace = regard.capture(fused())
    with pytest.raises(regard.RegardError, match=r"write `with regard.capture\(model\) as trace:`"):
        ask(trace)
    assert trace and not hasattr(trace, "no_such_thing") and not hasattr(trace, "names")


def test_every_public_name_of_a_trace_and_a_record_is_explained():
    trace = regard.trace(fused(), words(2, 5, 8))
    names = {name for thing in (trace, trace[0]) for name in dir(thing)} - set(
        vars(capture := regard.capture(fused()))
    )
    for name in names:
        if not name.startswith("_"):
            with pytest.raises(
                RegardError, match=rf"capture\.{name}: this is a capture that was not"
            ):
                getattr(capture, name)


def test_a_capture_shows_what_it_is():
    model = fused()
    watching = regard.capture(model)
    assert repr(watching) == "capture(Stack), not entered: `with … as trace:` gives its trace"
    with watching:
        model(words(2, 5, 8))
    assert repr(watching) == "capture(Stack), capture.trace has 2 attentions"
    assert repr(regard.capture()).startswith("capture(), not entered")
    assert repr(regard.capture(lambda x: x)).startswith("capture(")


def test_inputs_are_not_for_a_capture():
    said = (
        r"capture: 2 arguments by place, expected the model; regard\.trace\(model, inputs\) runs it"
    )
    with pytest.raises(RegardError, match=said):
        regard.capture(fused(), words(2, 5, 8))


def test_an_option_that_there_is_not():
    with pytest.raises(RegardError, match=r"capture: there is no option 'tokns'; near: tokens$"):
        regard.capture(fused(), tokns=["a"])
    with pytest.raises(
        RegardError, match=r"no option 'zzz'; expected where, keep, max_bytes, .*rules, gates$"
    ):
        regard.capture(fused(), zzz=1)
    assert list(inspect.signature(regard.capture).parameters)[:3] == ["model", "where", "keep"]


def test_a_forgotten_as_says_so():
    model, x = fused(), words(2, 5, 8)
    watching = regard.capture(model)
    with watching as trace:
        model(x)
    for ask in (lambda: watching[0], lambda: watching.names(), lambda: len(watching)):
        with pytest.raises(RegardError, match="what `with capture as trace:` gives") as caught:
            ask()
        assert not type(caught.value).__name__.startswith("_")
    assert watching.trace is trace and not hasattr(watching, "names")


@pytest.mark.parametrize("option", ["rules", "tokens", "keep"])
def test_an_option_of_capture_given_to_trace(option):
    model, x = fused(), words(2, 5, 8)
    said = rf"{option}= goes to the model.*with regard\.capture\(model, {option}=\.\.\.\) as trace"
    for run in (model, lambda x: model(x)):
        with pytest.raises(RegardError, match=said):
            regard.trace(run, x, **{option: "any"})


def test_a_model_that_takes_what_is_called_like_an_option():
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x, keep):
            return self.attention(x) * keep

    model, x = Padded(), words(2, 5, 8)
    for run in (model, lambda *inputs, **named: model(*inputs, **named)):
        trace = regard.trace(run, x, keep=0.0)
        assert trace.names() == ["attention"] and not trace.output.any()
