"""Recipes: what weights are made from gives them back, whole or in blocks."""

import pytest
import torch
from torch.utils import _pytree

from regard import masks
from regard.errors import UnavailableError
from regard.kernel import dense
from regard.kernel.position_encodings import AlibiBias, RelativeTable
from regard.recipe import Additive, Dot, Edges, Given
from regard.softmax import exp, log_sum_exp, softmax
from regard.types import NEVER, Block, whole


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dot(**changes):
    parts = {
        "query": random(2, 4, 3, 6, seed=1),
        "key": random(2, 2, 5, 6, seed=2),
        "value": random(2, 2, 5, 7, seed=3),
        "mask": masks.causal() & masks.lengths(torch.tensor([4, 1]), 5),
        "bias": random(1, 4, 1, 5, seed=4),
        "scale": 0.5,
        "softcap": 3.0,
        "sink": random(4, seed=5),
    }
    return Dot(**(parts | changes))


def additive(**changes):
    parts = {
        "query": random(2, 1, 3, 6, seed=1),
        "key": random(2, 1, 5, 6, seed=2),
        "vector": random(6, seed=6),
        "value": random(2, 1, 5, 7, seed=3),
        "mask": masks.lengths(torch.tensor([4, 1]), 5),
        "bias": random(2, 1, 3, 1, seed=4),
    }
    return Additive(**(parts | changes))


def given():
    return Given(random(2, 4, 3, 5).softmax(-1).triu(), random(2, 2, 5, 7, seed=3))


def edges(heads=1):
    """Seven edges, one of them twice, one absent; query 1 has a single one."""
    query_index = torch.tensor([2, 0, 2, 0, 1, 2, 0]).expand(1, heads, -1)
    key_index = torch.stack([torch.tensor([4, 0, 4, 3, 2, 1, 2]).roll(n) for n in range(heads)])
    weights = random(2, 4, 7).softmax(-1)
    weights[..., 6] = 0
    return Edges(query_index, key_index[None], weights, 3, 5, random(2, 2, 5, 7, seed=3))


RECIPES = {
    "dot": dot,
    "dot with log-sum-exp": lambda: dot().with_lse(),
    "alibi": lambda: dot(bias=AlibiBias(random(4, seed=4))),
    "additive": additive,
    "additive with log-sum-exp": lambda: additive().with_lse(),
    "given": given,
    "edges": edges,
    "edges of each head": lambda: edges(heads=4),
    "edges sorted": lambda: edges(heads=4).plain(),
}
every_recipe = pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES)


def test_dot_gives_the_dense_weights():
    recipe = dot()
    output, weights = dense.attention(
        recipe.query,
        recipe.key,
        recipe.value,
        mask=recipe.mask.dense(3, 5),
        bias=recipe.bias,
        scale=0.5,
        softcap=3.0,
        sink=recipe.sink,
    )
    torch.testing.assert_close(recipe.weights(), weights)
    torch.testing.assert_close(recipe.mixed(), output)
    assert recipe.kind == "partial" and dot(sink=None).kind == "distribution"


def test_additive_gives_the_formula():
    recipe = additive(mask=None, bias=None)
    query, key = recipe.query[1, 0, 2], recipe.key[1, 0]
    scores = torch.stack([(recipe.vector * (query + k).tanh()).sum() for k in key])
    torch.testing.assert_close(recipe.weights()[1, 0, 2], scores.softmax(0))
    torch.testing.assert_close(recipe.log_sum_exp()[1, 0, 2], scores.logsumexp(0))


@every_recipe
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_any_rows_and_columns_are_those_of_the_whole(make, grad):
    recipe, rows, columns = make(), slice(1, 3), slice(1, 4)
    with torch.set_grad_enabled(grad):
        whole_matrix = recipe.weights()
        torch.testing.assert_close(recipe.weights(rows), whole_matrix[:, :, rows])
        torch.testing.assert_close(recipe.weights(columns=columns), whole_matrix[..., columns])
        both = recipe.weights(rows, columns)
        torch.testing.assert_close(both, whole_matrix[:, :, rows, columns])


