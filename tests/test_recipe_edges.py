"""Attention over a list of pairs: the matrix it stands for, and what it refuses."""

import copy
import pickle

import pytest
import torch

from regard.errors import DtypeError, ShapeError
from regard.recipe import Edges, Given
from regard.types import NEVER, whole


def edges(batch=2, heads=3, n_edges=40, queries=9, keys=7, shared=(1, 1), seed=0, **changes):
    """Random pairs, many of them more than once."""
    generator = torch.Generator().manual_seed(seed)
    parts = {
        "query_index": torch.randint(queries, (*shared, n_edges), generator=generator),
        "key_index": torch.randint(keys, (*shared, n_edges), generator=generator),
        "edge_weights": torch.rand(batch, heads, n_edges, generator=generator).double(),
        "queries": queries,
        "keys": keys,
        "value": torch.randn(batch, heads, keys, 4, generator=generator).double(),
    }
    return Edges(**(parts | changes))


def matrix(recipe):
    """The dense weights, edge by edge."""
    weights = torch.zeros(recipe.shape, dtype=recipe.dtype)
    batch, heads, n_edges = recipe.edge_weights.shape
    query, key = (
        index.expand(batch, heads, -1) for index in (recipe.query_index, recipe.key_index)
    )
    for b in range(batch):
        for h in range(heads):
            for e in range(n_edges):
                weights[b, h, query[b, h, e], key[b, h, e]] += recipe.edge_weights[b, h, e]
    return weights


every_sharing = pytest.mark.parametrize("shared", [(1, 1), (2, 1), (1, 3), (2, 3)], ids=str)


@every_sharing
def test_the_matrix_is_the_sum_of_the_edges(shared):
    recipe = edges(shared=shared)
    truth = matrix(recipe)
    for same in (recipe, recipe.plain()):
        torch.testing.assert_close(same.weights(), truth)
        for rows in (slice(0, 1), slice(2, 6), slice(8, 9), slice(4, 4), slice(-3, None)):
            for columns in (slice(1, 3), slice(0, 0), slice(-2, None)):
                block = same.weights(rows, columns)
                torch.testing.assert_close(block, truth[:, :, rows, columns])
        torch.testing.assert_close(same.mixed(), truth @ recipe.value)
        torch.testing.assert_close(same.of_heads([2, 0]).weights(), truth[:, [2, 0]])
        torch.testing.assert_close(same.at(1, 2).weights(), truth[1:, 2:])
        torch.testing.assert_close(same.at(1, 2).mixed(), (truth @ recipe.value)[1:, 2:])


def test_indices_may_share_different_axes():
    query_index, key_index = edges(shared=(2, 1)).query_index, edges(shared=(1, 3)).key_index
    recipe = edges(query_index=query_index, key_index=key_index)
    torch.testing.assert_close(recipe.plain().weights(), matrix(recipe))
    torch.testing.assert_close(recipe.mixed(), matrix(recipe) @ recipe.value)


def test_sorting_happens_once():
    recipe = edges().plain()
    assert (recipe.query_index.diff() >= 0).all() and recipe.plain() is recipe


def test_a_query_without_an_edge_and_an_absent_edge_have_weight_zero():
    recipe = Edges.between(
        torch.tensor([0, 0, 2]),
        torch.tensor([1, 0, 0]),
        torch.tensor([1.0, 0.0, 1.0]),
        queries=3,
        keys=2,
    )
    assert recipe.weights()[0, 0].tolist() == [[0, 1], [0, 0], [1, 0]]
    assert recipe.log_weights(whole(3, 2))[0, 0].tolist() == [
        [pytest.approx(NEVER), 0],
        [pytest.approx(NEVER), pytest.approx(NEVER)],
        [0, pytest.approx(NEVER)],
    ]


