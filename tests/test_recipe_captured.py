"""Recipes that capture makes: torch's native operators and flex attention; parts of any recipe."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _pytree

import regard
from regard import masks
from regard.bias import Bias
from regard.errors import UnavailableError
from regard.kernel.position_encodings import AlibiBias, RelativeTable
from regard.recipe import Additive, Dot, Flex, Given, Projected
from regard.types import NEVER, Block, whole

HEADS, GROUPS, QUERIES, KEYS = 4, 2, 3, 5


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dot(**changes):
    parts = {
        "query": random(2, HEADS, QUERIES, 6, seed=1),
        "key": random(2, GROUPS, KEYS, 6, seed=2),
        "value": random(2, GROUPS, KEYS, 7, seed=3),
        "mask": masks.causal() & masks.lengths(torch.tensor([4, 1]), KEYS),
        "bias": random(1, HEADS, 1, KEYS, seed=4),
        "scale": 0.5,
        "softcap": 3.0,
        "sink": random(HEADS, seed=5),
    }
    return Dot(**(parts | changes))


def additive():
    return Additive(
        random(2, 1, QUERIES, 6, seed=1),
        random(2, 1, KEYS, 6, seed=2),
        random(6, seed=6),
        random(2, 1, KEYS, 7, seed=3),
        mask=masks.lengths(torch.tensor([4, 1]), KEYS),
    )


def given():
    return Given(random(2, HEADS, QUERIES, KEYS).softmax(-1).tril(), random(2, GROUPS, KEYS, 7))


def projected(*, cross=False, norm=False, bias=True, mask=None):
    width = 8
    parts = {"key_input": random(2, KEYS, width, seed=9)} if cross else {}
    if norm:
        parts |= {"norm_weight": random(width, seed=7), "norm_bias": random(width, seed=8)}
        parts["epsilon"] = 1e-3
    return Projected(
        random(2, QUERIES, width, seed=1),
        random(3 * width, width, seed=2),
        random(3 * width, seed=3) if bias else None,
        HEADS,
        mask=mask,
        **parts,
    ).with_value()


def tilted(score, batch, head, query, key):
    return score + 0.1 * (head + 1) * (query - key) + 0.5 * batch * key


def nearby(batch, head, query, key):
    return (query - key).abs() <= head + batch


def flex(**changes):
    parts = {
        "query": random(2, HEADS, QUERIES, 6, seed=1),
        "key": random(2, GROUPS, KEYS, 6, seed=2),
        "examples": torch.arange(2),
        "heads": torch.arange(HEADS),
        "value": random(2, GROUPS, KEYS, 7, seed=3),
        "score_mod": tilted,
        "mask_mod": nearby,
        "scale": 0.5,
    }
    return Flex(**(parts | changes))


RECIPES = {
    "dot": dot,
    "dot with log-sum-exp": lambda: dot().with_lse(),
    "dot, pairs for each head": lambda: dot(
        mask=masks.pairs(random(2, HEADS, QUERIES, KEYS, seed=6) > -1)
    ),
    "additive": additive,
    "given": given,
    "projected": projected,
    "projected, cross": lambda: projected(cross=True, mask=masks.causal()),
    "projected, norm first": lambda: projected(norm=True, bias=False),
    "flex": flex,
    "flex with log-sum-exp": lambda: flex().with_lse(),
}
every_recipe = pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES)


# -- projected


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm first"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_projected_is_multi_head_attention(norm, bias):
    recipe = projected(norm=norm, bias=bias)
    module = nn.MultiheadAttention(8, HEADS, bias=bias, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(recipe.weight)
        if bias:
            module.in_proj_bias.copy_(recipe.bias)
    x = recipe.input
    if norm:
        x = F.layer_norm(x, (8,), recipe.norm_weight, recipe.norm_bias, recipe.epsilon)
    expected = module(x, x, x, average_attn_weights=False)[1].detach()
    torch.testing.assert_close(recipe.weights(), expected)
    value = F.linear(x, recipe.weight[16:], recipe.bias[16:] if bias else None)
    value = value.unflatten(2, (HEADS, 2)).transpose(1, 2)
    torch.testing.assert_close(recipe.mixed(), expected @ value)


def test_projected_attends_to_another_input():
    recipe = projected(cross=True, mask=masks.causal())
    width = 8
    query = F.linear(recipe.input, recipe.weight[:width], recipe.bias[:width])
    key = F.linear(
        recipe.key_input, recipe.weight[width : 2 * width], recipe.bias[width : 2 * width]
    )
    query, key = (x.unflatten(2, (HEADS, 2)).transpose(1, 2) for x in (query, key))
    scores = query @ key.mT * 2**-0.5
    allowed = masks.causal().dense(QUERIES, KEYS)
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(recipe.weights(), expected)
    assert recipe.shape == (2, HEADS, QUERIES, KEYS)


def test_projected_holds_no_projections():
    """The point of it: what torch's operator was given is all that is kept alive."""
    x, weight, bias = random(2, 300, 8), random(24, 8), random(24)
    recipe = Projected(x, weight, bias, HEADS)
    assert recipe.nbytes == 8 * (x.numel() + weight.numel() + bias.numel())
    assert recipe.value is None and recipe.with_value().value.shape == (2, HEADS, 300, 2)
    with pytest.raises(UnavailableError, match="made without values"):
        recipe.mixed()


