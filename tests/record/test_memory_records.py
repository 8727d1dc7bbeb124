"""Records of linear attention and the delta rule: everything a record can do."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from record_examples import record, words
from torch.nn.functional import normalize

import regard
from regard import masks, plots
from regard.errors import MaskError, RegardError, ShapeError, UnavailableError
from regard.recipe import Delta, Linear
from regard.record import Trace
from regard.tracing.registry import checked


def linear(**changes):
    query, key = words(2, 2, 5, 4).exp(), words(2, 2, 5, 4, seed=1).exp()
    recipe = Linear(query, key, words(2, 2, 5, 3, seed=2), mask=masks.causal())
    return replace(recipe, **changes)


def delta(**changes):
    query, key = words(2, 2, 5, 4), normalize(words(2, 2, 5, 4, seed=1), dim=-1)
    recipe = Delta(
        query,
        key,
        words(2, 2, 5, seed=3).sigmoid(),
        words(2, 2, 5, 3, seed=2),
        log_decay=-words(2, 2, 5, seed=4).abs(),
        mask=masks.causal() & masks.padding(torch.ones(2, 5, dtype=torch.bool)),
        memory=words(2, 2, 4, 3, seed=5),
    )
    return replace(recipe, **changes)


def trace_of(*recipes):
    return Trace(
        [record(f"layers.{i}", recipe, attends="self") for i, recipe in enumerate(recipes)]
    )


@pytest.mark.parametrize("recipe", [linear(), delta()], ids=["linear", "delta"])
def test_a_file_holds_the_recipe(recipe, tmp_path):
    trace = trace_of(recipe)
    again = regard.load_trace(trace.save(tmp_path / "trace.safetensors"))
    found = again[0].recipe
    assert type(found) is type(recipe) and again[0].kind == recipe.kind
    assert torch.equal(again[0].weights(), recipe.weights())
    assert torch.equal(found.mixed(), recipe.mixed())
    block = again[0].weights(slice(1, 3), slice(0, 2))
    torch.testing.assert_close(block, recipe.weights()[:, :, 1:3, :2])


@pytest.mark.parametrize("recipe", [linear(), delta()], ids=["linear", "delta"])
def test_a_record_can_do_what_others_can(recipe):
    found = trace_of(recipe)[0]
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found)), found.to("cpu")):
        assert torch.equal(other.weights(), recipe.weights())
    received, mean = found.reduce(regard.ReceivedAttention(), regard.HeadMean())
    torch.testing.assert_close(received, recipe.weights().sum(2))
    torch.testing.assert_close(mean, recipe.weights().mean(1))
    assert type(recipe).__name__ in repr(recipe) and "(2, 2, 5, 4) float32" in repr(recipe)
    assert recipe.nbytes >= 3 * recipe.query.nbytes - 4 * 80


def test_signed_weights_have_no_logarithm():
    with pytest.raises(UnavailableError, match="Entropy: signed weights have no logarithm"):
        trace_of(delta())[0].reduce(regard.Entropy())
    assert trace_of(linear())[0].reduce(regard.Entropy())[0].shape == (2, 2, 5)


def test_the_page_and_the_pictures(tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    trace = trace_of(linear(), delta())
    page = trace.save(tmp_path / "trace.html")
    assert page.stat().st_size > 10_000
    for found in trace:
        drawn = plots.heatmap(found, example=0)
        torch.testing.assert_close(torch.as_tensor(drawn.values), found.weights()[0].mean(0))


def test_a_file_that_was_changed_is_refused(tmp_path, without_shape_checks):
    path = trace_of(delta(strength=words(2, 2, 5, 4))).save(tmp_path / "trace.safetensors")
    with pytest.raises(RegardError, match=r"Delta: strength has 4 axes .2, 2, 5, 4., expected 3"):
        regard.load_trace(path)


@pytest.mark.parametrize(
    ("recipe", "error", "words_"),
    [
        (lambda: linear(key=words(2, 2, 5, 3)), ShapeError, "key: axis width has size 3, expected"),
        (lambda: linear(key=words(1, 2, 5, 4)), ShapeError, "key: axis batch has size 1, expected"),
        (lambda: linear(log_decay=words(2, 2, 4)), ShapeError, "log_decay: axis key has size 4, e"),
        (lambda: delta(strength=words(2, 1, 5)), ShapeError, "strength: axis head has size 1, exp"),
        (lambda: delta(memory=words(2, 2, 3, 3)), ShapeError, "memory: axis width has size 3, ex"),
        (lambda: linear(memory=words(2, 2, 4, 3)), ShapeError, "a memory without its normaliser"),
        (lambda: delta(mask=masks.window(2, 0)), MaskError, "a mask may only name keys"),
    ],
)
def test_what_does_not_fit_is_refused(recipe, error, words_, without_shape_checks):
    with pytest.raises(error, match=words_):
        checked(recipe())


def test_a_reader_may_give_a_boolean_mask(without_shape_checks):
    keep = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    keep[0, ..., 3] = False
    recipe = checked(linear(mask=keep))
    assert not recipe.weights()[0, :, :, 3].any()
