"""What may be handed over as weights: all ways say the same."""

import pytest
import reuse_dense as dense
import torch
import transformers
from torch import nn

import regard
from regard import masks
from regard.blocks import DecoderBlock, EncoderBlock, FeedForward, PreNorm
from regard.errors import DtypeError, RegardError, ShapeError, UnavailableError
from regard.mechanisms import MultiHead
from regard.recipe import Dot, Given
from regard.reuse import (
    Concatenation,
    GatedFlow,
    LearnedHeadMix,
    OffsetBins,
    PositionSummaries,
    ProjectedRows,
    WeightedAggregation,
    source_of,
)


def drawn(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double()


def layers() -> dict[str, nn.Module]:
    return {
        "aggregation": drawn(WeightedAggregation(6, 3)),
        "gate": drawn(GatedFlow(6, 3)),
        "gate without self weight": drawn(GatedFlow(6, 3, summaries=["received", "entropy"])),
        "gate of a mix": drawn(GatedFlow(6, 3, heads=LearnedHeadMix(3))),
        "summaries": drawn(Concatenation(6, PositionSummaries(3))),
        "rows": drawn(Concatenation(6, ProjectedRows(3, 4, cells=8))),
        "offsets": drawn(Concatenation(6, OffsetBins(3, 4))),
    }


LAYERS = list(layers())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("padded", [False, True])
def test_all_sources_say_the_same(name, padded):
    layer, attn, x = layers()[name], drawn(MultiHead(6, 3)), dense.normal(2, 5, 6)
    mask = dense.padded_mask(2, 5, 3) if padded else None
    with regard.capture(attn, attached=True) as trace:
        attended = attn(x, mask=mask, weights=True)
    detached = attended.recipe.detach()
    truth = layer(x, attended.weights, mask=mask)
    real = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask.keep
    for given in (attended, attended.recipe, detached, trace[0]):
        for again in (None, mask):
            found = layer(x, given, mask=again)
            torch.testing.assert_close(found[real], truth[real], atol=1e-10, rtol=0)
    turned = attended.weights.permute(3, 1, 0, 2)
    found = layer(x, turned, mask=mask, axes="key head batch query")
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


def test_gradients_reach_the_attention_or_not():
    layer, attn, x = drawn(GatedFlow(6, 3)), drawn(MultiHead(6, 3)), dense.normal(2, 5, 6)
    for attached in (True, False):
        with regard.capture(attn, attached=attached) as trace:
            attn(x)
        attn.zero_grad()
        layer(x, trace[0]).square().sum().backward()
        assert (attn.to_query.weight.grad is not None) == attached
    attn.zero_grad()
    attended = attn(x, reduce=[regard.Entropy()])  # a recipe, no weights
    layer(x, attended).square().sum().backward()
    assert attn.to_query.weight.grad.abs().sum() > 0


def test_streamed_where_no_gradient_is_wanted(monkeypatch):
    asked = []
    reduce = regard.reuse.summaries.reduce
    monkeypatch.setattr(
        "regard.reuse.summaries.reduce", lambda *given: asked.append(1) or reduce(*given)
    )
    layer = drawn(GatedFlow(6, 3, summaries=["received", "entropy", "strongest"]))
    attn, x = drawn(MultiHead(6, 3)), dense.normal(2, 5, 6)
    mask = dense.padded_mask(2, 5, 3)
    attended = attn(x, mask=mask, reduce=[regard.Entropy()])
    dense_way = layer(x, attended)
    assert not asked
    with torch.no_grad():
        streamed = layer(x, attended)
    assert asked
    torch.testing.assert_close(streamed[mask.keep], dense_way[mask.keep], atol=1e-10, rtol=0)


def test_one_map_by_axes():
    weights = dense.weights_of(heads=1)
    layer, x = drawn(GatedFlow(6, 1)), dense.normal(2, 5, 6)
    found = layer(x, weights[:, 0], axes="batch query key")
    torch.testing.assert_close(found, layer(x, weights), atol=0, rtol=0)


def test_an_own_mask_is_not_applied_twice():
    mask = dense.padded_mask(2, 5, 3)
    attended = MultiHead(6, 3)(torch.randn(2, 5, 6), mask=mask, weights=True)
    assert source_of(attended, mask=mask).extra is None
    assert source_of(attended, mask=masks.causal()).extra is not None


def test_what_is_no_weights(without_shape_checks):
    weights = dense.weights_of()
    attended = MultiHead(6, 3)(torch.randn(2, 5, 6))
    for given, error, message in (
        (attended, UnavailableError, "neither weights nor a recipe; call the mechanism with weig"),
        ([weights], DtypeError, "weights: a list, expected an Attended, a Recipe, a Record, or a"),
        (5, DtypeError, r"weights: an int, expected .* tensor \(batch, head, query, key\)$"),
        ((weights,) * 3, DtypeError, r"take one of the 3 layers, as weights\[0\]"),
        (weights[0], ShapeError, r"weights have 3 axes \(3, 5, 5\); four are \(batch, head, query"),
        (weights[0], ShapeError, 'named, as axes="batch query key" or axes="head query key"'),
        (weights.mT, ShapeError, "rows do not sum to at most 1"),
        (weights * 2, ShapeError, "rows do not sum to at most 1"),
        (weights - 0.5, ShapeError, "the smallest weight is"),
        (weights.long(), ShapeError, "weights are torch.int64, expected floating point"),
    ):
        with pytest.raises(error, match=message):
            source_of(given)
    with pytest.raises(RegardError, match="axes='batch head query key' is for tensors; a Given"):
        source_of(Given(weights), axes="batch head query key")
    with pytest.raises(ShapeError, match="axis layer has size 2, expected 1"):
        source_of(torch.stack([weights] * 2), axes="layer batch head query key")
    with pytest.raises(RegardError, match=r"masks.padding: axis key has size 4, expected 5"):
        source_of(weights, mask=masks.padding(torch.ones(2, 4, dtype=torch.bool)))


def test_several_attentions_are_not_one(without_shape_checks):
    attn, x = MultiHead(6, 3), torch.randn(2, 5, 6)
    block = EncoderBlock(PreNorm(6, attn), PreNorm(6, FeedForward(6)))
    with regard.capture(block) as trace:
        blocked = block(x, weights=True)
    for given, message in (
        (blocked, "a BlockOutput, expected .*; take one of its .attentions: 'self'"),
        (blocked.attentions, "a dict, expected .*; take one of 'self'"),
        (trace, r"a Trace, expected .*as trace\[0\] or by name: 'self_attention.part'"),
    ):
        with pytest.raises(DtypeError, match=message):
            source_of(given)


def test_weights_after_dropout_are_named():
    weights = nn.functional.dropout(dense.weights_of(), 0.5)
    text = "Weights after dropout do not: take them before it.*Given\\(weights, None, 'signed'\\)$"
    with pytest.raises(ShapeError, match=text):
        source_of(weights)


@pytest.mark.parametrize("where", [(0, 1), (1, 0), (1, 2), (1, 2, 3)])
def test_every_matrix_is_looked_at(where):
    weights = dense.weights_of()
    weights[where] *= 1.5
    with pytest.raises(ShapeError, match="rows do not sum to at most 1"):
        source_of(weights)


def test_columns_that_end_in_zeros_are_no_rows():
    weights = torch.full((1, 2, 4, 4), 0.25)
    weights[0, 1], weights[0, 1, 0] = 0.0, 1.0  # the last row alone is that of nothing to see
    with pytest.raises(ShapeError, match=r"one sums to 4\)\. Axis 2 does: if the keys lie there"):
        source_of(weights)


def test_many_matrices_are_looked_at_here_and_there():
    weights = dense.weights_of(8, 32, 40, 40)
    weights[5, 7, 10:30] += 0.1  # nonsense in half of one matrix of 256
    with pytest.raises(ShapeError, match="rows do not sum to at most 1"):
        source_of(weights)
    assert source_of(weights[:5]).shape.heads == 32


def test_features_of_another_dtype(without_shape_checks):
    x, weights = torch.randn(2, 5, 6).bfloat16(), dense.weights_of().float()
    for layer in (GatedFlow(6, 3), WeightedAggregation(6, 3)):
        name = type(layer).__name__
        text = f"{name}: features is torch.bfloat16, the parameters are torch.float32; convert one"
        with pytest.raises(DtypeError, match=text):
            layer(x, weights)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x, weights).shape == x.shape


