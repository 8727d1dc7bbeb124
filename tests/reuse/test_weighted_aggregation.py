"""Weighted aggregation against plain loops; masks, dtypes, errors."""

import pytest
import reuse_dense as dense
import torch
from torch import nn

import regard
from regard import masks
from regard.errors import RegardError, ShapeError
from regard.mechanisms import MultiHead
from regard.reuse import LearnedHeadMix, OwnProjections, OwnSlices, WeightedAggregation

SHARE = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def mixed_map(scores, weights):
    """Σₕ softmax(scores)ₕ Aₕ, (batch, query, key)."""
    shares = (scores - scores.max()).exp()
    return sum(share / shares.sum() * weights[:, head] for head, share in enumerate(shares))


@pytest.mark.parametrize("queries", [5, 2])
def test_heads_apart(queries):
    weights, features = dense.weights_of(queries=queries), dense.normal(2, 5, 6)
    for heads in (OwnSlices(), OwnProjections(6, 3), OwnProjections(6, 3, head_width=4)):
        layer = WeightedAggregation(6, 3, heads=heads, output_width=7, bias=True).double()
        found = layer(features, weights)
        for example in range(2):
            parts = []
            for head in range(3):
                if isinstance(heads, OwnSlices):
                    own = features[example, :, 2 * head : 2 * head + 2]
                else:
                    size = heads.head_width
                    rows = heads.project.weight[size * head : size * (head + 1)]
                    own = dense.mixed(features[example], rows.T.detach())
                parts.append(dense.mixed(weights[example, head], own))
            truth = dense.mixed(torch.cat(parts, 1), layer.project.weight.T.detach())
            truth = truth + layer.project.bias.detach()
            torch.testing.assert_close(found[example].detach(), truth, atol=1e-8, rtol=0)


@pytest.mark.parametrize("heads", ["mean", "max", "min", 1, -1, SHARE])
def test_joined_as_fuse_joins(heads):
    weights, features = dense.weights_of(), dense.normal(2, 5, 6)
    layer = WeightedAggregation(6, 3, heads=heads).double()
    fused = regard.combine_heads(weights, heads)
    for example in range(2):
        truth = dense.mixed(fused[example], features[example]) @ layer.project.weight.T
        found = layer(features, weights)[example]
        torch.testing.assert_close(found, truth, atol=1e-8, rtol=0)


def test_concat_and_learned_mix():
    weights, features = dense.weights_of(), dense.normal(2, 5, 4)
    layer = WeightedAggregation(4, 3, heads="concat").double()
    each = torch.cat([dense.mixed(weights[0, head], features[0]) for head in range(3)], 1)
    found = layer(features, weights)[0]
    torch.testing.assert_close(found, each @ layer.project.weight.T, atol=1e-8, rtol=0)

    layer = WeightedAggregation(4, 3, heads=LearnedHeadMix(3)).double()
    start = dense.mixed(weights.mean(1)[0], features[0]) @ layer.project.weight.T
    torch.testing.assert_close(layer(features, weights)[0], start, atol=1e-8, rtol=0)
    nn.init.normal_(layer.heads.mix.scores)
    one_map = mixed_map(layer.heads.mix.scores.detach(), weights)
    truth = dense.mixed(one_map[0], features[0]) @ layer.project.weight.T
    torch.testing.assert_close(layer(features, weights)[0], truth, atol=1e-8, rtol=0)
    torch.testing.assert_close(layer.heads.mix.shares().sum(), torch.ones((), dtype=torch.float64))
    layer(features, weights).square().sum().backward()
    assert layer.heads.mix.scores.grad.abs().min() > 0


def test_gradients_are_right():
    weights, features = dense.weights_of(1, 2, 3, 4), dense.normal(1, 4, 4)
    mask = masks.padding(torch.tensor([[True, True, True, False]]))
    for heads in (OwnSlices(), "max", LearnedHeadMix(2)):
        layer = WeightedAggregation(4, 2, heads=heads).double()
        call = lambda w, x, layer=layer: layer(x, w, mask=mask)
        inputs = (weights.clone().requires_grad_(), features.clone().requires_grad_())
        torch.autograd.gradcheck(call, inputs)


