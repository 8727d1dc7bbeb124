"""Traces on disk and in pickles: everything comes back."""

import json
import os
import pickle

import pytest
import torch
from record_examples import Stack, dot, record, three_layers_twice, words
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import regard
from regard import masks
from regard.errors import RegardError
from regard.kernel.position_encodings import AlibiBias
from regard.mechanisms import Coverage, Monotonic, Pointer
from regard.recipe import (
    Additive,
    Dot,
    Edges,
    Entmax,
    Flex,
    Given,
    Identity,
    Mixture,
    Pointing,
    Projected,
    Sigmoid,
    Sparsemax,
    Uniform,
    Unrolled,
)
from regard.record import Note, OtherSoftmax, Record, Trace

HALF = torch.tensor([4, 2])


def pairs():
    allowed = words(2, 2, 3, 5) > 0
    allowed[..., 0] = True
    return masks.pairs(allowed)


MASKS = {
    "none": None,
    "causal": masks.causal(),
    "window": masks.window(left=2, right=0),
    "one-sided window": masks.window(left=None, right=1),
    "padding": masks.lengths(HALF, 5),
    "pairs": pairs(),
    "segments": masks.segments(
        torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.arange(5).expand(2, 5) // 3
    ),
    "both": masks.causal() & masks.lengths(HALF, 5),
    "either": masks.window(left=0, right=0) | pairs(),
    "opposite": ~masks.window(left=0, right=0),
    "nested": ~(masks.causal() & ~masks.lengths(HALF, 5)) | masks.window(left=1, right=1),
}
RECIPES = {
    "dot": dot(),
    "dot, all its fields": Dot(
        words(2, 4, 3, 4).double(),
        words(2, 2, 5, 4).double(),
        words(2, 2, 5, 6).double(),
        mask=masks.causal(),
        bias=words(1, 4, 1, 5).double(),
        scale=1 / 3,
        softcap=2.5,
        sink=words(4).double(),
    ).with_lse(),
    "dot, half precision": dot().map(lambda x: x.bfloat16()),
    "dot, without values": Dot(words(1, 1, 2, 4), words(1, 1, 3, 4)),
    "dot, no keys": Dot(words(1, 1, 2, 4), words(1, 1, 0, 4)),
    "dot, structured bias": Dot(words(2, 2, 3, 4), words(2, 2, 5, 4), bias=AlibiBias(words(2))),
    "additive": Additive(
        words(2, 1, 3, 4), words(2, 1, 5, 4), words(4), mask=masks.lengths(HALF, 5)
    ),
    "dot, sparsemax": Dot(words(2, 2, 3, 4), words(2, 2, 5, 4), normaliser=Sparsemax()),
    "dot, entmax": Dot(words(2, 2, 3, 4), words(2, 2, 5, 4), normaliser=Entmax(1.3)),
    "additive, sigmoid": Additive(
        words(2, 1, 3, 4), words(2, 1, 5, 4), words(4), normaliser=Sigmoid(-1.0)
    ),
    "pointing": Pointing(words(2, 1, 3, 4), words(2, 1, 5, 4), words(4), mask=masks.causal()),
    "unrolled": Unrolled(words(2, 1, 3, 5).softmax(-1), words(2, 1, 5, 6), memory=words(2, 5)),
    "given": Given(words(2, 2, 3, 5).softmax(-1), words(2, 2, 5, 6)),
    "given, signed": Given(words(2, 2, 3, 5), None, "signed"),
    "given, transposed": Given(words(2, 3, 2, 5).softmax(-1).transpose(1, 2)),
    "given, expanded": Given(words(1, 1, 3, 5).softmax(-1).expand(2, 4, -1, -1)),
    "edges": Edges(
        torch.tensor([[[0, 0, 2, 1]]]),
        torch.tensor([[[4, 1, 0, 0]]]),
        words(2, 2, 4).softmax(-1),
        3,
        5,
        words(2, 2, 5, 6),
    ),
    "mixture": Mixture.of(
        [
            Dot(words(2, 2, 3, 4), words(2, 2, 5, 4)),
            Uniform(words(2, 2, 3, 4), words(2, 2, 5, 4)),
            Identity(words(2, 2, 3, 4), words(2, 2, 5, 4)),
        ],
        [words(2), words(2, 2), words(2)],
        value=words(2, 2, 5, 6),
        mask=masks.lengths(HALF, 5),
    ),
    "projected": Projected(words(2, 3, 8), words(24, 8), words(24), 2).with_value(),
    "projected, norm first": Projected(
        words(2, 3, 8), words(24, 8), None, 2, norm_weight=words(8), norm_bias=words(8), epsilon=0.1
    ),
    "flex": Flex(
        words(2, 2, 3, 4),
        words(2, 2, 5, 4),
        torch.arange(2),
        torch.arange(2),
        words(2, 2, 5, 6),
        score_mod=lambda score, batch, head, query, key: score + head * (query - key),
        mask_mod=lambda batch, head, query, key: key <= query + batch,
    ),
    **{
        f"mask: {name}": Dot(words(2, 2, 3, 4), words(2, 2, 5, 4), mask=m)
        for name, m in MASKS.items()
    },
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def to_file(trace, folder):
    return regard.load_trace(trace.save(folder / "trace.safetensors"))


def to_pickle(trace, folder):
    return pickle.loads(pickle.dumps(trace))


ways = pytest.mark.parametrize("way", [to_file, to_pickle], ids=["file", "pickle"])

# -- everything comes back


@ways
@every_recipe
def test_every_recipe(recipe, way, tmp_path):
    again = way(Trace([record("a.1", recipe)]), tmp_path)[0]
    assert torch.equal(again.weights(), recipe.weights())
    assert again.recipe.dtype == recipe.dtype and again.kind == recipe.kind
    assert again.shape == again.recipe.shape == recipe.shape
    if recipe.value is not None:
        assert torch.equal(again.mixed(), recipe.mixed())
    kept = isinstance(recipe, Flex) or isinstance(getattr(recipe, "bias", None), AlibiBias)
    assert type(again.recipe) is (Given if kept else type(recipe))


@pytest.mark.parametrize("mechanism", [Pointer, Coverage, Monotonic])
def test_recipes_of_mechanisms_that_make_their_own(mechanism, tmp_path):
    attended = mechanism(4, 3, width=5)(words(2, 3, 4), words(2, 6, 3), weights=True)
    again = to_file(Trace([record("a", attended.recipe)]), tmp_path)[0]
    assert torch.equal(again.weights(), attended.weights)
    assert torch.equal(again.recipe.mixed(), attended.recipe.mixed())


@every_recipe
def test_the_check_can_fail(recipe):
    """Other weights are not equal: the comparison above is not one of empty or constant things."""
    if 0 not in recipe.shape:
        assert not torch.equal(recipe.weights(), recipe.weights().flip(-1))


@ways
def test_everything_a_record_knows(way, tmp_path):
    first = Record(
        record("a.1", call=3, step=2, attends="cross").site,
        record("a")._held,
        shape=dot().shape,
        kind="distribution",
        dtype=torch.float32,
        output=words(2, 2, 3, 6, seed=5),
        query_tokens=["<s>", "naïve", "日本"],
        key_tokens=["a", "b", '"', "\\", "\n"],
    )
    note = Note("unread", "a.2", "tëxt")
    other = OtherSoftmax("router", "Router", "x.py:1", (2, 3), "why")
    trace = way(Trace([first], notes=[note], other_softmaxes=[other]), tmp_path)
    (again,) = trace
    assert again.site == first.site and again.name == "a.1#3" and again.attends == "cross"
    assert again.query_tokens == first.query_tokens and again.key_tokens == first.key_tokens
    assert torch.equal(again.output, first.output) and again.dtype == torch.float32
    assert trace.notes == [note] and trace.other_softmaxes == [other]


@ways
@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_reductions(way, tmp_path):
    model = Stack(True, False)
    asked = [
        regard.Entropy(),
        regard.TopK(2),
        regard.EffectiveKeys(),
        regard.HeadMean(),
        regard.FullWeights(),
        regard.Histogram(),
    ]
    with regard.capture(model, keep=asked) as trace:
        model(words(2, 5, 8))
    for first, again in zip(trace, way(trace, tmp_path)):
        assert again.held == "reductions" and len(again.reductions) == len(asked)
        for one, other in zip(first.reductions, again.reductions):
            assert type(one) is type(other)
            torch.testing.assert_close(one, other)
        assert torch.equal(again.reductions[1].keys, first.reductions[1].keys)
        with pytest.raises(RegardError, match="only reductions were kept"):
            again.weights()


@ways
@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_dropped_records(way, tmp_path):
    model = Stack(True)
    with regard.capture(model, max_bytes=0) as trace:
        model(words(2, 5, 8))
    again = way(trace, tmp_path)
    assert again[0].held == "dropped" and again.notes == trace.notes
    with pytest.raises(RegardError, match="max_bytes"):
        again[0].weights()


class Several(nn.Module):
    """Fused, hand-written, native and flex attention behind each other."""

    def __init__(self):
        super().__init__()
        self.stack = Stack(True, False)
        self.native = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        x = self.native(self.stack(x))
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return flex_attention(heads, heads, heads, score_mod=lambda s, b, h, q, k: s + h * (q - k))


@ways
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("keep", ["recipe", "weights"])
def test_of_a_model(way, keep, context, tmp_path):
    model = Several().eval()
    with context(), regard.capture(model, values=keep == "recipe", keep=keep) as trace:
        model(words(2, 5, 8))
    again = way(trace, tmp_path)
    assert len(trace) == 4 and again.names() == trace.names()
    for one, other in zip(trace, again):
        assert torch.equal(other.weights(), one.weights()) and other.held == one.held == keep
        assert other.site == one.site and other.value_held == one.value_held
        if keep == "recipe":
            torch.testing.assert_close(other.mixed(), one.mixed())


@ways
def test_tensors_that_had_been_changed_in_place(way, tmp_path):
    """Before they were recorded: that is how the model made them, and nothing is wrong."""

    class Rotates(nn.Module):
        def forward(self, x):
            x = x.clone()
            x.mul_(2).add_(1)
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model = Rotates()
    with regard.capture(model) as trace:
        model(words(2, 2, 5, 4))
    assert torch.equal(way(trace, tmp_path)[0].weights(), trace[0].weights())


@ways
def test_what_was_in_the_graph_comes_back_outside_it(way, tmp_path):
    model = Stack(True, False)
    with regard.capture(model, attached=True, outputs=True) as trace:
        model(words(2, 5, 8))
    for one, other in zip(trace, way(trace, tmp_path)):
        assert one.weights().requires_grad and not other.weights().requires_grad
        assert not other.output.requires_grad
        torch.testing.assert_close(other.weights(), one.weights().detach())


def test_pickle_goes_without_the_output_and_the_gradient():
    """What the model returned may be anything; hooks on a graph stay with the process."""
    model = Stack(True)
    with regard.capture(model, grad=True) as trace:
        model(words(2, 5, 8)).sum().backward()
    trace.output = lambda: None
    again = pickle.loads(pickle.dumps(trace))
    assert again.output is None and trace.output is not None
    with pytest.raises(RegardError):
        again[0].gradient()
    trace[0].gradient()


@ways
def test_twice_is_once(way, tmp_path):
    once = way(three_layers_twice(), tmp_path)
    twice = way(once, tmp_path)
    assert repr(twice) == repr(once) and twice.names() == three_layers_twice().names()
    for one, other in zip(three_layers_twice(), twice):
        assert torch.equal(one.weights(), other.weights())


def test_an_empty_trace(tmp_path):
    again = to_file(Trace(notes=[Note("empty", "", "nothing")]), tmp_path)
    assert len(again) == 0 and again.notes[0].text == "nothing"


# -- the file


def test_shared_tensors_are_written_once(tmp_path):
    keys = words(2, 2, 50, 4)
    mask = masks.pairs(torch.ones(1, 1, 50, 50, dtype=torch.bool))
    every = [
        record(f"a.{n}", Dot(words(2, 2, 50, 4, seed=n), keys, keys, mask=mask)) for n in range(4)
    ]
    file = Trace(every).save(tmp_path / "a.safetensors")
    tensors = load_file(file)
    assert len(tensors) == 4 + 1 + 1
    assert file.stat().st_size < 4 * keys.nbytes + keys.nbytes + 2500 + 12000
    again = regard.load_trace(file)
    assert again[0].recipe.key.data_ptr() == again[3].recipe.value.data_ptr()
    assert again.nbytes == Trace(every).nbytes
    for one, other in zip(every, again):
        assert torch.equal(one.weights(), other.weights())


def test_views_of_one_tensor_that_differ_are_told_apart(tmp_path):
    both = words(2, 2, 5, 8)
    square = words(1, 1, 4, 4)
    trace = Trace(
        [record("a", Dot(both[..., :4], both[..., 4:])), record("b", Dot(square, square.mT))]
    )
    for one, other in zip(trace, to_file(trace, tmp_path)):
        assert torch.equal(one.weights(), other.weights())


def test_the_header_is_plain_json(tmp_path):
    file = three_layers_twice().save(tmp_path / "a.safetensors")
    with safe_open(str(file), framework="pt") as opened:
        metadata = opened.metadata()
    header = json.loads(metadata["trace"])
    assert metadata["format"] == "regard-trace-1"
    assert header["records"][4]["site"]["path"] == "encoder.layer.1"
    assert header["records"][4]["recipe"]["class"] == "Dot"


def test_save_gives_the_path_and_takes_a_string(tmp_path):
    file = three_layers_twice().save(str(tmp_path / "a.safetensors"))
    assert file == tmp_path / "a.safetensors" and len(regard.load_trace(str(file))) == 6


def test_saving_over_a_file_replaces_it(tmp_path):
    file = tmp_path / "a.safetensors"
    three_layers_twice().save(file)
    Trace([record("b")]).save(file)
    assert regard.load_trace(file).names() == ["b"]
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_loaded_trace_can_replace_its_own_file(tmp_path):
    """Its tensors must not be the file's own memory when the file goes."""
    file = three_layers_twice().save(tmp_path / "a.safetensors")
    loaded = regard.load_trace(file)
    loaded.save(file)
    assert torch.equal(loaded[3].weights(), regard.load_trace(file)[3].weights())


@pytest.mark.parametrize("form", [to_file, to_pickle])
def test_tokens_of_each_example(form, tmp_path):
    texts = [["naïve", "[PAD]"], ["日本", "語"]]
    trace = Trace([record("a", dot(queries=2, keys=2))]).with_tokens(texts)
    again = form(trace, tmp_path)[0]
    assert again.query_tokens == again.key_tokens == texts


def test_folders_on_the_way_are_made(tmp_path):
    path = tmp_path / "some" / "where" / "trace.safetensors"
    assert regard.load_trace(Trace([record("a")]).save(path)).names() == ["a"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(RegardError, match="file cannot be made a folder"):
        Trace([record("a")]).save(tmp_path / "file" / "trace.safetensors")
    with pytest.raises(RegardError, match=r"folder\.safetensors is a folder"):
        Trace([record("a")]).save(tmp_path / "folder.safetensors")


# -- a folder


def test_a_folder_of_files_is_one_trace(tmp_path):
    for n in (2, 0, 1):
        Trace([record(f"layer.{n}")]).save(tmp_path / f"{n:06d}.safetensors")
    (tmp_path / "readme.txt").write_text("not a trace")
    assert regard.load_trace(tmp_path).names() == ["layer.0", "layer.1", "layer.2"]


def test_an_empty_folder_is_said(tmp_path):
    with pytest.raises(RegardError, match="holds no"):
        regard.load_trace(tmp_path)
