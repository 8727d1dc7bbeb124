"""Sizes and parts that make no sense are refused where they are given."""

import pytest
import reuse_dense as dense
import torch

from regard.errors import RegardError
from regard.reuse import (
    Concatenation,
    GatedFlow,
    LearnedHeadMix,
    LowRankCode,
    OffsetBins,
    OwnProjections,
    PositionSummaries,
    ProjectedRows,
    WeightedAggregation,
    source_of,
)

WRONG = {
    "WeightedAggregation: n_heads=0,": lambda: WeightedAggregation(16, 0),
    "WeightedAggregation: width=0,": lambda: WeightedAggregation(0, 4),
    "WeightedAggregation: output_width=0,": lambda: WeightedAggregation(16, 4, output_width=0),
    "GatedFlow: width=0,": lambda: GatedFlow(0, 4),
    "GatedFlow: n_heads=0,": lambda: GatedFlow(16, 0),
    "Concatenation: width=-1,": lambda: Concatenation(-1, OffsetBins(4, 2)),
    "PositionSummaries: n_heads=0,": lambda: PositionSummaries(0),
    "OffsetBins: channels=0,": lambda: OffsetBins(4, 0),
    "OffsetBins: channels=-1,": lambda: OffsetBins(4, -1),
    "OffsetBins: n_heads=True,": lambda: OffsetBins(True, 4),
    "ProjectedRows: cells=2.5,": lambda: ProjectedRows(4, 4, cells=2.5),
    "ProjectedRows: channels=0,": lambda: ProjectedRows(4, 0),
    "LowRankCode: rank=0,": lambda: LowRankCode(4, 0),
    "LowRankCode: cells=0,": lambda: LowRankCode(4, 1, cells=0),
    "LearnedHeadMix: n_heads=0,": lambda: LearnedHeadMix(0),
    "OwnProjections: n_heads=0,": lambda: OwnProjections(16, 0),
    "OwnProjections: head_width=0,": lambda: OwnProjections(16, 4, head_width=0),
}


@pytest.mark.parametrize("text", WRONG)
def test_sizes(text, without_shape_checks):
    with pytest.raises(RegardError, match=f"^{text} expected a whole number from 1 on$"):
        WRONG[text]()


def test_starts(without_shape_checks):
    with pytest.raises(RegardError, match=r"starts=\[0.5, 1.5\], expected rising whole numbers"):
        OffsetBins(4, 4, starts=[0.5, 1.5])
    with pytest.raises(RegardError, match=r"starts=\[\], expected rising whole numbers"):
        OffsetBins(4, 4, starts=torch.tensor([]))
    assert OffsetBins(4, 4, starts=torch.tensor([0, 2])).bins == 3


def test_one_head_is_weighed_too():
    weights = dense.weights_of(heads=1)
    part = PositionSummaries(1, summaries=["strongest"], heads=torch.tensor([0.5]))
    truth = 0.5 * weights.amax(-1).mT
    torch.testing.assert_close(part(source_of(weights)), truth, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "build",
    [
        lambda how: PositionSummaries(
            3, heads=torch.tensor([0.5, 0.3, 0.2] if how else [0.1, 0.2, 0.7])
        ),
        lambda how: OffsetBins(3, 4, starts=[-1, 0] if how else [0, 1]),
    ],
)
def test_what_a_code_is_made_of_is_saved_with_it(build):
    first, second, source = build(True), build(False), source_of(dense.weights_of())
    second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
    assert torch.equal(first(source), second(source))


def test_one_head_of_a_learned_mix_has_a_gradient():
    layer = GatedFlow(6, 1, heads=LearnedHeadMix(1)).double()
    torch.nn.init.ones_(layer.gain)
    layer(dense.normal(2, 5, 6), dense.weights_of(heads=1)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