# -- flex


@pytest.mark.parametrize("score_mod", [None, tilted], ids=["no score", "score"])
@pytest.mark.parametrize("mask_mod", [None, nearby], ids=["no mask", "mask"])
def test_flex_is_torchs(score_mod, mask_mod):
    """`mixed()` against what torch's own flex attention puts out."""
    recipe = flex(score_mod=score_mod, mask_mod=mask_mod)

    def both(score, *places):
        score = score if score_mod is None else score_mod(score, *places)
        return score if mask_mod is None else torch.where(mask_mod(*places), score, -float("inf"))

    module = torch.nn.attention.flex_attention
    before = module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        expected = flex_attention(
            recipe.query.float(),
            recipe.key.float(),
            recipe.value.float(),
            score_mod=both,
            scale=0.5,
            enable_gqa=True,
        )
    finally:
        module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
    torch.testing.assert_close(recipe.mixed().float(), expected, atol=1e-5, rtol=1e-5)


def test_flex_functions_are_told_the_place():
    """A part of the batch or of the heads is asked about by its own numbers."""
    recipe = flex()
    weights = recipe.weights()
    torch.testing.assert_close(recipe.at(1, 3).weights(), weights[1:, 3:])
    torch.testing.assert_close(recipe.of_heads([3, 0]).weights(), weights[:, [3, 0]])
    block = Block.of(slice(1, 3), slice(2, 5), QUERIES, KEYS)
    torch.testing.assert_close(
        recipe.log_weights(block), recipe.log_weights(whole(QUERIES, KEYS))[..., 1:3, 2:5]
    )


def test_flex_becomes_given():
    made = flex().given()
    torch.testing.assert_close(made.weights(), flex().weights())
    torch.testing.assert_close(made.mixed(), flex().mixed())


# -- any recipe


@every_recipe
def test_every_matrix_and_tile(make):
    recipe, weights = make(), make().weights()
    for batch in range(recipe.shape.batch):
        for head in range(recipe.shape.heads):
            one = recipe.at(batch, head)
            expected = weights[batch : batch + 1, head : head + 1]
            assert one.shape == (1, 1, *recipe.shape[2:])
            torch.testing.assert_close(one.weights(), expected)
            torch.testing.assert_close(one.plain().weights(), expected)
    torch.testing.assert_close(recipe.weights(slice(1, 3)), weights[:, :, 1:3])
    torch.testing.assert_close(recipe.weights(columns=slice(1, 3)), weights[..., 1:3])
    logs = recipe.log_weights(whole(*recipe.shape[2:]))
    torch.testing.assert_close(logs.exp(), weights)
    assert (logs[weights == 0] == NEVER).all()