def test_no_edges_at_all_are_a_matrix_of_zeros():
    recipe = edges(n_edges=0)
    for same in (recipe, recipe.plain()):
        assert same.shape == (2, 3, 9, 7)
        assert not same.weights().any() and not same.mixed().any()
        assert same.weights(slice(2, 4)).shape == (2, 3, 2, 7)


def test_weights_may_lie_anyhow():
    by_edge = torch.rand(40, 3).double()  # (edge, head), as graph libraries have them
    recipe = edges(batch=1, edge_weights=by_edge.T[None], value=None)
    assert recipe.nbytes == by_edge.nbytes + 2 * 40 * 8
    torch.testing.assert_close(recipe.weights(), matrix(recipe))


@pytest.mark.parametrize("step", [1, 1 << 22])
def test_gradients_are_those_of_the_matrix(monkeypatch, step):
    monkeypatch.setattr("regard.recipe.edges._GATHERED", step)
    recipe = edges()
    value = recipe.value.clone().requires_grad_()
    attached = edges(edge_weights=recipe.edge_weights.requires_grad_(), value=value)
    weights = attached.weights()
    leaf = weights.detach().requires_grad_()
    expected = torch.autograd.grad((leaf @ value).square().sum(), (leaf, value))
    by_edge = torch.autograd.grad(weights, recipe.edge_weights, expected[0])
    got = torch.autograd.grad(attached.mixed().square().sum(), (recipe.edge_weights, value))
    torch.testing.assert_close(got, (*by_edge, expected[1]))
    assert not attached.detach().weights().requires_grad


def test_mixed_never_makes_the_matrix():
    n = 60_000  # the matrix would have 14 GB
    index = torch.arange(n)
    recipe = Edges.between(
        index, index.flip(0), torch.ones(n), queries=n, keys=n, value=torch.randn(1, 1, n, 8)
    )
    assert torch.equal(recipe.mixed(), recipe.value.flip(2))


def test_a_copy_is_the_same():
    recipe = edges(of="partial")
    for again in (pickle.loads(pickle.dumps(recipe)), copy.deepcopy(recipe)):
        assert torch.equal(again.weights(), recipe.weights()) and again.kind == "partial"
    assert "40 edges" in repr(recipe)


def test_half_precision_comes_in_float32():
    recipe = edges(edge_weights=torch.rand(2, 3, 40, dtype=torch.float16), value=None)
    assert recipe.weights().dtype == recipe.plain().weights().dtype == torch.float32
    torch.testing.assert_close(recipe.weights(), Given(matrix(recipe)).weights())


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"query_index": torch.tensor([0, 3])}, ShapeError, "query_index holds 3, expected 0 to 2"),
        ({"key_index": torch.tensor([-1, 0])}, ShapeError, "key_index holds -1, expected 0 to 1"),
        ({"key_index": torch.tensor([0])}, ShapeError, r"key_index is \(1, 1, 1\) and weights"),
        ({"query_index": torch.zeros(2)}, DtypeError, "query_index is torch.float32, expected"),
        ({"weights": torch.tensor([1, 1])}, DtypeError, "weights are torch.int64, expected floats"),
        ({"weights": torch.ones(1, 1, 1, 2)}, ShapeError, r"weights has 4 axes \(1, 1, 1, 2\)"),
        ({"query_index": torch.zeros(1, 3, 2).long()}, ShapeError, r"query_index is \(1, 3, 2\)"),
        ({"value": torch.ones(1, 1, 3, 4)}, ShapeError, r"value is \(1, 1, 3, 4\), expected \(1, "),
    ],
)
def test_what_does_not_fit_is_refused(without_shape_checks, changes, error, text):
    parts = {
        "query_index": torch.tensor([0, 2]),
        "key_index": torch.tensor([1, 1]),
        "weights": torch.ones(2),
        "queries": 3,
        "keys": 2,
    }
    Edges.between(**parts)
    with pytest.raises(error, match=text):
        Edges.between(**(parts | changes))
