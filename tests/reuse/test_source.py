"""What may be handed over as weights: all ways say the same."""

import pytest
import reuse_dense as dense
import torch
from torch import nn

import regard
from regard import masks
from regard.errors import DtypeError, RegardError, ShapeError, UnavailableError
from regard.mechanisms import MultiHead
from regard.recipe import Given
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
        (weights[0], ShapeError, r"weights have 3 axes \(3, 5, 5\); four are \(batch, head, query"),
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
