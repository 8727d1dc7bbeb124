"""Gated flow against plain loops; what its summaries are, and what they are not."""

import math

import pytest
import reuse_dense as dense
import torch
from torch import nn

import regard
from regard import masks
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.mechanisms import MultiHead
from regard.recipe import Given
from regard.reuse import SUMMARIES, GatedFlow, LearnedHeadMix, PositionSummaries, source_of
from regard.reuse.summaries import summarise, summarise_plainly

NAMES = {"self": list(SUMMARIES), "query": ["entropy", "strongest"], "key": ["received"]}


def drawn(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double()


def same_bits(found: torch.Tensor, truth: torch.Tensor) -> bool:
    """Equal, −0.0 told from 0.0."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[truth.element_size()]
    return torch.equal(found.detach().view(whole), truth.view(whole))


@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
@pytest.mark.parametrize("side", ["self", "query", "key"])
def test_against_loops(side, gate):
    queries = 5 if side == "self" else 3
    weights, x = (
        dense.weights_of(queries=queries),
        dense.normal(2, 5 if side == "key" else queries, 4),
    )
    layer = drawn(GatedFlow(4, 3, side=side, gate=gate))
    layer.requires_grad_(False)
    found, summaries = layer(x, weights), dense.summaries(weights, NAMES[side])
    one = (lambda z: 1 / (1 + math.exp(-z))) if gate == "sigmoid" else math.tanh
    by_feature, by_summary = layer.from_features, layer.from_summaries.weight
    for example in range(2):
        for position in range(x.shape[1]):
            for column in range(4):
                z = by_feature.weight[column] @ x[example, position] + by_feature.bias[column]
                z = z + by_summary[column] @ summaries[example, position]
                value = x[example, position, column]
                truth = value + layer.gain[column] * one(float(z)) * value
                assert abs(float(found[example, position, column] - truth)) < 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("gate", ["sigmoid", "tanh"])
def test_at_the_start_features_pass_bit_for_bit(gate, dtype):
    for side, queries in (("self", 5), ("query", 3), ("key", 3)):
        layer = GatedFlow(6, 3, side=side, gate=gate).to(dtype)
        x = torch.randn(2, 3 if side == "query" else 5, 6).to(dtype)
        weights = torch.randn(2, 3, queries, 5).softmax(-1).to(dtype)
        x[0, 0] = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 3e38, 1.0]).to(dtype)
        found = layer(x, weights)
        assert found.dtype == dtype
        assert same_bits(found, x)
        found.clamp(-9, 9).square().sum().backward()
        assert layer.gain.grad.abs().min() > 0  # and it can leave the start
        x[1, 1, :3] = torch.tensor([torch.inf, -torch.inf, torch.inf])
        assert same_bits(layer(x, weights), x)
        x[1, 1, 0] = torch.nan
        assert same_bits(layer(x, weights)[:1], x[:1])


@pytest.mark.parametrize("heads", ["mean", "max", "min", 1, torch.tensor([0.2, 0.3, 0.5]), None])
def test_joined_heads(heads):
    weights = dense.weights_of()
    part = PositionSummaries(3, heads=LearnedHeadMix(3) if heads is None else heads).double()
    one_map = regard.combine_heads(weights, "mean" if heads is None else heads)[:, None]
    truth = dense.summaries(one_map, NAMES["self"])
    torch.testing.assert_close(part(source_of(weights)).detach(), truth, atol=1e-8, rtol=0)
    assert part.channels == 4


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (3, 9, 200, 200), (40, 2, 30, 30)])
def test_pieces_are_the_plain_operations(shape):
    """In one go over pieces, with a mask and rows that do not count, and the same way back.

    Some rows have ties for the largest weight, some weights that are 0 or next to it.
    """
    weights = dense.normal(*shape).softmax(-1)
    batch, _, queries, keys = shape
    weights[:, 0, 0] = torch.tensor([0.5, 0.5, *[0.0] * (keys - 2)])
    weights[:, -1, 1] = 1 / keys
    weights[0, :, 2, 1:3] = torch.tensor([0.0, 1e-40])
    allowed = torch.rand(batch, 1, queries, keys) > 0.3
    rows = torch.rand(batch, queries) > 0.2
    for mask, real in ((None, None), (allowed, rows), (allowed, None), (None, rows)):
        answers, gradients = [], []
        for way in (summarise_plainly, summarise):
            given = weights.clone().requires_grad_()
            found = way(given, NAMES["self"], mask, real)
            sum((found[n] * (n_th + 1)).sin().sum() for n_th, n in enumerate(found)).backward()
            answers.append(torch.cat([value.flatten() for value in found.values()]))
            gradients.append(given.grad)
        torch.testing.assert_close(*answers, atol=1e-10, rtol=0)
        torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


@pytest.mark.parametrize("names", [["entropy"], ["strongest"], ["received"], ["self_weight"]])
def test_gradients_are_right(names):
    scores = dense.normal(1, 2, 4, 4).requires_grad_()
    mask = masks.padding(torch.tensor([[True, True, True, False]]))
    part = PositionSummaries(2, summaries=names)

    def call(scores):
        weights = scores.masked_fill(torch.eye(4, dtype=torch.bool).roll(1, 0), -torch.inf)
        return part(source_of(weights.softmax(-1), mask=mask))

    torch.autograd.gradcheck(call, scores)


def test_an_underflowing_weight_has_a_finite_gradient():
    scores = torch.tensor([[[[0.0, -1e4, 3.0]] * 3]], requires_grad=True)
    found = PositionSummaries(1)(source_of(scores.softmax(-1)))
    found.sum().backward()
    assert found.isfinite().all()
    assert scores.grad.isfinite().all()


def test_autocast_keeps_the_dtype_of_the_features():
    layer, x = GatedFlow(6, 3), torch.randn(2, 5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for features in (x, x.bfloat16()):
            found = layer(features, torch.randn(2, 3, 5, 5).softmax(-1))
            assert found.dtype == features.dtype
            assert torch.equal(found, features)


def test_training_moves_what_is_attended_to():
    attn, flow = MultiHead(8, 2), GatedFlow(8, 2)
    nn.init.normal_(flow.gain)
    x = torch.randn(2, 5, 8)
    flow(x, attn(x, weights=True)).square().sum().backward()
    assert attn.to_query.weight.grad.abs().max() > 0
    assert flow.from_summaries.weight.grad.abs().min() > 0


@pytest.mark.parametrize("side", ["self", "key"])
@pytest.mark.parametrize("heads", ["concat", "mean"])
def test_padding_changes_nothing(side, heads):
    """The second example alone, without its padding, gives the same; NaN there reaches nothing.

    A tensor does not know whether its queries are its keys: the side says so, or the mask names the
    queries that are padding too.
    """
    weights, x = dense.weights_of(), dense.normal(2, 5, 6)
    keep = dense.padded_mask(2, 5, 3).keep
    mask = masks.padding(keep) if side == "self" else keep[:, None, :, None] & keep[:, None, None]
    layer = drawn(GatedFlow(6, 3, side=side, heads=heads))
    weights[1, :, :, 3:] = 0.0
    weights = weights / weights.sum(-1, keepdim=True)
    truth = layer(x[1:, :3], weights[1:, :, :3, :3])
    for rubbish in (1e4, torch.nan):
        x[1, 3:], weights[1, :, :, 3:], weights[1, :, 3:] = rubbish, rubbish, rubbish
        given, features = weights.clone().requires_grad_(), x.clone().requires_grad_()
        layer.zero_grad()
        found = layer(features, given, mask=mask)
        torch.testing.assert_close(found[1:, :3], truth, atol=1e-10, rtol=0)
        assert found.isfinite().all()
        found[keep].square().sum().backward()
        for tensor in (given, features, *layer.parameters()):
            assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("how", ["attended", "recipe alone", "record"])
@pytest.mark.parametrize("side", ["self", "query", "key"])
def test_padding_of_an_attention_is_known(side, how):
    """No mask here: the attention has it, and knows that its queries are its keys."""
    attn, layer, x = (
        drawn(MultiHead(6, 3)),
        drawn(GatedFlow(6, 3, side=side)),
        dense.normal(2, 5, 6),
    )
    mask = dense.padded_mask(2, 5, 3)
    truth = layer(x[1:, :3], attn(x[1:, :3], weights=True))
    x[1, 3:] = torch.nan
    asked = {"attended": {"weights": True}, "recipe alone": {"reduce": [regard.Entropy()]}}
    for training in (False, True):
        with torch.set_grad_enabled(training):
            with regard.capture(attn, attached=training) as trace:
                given = attn(x, mask=mask, **asked.get(how, {}))
            found = layer(x, trace[0] if how == "record" else given)
        torch.testing.assert_close(found[1:, :3], truth, atol=1e-8, rtol=0)
    found[mask.keep].square().sum().backward()
    for parameter in (*layer.parameters(), *attn.parameters()):
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_padding_of_cross_attention_takes_no_queries():
    """Equal lengths by chance: what query 3 gives counts, though key 3 is padding."""
    attn, layer = drawn(MultiHead(6, 3)), drawn(GatedFlow(6, 3, side="key"))
    query, key, mask = dense.normal(2, 5, 6), dense.normal(2, 5, 6), dense.padded_mask(2, 5, 3)
    found = layer(key, attn(query, key, mask=mask, weights=True))
    truth = layer(key[1:, :3], attn(query[1:], key[1:, :3], weights=True))
    torch.testing.assert_close(found[1:, :3], truth, atol=1e-8, rtol=0)


def test_causal_and_empty_rows():
    weights, x = dense.weights_of(), dense.normal(2, 5, 6)
    layer = drawn(GatedFlow(6, 3, summaries=["entropy", "strongest", "self_weight"]))
    found = layer(x, weights, causal=True)
    torch.testing.assert_close(found, layer(x, weights.tril()), atol=1e-12, rtol=0)
    nothing = torch.zeros(1, 1, 5, 5, dtype=torch.bool)
    assert layer(x, weights, mask=nothing).isfinite().all()


@pytest.mark.parametrize("length", [0, 1])
def test_short(length):
    layer = drawn(GatedFlow(6, 3))
    assert layer(dense.normal(2, length, 6), dense.weights_of(2, 3, length, length)).shape == (
        2,
        length,
        6,
    )
    layer = drawn(GatedFlow(6, 3, side="query"))
    assert layer(dense.normal(2, 4, 6), torch.zeros(2, 3, 4, 0).double()).isfinite().all()


def test_summaries_on_offer():
    assert list(SUMMARIES) == ["received", "entropy", "strongest", "self_weight"]
    assert GatedFlow(6, 3).summarise.summaries == tuple(SUMMARIES)
    assert GatedFlow(6, 3, side="query").summarise.summaries == ("entropy", "strongest")
    assert "gates the key side" in repr(GatedFlow(6, 3, side="key"))


@pytest.mark.parametrize(
    "name", ["mean", "row_mean", "row_sum", "sum", "average", "avg", "mean_over_keys", "Mean"]
)
def test_a_constant_is_refused(name):
    weights = dense.weights_of()
    assert weights.mean(-1).std() < 1e-12  # what the refused summary would have been
    with pytest.raises(RegardError, match=r"constant by construction: every row of weights sums"):
        GatedFlow(6, 3, summaries=[name])


def test_wrong_parts(without_shape_checks):
    for given, message in (
        ({"summaries": ["loudest"]}, "'loudest', expected some of received, entropy, strongest"),
        ({"summaries": "entropy"}, r"expected a list of names, as \['entropy'\]"),
        ({"summaries": []}, "expected at least one name, each once"),
        ({"summaries": ["entropy"] * 2}, "expected at least one name, each once"),
        (
            {"summaries": ["received"], "side": "query"},
            "'received' is of the key side, but side='query'; offered there: entropy, strongest",
        ),
        (
            {"summaries": ["self_weight"], "side": "query"},
            "'self_weight' needs queries and keys that are the same positions",
        ),
        ({"side": "both"}, "side='both', expected 'query', 'key' or 'self'"),
        ({"gate": "relu"}, "gate='relu', expected 'sigmoid' or 'tanh'"),
    ):
        with pytest.raises(RegardError, match=message):
            GatedFlow(6, 3, **given)


def test_self_weight_of_cross_attention():
    layer = GatedFlow(6, 3)
    with pytest.raises(
        ShapeError,
        match=r"weights has 3 queries × 5 keys\. For cross-attention, or a step of decoding with "
        r"a state, say side='query' or side='key'$",
    ):
        layer(torch.randn(2, 3, 6), torch.randn(2, 3, 3, 5).softmax(-1))
    attn, x, memory = MultiHead(6, 3), torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    with regard.capture(attn) as trace:
        attn(x, memory)
    record = trace[0].relabelled("cross")
    with pytest.raises(ShapeError, match="is cross-attention, 5 queries × 5 keys"):
        layer(x, record)


def test_wrong_sizes(without_shape_checks):
    weights = torch.randn(2, 3, 4, 5).softmax(-1)
    with pytest.raises(ShapeError, match="position has size 5, expected 4 as the queries of"):
        GatedFlow(6, 3, side="query")(torch.randn(2, 5, 6), weights)
    with pytest.raises(ShapeError, match="position has size 4, expected 5 as the keys of weights"):
        GatedFlow(6, 3, side="key")(torch.randn(2, 4, 6), weights)
    with pytest.raises(ShapeError, match="weights: axis head has size 3, expected 2"):
        GatedFlow(6, 2, side="key")(torch.randn(2, 5, 6), weights)
    with pytest.raises(ShapeError, match="GatedFlow: weights: axis head has size 4, expected 3"):
        GatedFlow(6, 3)(torch.randn(2, 5, 6), torch.randn(2, 4, 5, 5).softmax(-1))
    with pytest.raises(
        UnavailableError, match="GatedFlow: weights are signed weights, for which 'entropy' has no"
    ):
        GatedFlow(6, 3, side="query")(torch.randn(2, 4, 6), Given(weights, None, "signed"))