def decoder() -> DecoderBlock:
    parts = (MultiHead(6, 3), MultiHead(6, 3), FeedForward(6))
    return DecoderBlock(*(PreNorm(6, part) for part in parts))


def test_cross_attention_of_equal_lengths_is_known():
    attn, x, memory = MultiHead(6, 3), torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    block = decoder()
    crossing = {
        "keys apart": attn(x, memory, weights=True),
        "a fixed state": attn(x, state=attn.fix(memory), weights=True),
        "a block": block(x, memory, weights=True).attentions["cross"],
        "a block's state": block(x, memory, weights=True, state=True).attentions["cross"],
    }
    layer = GatedFlow(6, 3)
    text = "GatedFlow: .*is cross-attention, 5 queries × 5 keys. Say side='query' or side='key'; if"
    for name, attended in crossing.items():
        assert attended.crosses, name
        with pytest.raises(ShapeError, match=text):
            layer(x, attended)
        assert layer(x, attended.weights).shape == x.shape  # who knows better may say so
        assert GatedFlow(6, 3, side="query")(x, attended).shape == x.shape
    for attended in (
        attn(x, weights=True),
        attn(x, x, weights=True),
        attn(x, state=True, weights=True),
        block(x, memory, weights=True).attentions["self"],
    ):
        assert not attended.crosses
        assert not source_of(attended).crosses


