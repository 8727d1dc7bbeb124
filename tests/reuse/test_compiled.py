"""Reuse layers in compiled graphs: one graph, the same numbers, at several lengths."""

import pytest
import reuse_dense as dense
import torch
from torch import nn

from regard.errors import UnavailableError
from regard.mechanisms import MultiHead
from regard.reuse import (
    Concatenation,
    GatedFlow,
    LearnedHeadMix,
    LowRankCode,
    OffsetBins,
    ProjectedRows,
    WeightedAggregation,
)


class Twice(nn.Module):
    """An attention and a layer that uses its weights again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.attn, self.layer = MultiHead(8, 2), layer

    def forward(self, x, mask):
        return self.layer(x, self.attn(x, mask=mask, weights=True))


def low_rank() -> LowRankCode:
    code = LowRankCode(2, 2, cells=4)
    code.fit(dense.weights_of(2, 2, 8, 8).float())
    return code


BUILDS = {
    "aggregation": lambda: WeightedAggregation(8, 2),
    "gate": lambda: GatedFlow(8, 2, heads=LearnedHeadMix(2)),
    "rows": lambda: Concatenation(8, ProjectedRows(2, 4, cells=4)),
    "low rank": lambda: Concatenation(8, low_rank()),
    "offsets": lambda: Concatenation(8, OffsetBins(2, 4)),
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", BUILDS)
def test_one_graph(name):
    model = Twice(BUILDS[name]())
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (6, 9):
        mask = dense.padded_mask(2, length, 4)
        x = torch.randn(2, length, 8, requires_grad=True)
        truth, found = model(x, mask), compiled(x, mask)
        torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)
        weight = model.attn.to_query.weight
        (wanted,) = torch.autograd.grad(truth.sin().sum(), weight)
        (got,) = torch.autograd.grad(found.sin().sum(), weight)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.compiled
def test_a_code_that_is_not_fitted_is_refused_in_a_graph():
    layer, fitted = Concatenation(8, LowRankCode(2, 2, cells=4)), Concatenation(8, low_rank())
    x, weights = torch.randn(2, 6, 8), torch.randn(2, 2, 6, 6).softmax(-1)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    with pytest.raises(UnavailableError, match="LowRankCode: not fitted yet"):
        compiled(x, weights)
    layer.load_state_dict(fitted.state_dict())
    torch.testing.assert_close(compiled(x, weights), fitted(x, weights))


@pytest.mark.compiled
def test_a_plain_tensor_in_a_graph():
    layer = GatedFlow(8, 2)
    nn.init.normal_(layer.gain)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, weights = torch.randn(2, 6, 8), torch.randn(2, 2, 6, 6).softmax(-1)
    mask = dense.padded_mask(2, 6, 4)
    truth = layer(x, weights, mask=mask)
    torch.testing.assert_close(compiled(x, weights, mask=mask), truth, atol=1e-6, rtol=1e-5)