def test_a_mask_counts_as_zero_weight():
    weights, features = dense.weights_of(), dense.normal(2, 5, 6)
    layer = WeightedAggregation(6, 3).double()
    allowed = torch.rand(2, 3, 5, 5) > 0.4
    allowed[0, :, 1] = False  # a row that attends to nothing
    found = layer(features, weights, mask=allowed)
    torch.testing.assert_close(found, layer(features, weights * allowed), atol=1e-12, rtol=0)
    assert found[0, 1].eq(0).all()
    causal = layer(features, weights, causal=True)
    assert not torch.allclose(causal, layer(features, weights))
    features[:, 3:] *= 1e4
    torch.testing.assert_close(layer(features, weights, causal=True)[:, :3], causal[:, :3])


@pytest.mark.parametrize("heads", [OwnSlices(), OwnProjections(6, 3), "mean", "concat"])
def test_nan_in_padding_reaches_nothing(heads):
    weights, features = dense.weights_of(), dense.normal(2, 5, 6)
    mask = dense.padded_mask(2, 5, 3)
    layer = WeightedAggregation(6, 3, heads=heads).double()
    truth = layer(features[1:, :3], weights[1:, :, :, :3])
    features[1, 3:], weights[1, :, :, 3:] = torch.nan, torch.nan
    weights.requires_grad_(), features.requires_grad_()
    found = layer(features, weights, mask=mask)
    torch.testing.assert_close(found[1:], truth, atol=1e-12, rtol=0)
    found.square().sum().backward()
    for tensor in (weights, features, *layer.parameters()):
        assert tensor.grad.isfinite().all()
        tensor.grad = None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    attn = MultiHead(6, 3).double()
    x = dense.normal(2, 5, 6)
    layer = WeightedAggregation(6, 3).double()
    truth = layer(x, attn(x, weights=True))
    attn, layer, x = attn.to(dtype), layer.to(dtype), x.to(dtype)
    found = layer(x, attn(x, weights=True))
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), truth, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_nothing(queries, keys):
    layer = WeightedAggregation(6, 3).double()
    found = layer(dense.normal(2, keys, 6), torch.zeros(2, 3, queries, keys, dtype=torch.float64))
    assert found.shape == (2, queries, 6)
    assert found.eq(0).all()


def test_wrong_parts(without_shape_checks):
    for build, message in (
        (
            lambda: WeightedAggregation(7, 3),
            "WeightedAggregation: width 7, expected a multiple of 3",
        ),
        (lambda: OwnProjections(7, 3), "OwnProjections: width 7, expected a multiple of 3"),
        (
            lambda: WeightedAggregation(6, 3, heads=OwnProjections(6, 2)),
            "made for width 6 and 2 heads, expected width 6 and 3 heads",
        ),
        (lambda: WeightedAggregation(6, 3, heads=OwnSlices), "heads=OwnSlices, expected an inst"),
        (lambda: WeightedAggregation(6, 3, heads="middle"), "heads='middle', expected 'mean', "),
        (lambda: WeightedAggregation(6, 3, heads=3), "heads=3, expected a head from 0 to 2"),
        (lambda: WeightedAggregation(6, 3, heads=True), "heads=True, expected 'mean'"),
        (
            lambda: WeightedAggregation(6, 3, heads=LearnedHeadMix(2)),
            "heads: a LearnedHeadMix of 2 heads, expected 3",
        ),
        (
            lambda: WeightedAggregation(6, 3, heads=torch.ones(2)),
            r"a weighting \(2,\), expected \(3,\)",
        ),
    ):
        with pytest.raises(RegardError, match=message):
            build()


def test_wrong_sizes(without_shape_checks):
    layer = WeightedAggregation(6, 3).double()
    weights, features = dense.weights_of(), dense.normal(2, 5, 6)
    for given, other, message in (
        (features[..., :4], weights, "axis width has size 4, expected 6"),
        (features[:1], weights, "axis batch has size 1, expected 2 as in weights"),
        (features[:, :3], weights, "axis position has size 3, expected 5 as the keys of weights$"),
        (
            features[:, :1],
            weights[:, :, :1],
            r"size 1, expected 5 as the keys of weights \(in a step of decoding: of all positions",
        ),
        (features[0], weights, r"features has 2 axes \(5, 6\), expected 3"),
        (features, weights[:, :2], "weights: axis head has size 2, expected 3"),
    ):
        with pytest.raises(ShapeError, match=message):
            layer(given, other)