def test_queries_that_are_padding_can_be_left_out():
    """Cross-attention of a padded text: what its padding looks at does not count."""
    weights, x = dense.weights_of(queries=4, keys=5), dense.normal(2, 5, 6)
    layer = drawn(GatedFlow(6, 3, side="key"))
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    found = layer(x, weights, mask=real[:, None, :, None])
    torch.testing.assert_close(found[:1], layer(x[:1], weights[:1]), atol=1e-12, rtol=0)
    truth = layer(x[1:], weights[1:, :, :2])
    torch.testing.assert_close(found[1:], truth, atol=1e-12, rtol=0)
    attn, query = drawn(MultiHead(6, 3)), dense.normal(2, 4, 6)
    found = layer(x, attn(query, x, weights=True), mask=real[:, None, :, None])
    truth = layer(x[1:], attn(query[1:, :2], x[1:], weights=True))
    torch.testing.assert_close(found[1:], truth, atol=1e-12, rtol=0)


def test_a_bias_that_is_trained_forbids_as_well():
    """As in T5, whose learned bias holds the mask too: one answer with and without gradients."""
    attn, layer, x = drawn(MultiHead(6, 3)), drawn(GatedFlow(6, 3)), dense.normal(2, 5, 6)
    keep = dense.padded_mask(2, 5, 3).keep
    bias = dense.normal(1, 3, 5, 5) + torch.zeros(2, 1, 1, 5).double().masked_fill(
        ~keep[:, None, None], torch.finfo(torch.float64).min
    )
    truth = layer(x[1:, :3], attn(x[1:, :3], bias=bias[1:, :, :3, :3], weights=True))
    for trained in (False, True):
        attended = attn(x, bias=bias.clone().requires_grad_(trained), weights=True)
        for given in (attended, attended.recipe, attended.recipe.detach()):
            torch.testing.assert_close(layer(x, given)[1:, :3], truth, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    "added", [-1e4, -65504.0, -1e9, torch.finfo(torch.float32).min, -torch.inf]
)
def test_whatever_leaves_no_weight_is_a_mask(added):
    """Models that are not ours add many a number; a row with nothing to see is uniform there."""
    query, key = dense.normal(2, 3, 5, 4), dense.normal(2, 3, 5, 4)
    keep = dense.padded_mask(2, 5, 3).keep
    bias = torch.zeros(2, 1, 5, 5).double().masked_fill(~keep[:, None, None], added)
    if added > -1e9:
        bias[1, :, 3:] = added
    layer, x = drawn(GatedFlow(6, 3)), dense.normal(2, 5, 6)
    found = layer(x, Dot(query, key, bias=bias, scale=1.0))
    truth = layer(x[1:, :3], Dot(query[1:, :, :3], key[1:, :, :3], scale=1.0))
    torch.testing.assert_close(found[1:, :3], truth, atol=1e-10, rtol=0)


def test_a_bias_by_distance_is_no_mask():
    bias = -4.0 * (torch.arange(300)[:, None] - torch.arange(300)).abs().double()
    recipe = Dot(dense.normal(1, 1, 300, 4), dense.normal(1, 1, 300, 4), bias=bias[None, None])
    assert source_of(recipe).alive.all()


def test_records_of_fast_paths_have_no_bias_of_scores():
    """The bias of such a recipe is that of its projections."""
    model, x = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval(), torch.randn(2, 5, 6)
    with torch.no_grad(), regard.capture(model) as trace:
        model(x)
    assert type(trace[0].recipe).__name__ == "Projected"
    assert GatedFlow(6, 2)(x, trace[0]).shape == (2, 5, 6)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_records_know_their_padding(implementation):
    """A matrix that an eager model made tells by its zeros what was masked."""
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=12,
        attn_implementation=implementation,
    )
    model, layer = transformers.BertModel(config).eval(), drawn(GatedFlow(6, 3))
    words, keep, x = torch.randint(0, 50, (2, 5)), torch.ones(2, 5).long(), dense.normal(2, 5, 6)
    keep[1, 3:] = 0
    with torch.no_grad():
        with regard.capture(model) as padded:
            model(words, attention_mask=keep)
        with regard.capture(model) as alone:
            model(words[1:, :3])
        truth = layer(x[1:, :3], alone[0])
        x[1, 3:] = torch.nan
        found = layer(x, padded[0])
    torch.testing.assert_close(found[1:, :3], truth, atol=1e-5, rtol=0)