@every_recipe
@pytest.mark.parametrize(
    "rows", [slice(-2, None), slice(None, 2), slice(-2, -1), slice(1, 99)], ids=str
)
def test_slices_count_as_they_do_in_python(make, rows):
    torch.testing.assert_close(make().weights(rows), make().weights()[:, :, rows])


@every_recipe
def test_log_weights_are_the_logarithms_and_never_minus_infinity(make):
    recipe = make()
    block = Block.of(slice(1, 3), slice(0, 4), 3, 5)
    weights, logs = recipe.weights()[:, :, 1:3, :4], recipe.log_weights(block)
    torch.testing.assert_close(logs[weights > 0], weights[weights > 0].log())
    assert (weights == 0).any() and (logs[weights == 0] == NEVER).all()


@every_recipe
def test_one_matrix_is_that_of_its_example_and_head(make):
    recipe = make()
    for batch, head in ((0, 0), (1, recipe.shape.heads - 1)):
        one = recipe.at(batch, head)
        assert one.shape == (1, 1, 3, 5)
        torch.testing.assert_close(one.weights()[0, 0], recipe.weights()[batch, head])
        torch.testing.assert_close(one.mixed()[0, 0], recipe.mixed()[batch, head])


@every_recipe
@pytest.mark.parametrize("strip", [1, 1 << 22])
def test_mixed_is_weights_times_values(monkeypatch, make, strip):
    monkeypatch.setattr("regard.recipe.base._STRIP", strip)
    recipe = make()
    value = recipe.value.repeat_interleave(recipe.shape.heads // recipe.value.shape[1], 1)
    torch.testing.assert_close(recipe.mixed(), recipe.weights() @ value)
    with torch.no_grad():
        torch.testing.assert_close(recipe.mixed(), recipe.weights() @ value)


@every_recipe
@pytest.mark.parametrize("strip", [1, 1 << 22])
def test_weights_on_some_keys_of_each_head_are_those_of_the_whole(monkeypatch, make, strip):
    monkeypatch.setattr("regard.recipe.base._STRIP", strip)
    recipe = make()
    batch, heads, queries, keys = recipe.shape
    chosen = torch.randint(keys, (batch, heads, 3), generator=torch.Generator().manual_seed(1))
    want = recipe.weights().gather(3, chosen[:, :, None].expand(-1, -1, queries, -1))
    ready = recipe.with_lse() if hasattr(recipe, "with_lse") else recipe
    with torch.no_grad():
        torch.testing.assert_close(recipe.weights_at(chosen), want)
        torch.testing.assert_close(ready.weights_at(chosen), want)
        assert ready.weights_at(chosen[..., :0]).shape == (batch, heads, queries, 0)


@pytest.mark.parametrize("make", [dot, additive])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_nan_in_padding_reaches_neither_weights_nor_mixture(make, grad):
    expected = make()
    key, value = expected.key.clone(), expected.value.clone()
    key[1, :, 1:], value[1, :, 1:] = torch.nan, torch.nan
    recipe = make(key=key, value=value)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(recipe.weights(), expected.weights())
        torch.testing.assert_close(recipe.log_sum_exp(), expected.log_sum_exp())
        torch.testing.assert_close(recipe.mixed(), expected.mixed())


def test_mixed_needs_values():
    with pytest.raises(UnavailableError, match="made without values"):
        dot(value=None).mixed()


def test_with_lse_is_the_log_sum_exp_and_done_once(monkeypatch):
    monkeypatch.setattr("regard.recipe.base._STRIP", 1)
    recipe = dot().with_lse()
    torch.testing.assert_close(recipe.lse, dot().log_sum_exp())
    assert recipe.with_lse() is recipe


def test_bytes_count_a_shared_storage_once():
    x = torch.zeros(1, 2, 3, 4)
    assert Dot(x, x[:, :, :2], x.flip(2)[:, :, :2]).nbytes == 2 * x.nbytes
    assert Dot(x, x.clone(), x).nbytes == 2 * x.nbytes
    mask, bias = masks.causal() & masks.lengths(torch.tensor([2]), 3), torch.zeros(1, 2, 3, 3)
    assert Dot(x, x, mask=mask, bias=bias).nbytes == x.nbytes + 3 + bias.nbytes
    assert Dot(x, x, bias=AlibiBias(torch.zeros(2))).nbytes == x.nbytes + 8


@pytest.mark.parametrize(
    "bias",
    [
        lambda: random(1, 4, 1, 5).requires_grad_(),
        lambda: RelativeTable(random(4, 5).requires_grad_()),
    ],
    ids=["tensor", "table"],
)
def test_detached_is_outside_the_graph_and_the_same(bias):
    recipe = dot(query=random(2, 4, 3, 6).requires_grad_(), bias=bias())
    assert recipe.weights().requires_grad
    detached = recipe.detach()
    assert not detached.weights().requires_grad
    torch.testing.assert_close(detached.weights(), recipe.weights().detach())


@every_recipe
def test_a_recipe_survives_flattening(make):
    recipe = make()
    leaves, structure = _pytree.tree_flatten(recipe)
    leaves = [leaf if leaf is None else leaf.clone() for leaf in leaves]
    again = _pytree.tree_unflatten(leaves, structure)
    assert type(again) is type(recipe) and again.kind == recipe.kind
    assert torch.equal(again.weights(), recipe.weights())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_come_in_float32(dtype):
    x = (random(1, 1, 4, 64) + 100).to(dtype)
    recipe = Dot(x, x, x, scale=0.125)
    assert recipe.weights().dtype == recipe.dtype == torch.float32
    assert recipe.weights().sum(-1).allclose(torch.ones(4))
    assert recipe.mixed().dtype == dtype
    assert Given(recipe.weights().to(dtype)).weights().dtype == torch.float32


@pytest.mark.parametrize("kind", ["signed", "gate"])
def test_weights_below_zero_have_no_logarithm(kind):
    recipe = Given(random(1, 1, 3, 3), of=kind)
    assert recipe.kind == kind
    with pytest.raises(UnavailableError, match=f"{kind} weights have no logarithm"):
        recipe.log_weights(whole(3, 3))


def test_a_row_of_minus_infinity_has_no_weight_and_log_sum_exp_zero():
    scores = torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]]).double()[None, None]
    scores.requires_grad_()
    weights, lse = softmax(scores), log_sum_exp(scores)
    assert weights[0, 0, 1].tolist() == [0, 0] and lse[0, 0, 1] == 0
    torch.testing.assert_close(weights[0, 0, 0], scores[0, 0, 0].softmax(-1))
    torch.testing.assert_close(lse[0, 0, 0], scores[0, 0, 0].logsumexp(-1))
    assert torch.autograd.grad(weights.sum() + lse.sum(), scores)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_stay_normal_numbers(dtype):
    logs = torch.tensor([0.0, -1.0, -50.0, -1e3, NEVER], dtype=dtype)
    expected = logs.exp().clamp_min(torch.finfo(dtype).tiny)
    for found in (exp(logs), exp(logs, out=torch.empty_like(logs))):
        torch.testing.assert_close(found, expected, atol=2e-38, rtol=1e-6)
        assert (found >= torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize("rows", [None, slice(100, 650)])
def test_large_weights_are_made_in_pieces_of_the_same_numbers(rows):
    """With gradients they are made at once: both must be equal, with mask, bias and sinks."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 700, 8), torch.randn(2, 2, 700, 8)
    mask = masks.causal() & masks.lengths(torch.tensor([700, 300]), 700)
    recipe = Dot(
        query, key, mask=mask, bias=torch.randn(1, 4, 700, 700), scale=0.3, sink=torch.randn(4)
    )
    with torch.no_grad():
        pieces = recipe.weights(rows)
    torch.testing.assert_close(pieces, recipe.weights(rows), atol=1e-7, rtol=1e-6)