@every_recipe
@pytest.mark.parametrize("which", [[0], [-1], [1, 0], [2, 2, 0]], ids=str)
def test_some_heads(make, which):
    recipe = make()
    which = [head % recipe.shape.heads for head in which]
    some = recipe.of_heads(which)
    assert some.shape == recipe.shape._replace(heads=len(which)) and some.kind == recipe.kind
    torch.testing.assert_close(some.weights(), recipe.weights()[:, which])
    torch.testing.assert_close(some.mixed(), recipe.mixed()[:, which])


@pytest.mark.parametrize(
    "bias",
    [AlibiBias(random(HEADS, seed=4)), RelativeTable(random(HEADS, 9, seed=4))],
    ids=["alibi", "table"],
)
def test_some_heads_of_a_structured_bias(bias):
    recipe = dot(bias=bias)
    torch.testing.assert_close(recipe.of_heads([2, 1]).weights(), recipe.weights()[:, [2, 1]])


def test_some_heads_of_a_bias_that_does_not_offer_them():
    class Lent(AlibiBias):
        of_heads = Bias.of_heads

    assert (lent := Lent(random(1, seed=4))).of_heads([0]) is lent, "one bias serves every head"
    with pytest.raises(UnavailableError, match="some heads of a structured bias, Lent"):
        dot(bias=Lent(random(HEADS, seed=4))).of_heads([0])


@every_recipe
def test_reducers_stream(make):
    recipe, weights = make(), make().weights()
    mean, received = regard.reduce(recipe, [regard.HeadMean(), regard.ReceivedAttention()])
    torch.testing.assert_close(mean, weights.mean(1))
    torch.testing.assert_close(received, weights.sum(2))


@every_recipe
def test_map_reaches_every_tensor(make):
    recipe, seen = make(), []
    moved = recipe.map(lambda tensor: seen.append(tensor) or tensor.to("meta"))
    assert moved.device.type == "meta"
    assert len(seen) == len({id(tensor) for tensor in seen})
    assert all(leaf.is_meta for leaf in _tensors(moved))
    assert {id(tensor) for tensor in seen} == {id(leaf) for leaf in _tensors(recipe)}
    assert moved.shape == recipe.shape and moved.kind == recipe.kind
    assert not any(leaf.is_meta for leaf in _tensors(recipe))


def _tensors(recipe):
    return [leaf for leaf in _pytree.tree_leaves(recipe) if isinstance(leaf, torch.Tensor)]


@every_recipe
def test_detach(make):
    recipe = make().map(lambda x: x.requires_grad_() if x.is_floating_point() else x)
    assert recipe.weights().requires_grad and recipe.mixed().requires_grad
    assert not recipe.detach().weights().requires_grad
    assert not recipe.detach().mixed().requires_grad


@every_recipe
def test_bytes_are_those_of_the_storages(make):
    recipe = make().map(torch.clone)
    assert recipe.nbytes == sum(leaf.numel() * leaf.element_size() for leaf in _tensors(recipe))


def test_a_shared_storage_counts_once():
    both = random(2, HEADS, KEYS, 12)
    recipe = Dot(both[..., :6], both[..., 6:], both[..., :4])
    assert recipe.nbytes == both.untyped_storage().nbytes()


@every_recipe
def test_gradients_flow_to_every_part(make):
    recipe = make().map(lambda x: x.requires_grad_() if x.is_floating_point() else x)
    leaves = [leaf for leaf in _tensors(recipe) if leaf.is_floating_point()]
    grads = torch.autograd.grad(recipe.mixed().square().sum(), leaves, allow_unused=True)
    for leaf, grad in zip(leaves, grads):
        if leaf is not getattr(recipe, "lse", None):  # made again where there is a graph
            made_once = isinstance(recipe, Projected) and leaf is recipe.value
            assert grad is not None or made_once
            assert grad is None or grad.isfinite().all()


@every_recipe
def test_copy_and_pickle(make):
    recipe = make()
    again = [copy.deepcopy(recipe), pickle.loads(pickle.dumps(recipe))]
    for other in again:
        torch.testing.assert_close(other.weights(), recipe.weights())


@every_recipe
def test_repr_is_one_short_line(make):
    assert "\n" not in repr(make()) and len(repr(make())) < 400
