"""What later positions reach in a causal model: which layers let them, and what is refused."""

import pytest
import reuse_dense as dense
import torch
import transformers
from torch import nn

import regard
from regard import masks
from regard.errors import UnavailableError
from regard.mechanisms import MultiHead
from regard.reuse import (
    Concatenation,
    GatedFlow,
    OffsetBins,
    PositionSummaries,
    ProjectedRows,
    WeightedAggregation,
    source_of,
)

SAFE = ["entropy", "strongest", "self_weight"]
TRIANGLE = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]


def drawn(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double()


def attention() -> MultiHead:
    return drawn(MultiHead(6, 3))


@pytest.mark.parametrize(
    "build",
    [
        lambda: WeightedAggregation(6, 3),
        lambda: GatedFlow(6, 3, summaries=SAFE),
        lambda: GatedFlow(6, 3, side="query"),
        lambda: Concatenation(6, PositionSummaries(3, summaries=SAFE)),
        lambda: Concatenation(6, OffsetBins(3, 4)),
    ],
)
def test_the_future_reaches_nothing(build):
    layer, attn, x = drawn(build()), attention(), dense.normal(2, 8, 6)
    changed = torch.cat([x[:, :5], -3 * x[:, 5:]], 1)
    outputs = [layer(y, attn(y, causal=True, weights=True))[:, :5] for y in (x, changed)]
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=0)
    short = layer(x[:, :5], attn(x[:, :5], causal=True, weights=True))
    torch.testing.assert_close(short, outputs[0], atol=1e-12, rtol=0)


def test_received_would_let_it_in():
    """Why it is refused: as a plain tensor, which knows of no mask, the same weights show it."""
    layer, attn, x = drawn(GatedFlow(6, 3)), attention(), dense.normal(2, 8, 6)
    changed = torch.cat([x[:, :5], -3 * x[:, 5:]], 1)
    first, second = (
        layer(y, attn(y, causal=True, weights=True).weights)[:, :5] for y in (x, changed)
    )
    assert (first - second).abs().max() > 1e-3


def test_cells_depend_on_the_length():
    """Rows in cells know how long the text is: a prefix is told otherwise."""
    layer, attn, x = (
        drawn(Concatenation(6, ProjectedRows(3, 4))),
        attention(),
        dense.normal(1, 8, 6),
    )
    whole = layer(x, attn(x, causal=True, weights=True))[:, :5]
    prefix = layer(x[:, :5], attn(x[:, :5], causal=True, weights=True))
    assert (whole - prefix).abs().max() > 1e-3


@pytest.mark.parametrize("side", ["self", "key"])
@pytest.mark.parametrize("how", ["causal", "window", "pairs", "padded", "reuse", "record"])
def test_received_meets_causal_weights(how, side):
    attn, x = attention(), dense.normal(2, 5, 6)
    layer = GatedFlow(6, 3, side=side).double()
    padded = dense.padded_mask(2, 5, 3)
    given = {
        "causal": {"causal": True},
        "window": {"mask": masks.window(2, 0)},
        "pairs": {"mask": TRIANGLE},
        "padded": {"mask": padded, "causal": True},
    }.get(how, {})
    later = {"causal": True} if how == "reuse" else {}
    if how == "record":
        with regard.capture(attn) as trace:
            attn(x, causal=True)
        weights = trace[0]
    else:
        weights = attn(x, weights=True, **given)
    remedy = r"summaries=\['entropy', 'strongest', 'self_weight'\]" if side == "self" else "side="
    text = rf"are causal, and 'received' sums over later queries too: .* Take {remedy}"
    with pytest.raises(UnavailableError, match=f"GatedFlow: .*{text}"):
        layer(x, weights, **later)
    assert layer(x, attn(x, weights=True).weights).shape == x.shape


@pytest.mark.parametrize(
    "mask",
    [
        None,
        dense.padded_mask(2, 5, 3),
        masks.pairs(dense.padded_mask(2, 5, 1).keep[:, None, None].expand(2, 1, 5, 5)),
        masks.lengths(torch.tensor([1, 1]), 5),
        masks.window(2, 2),
        masks.segments(torch.tensor([[0, 0, 1, 1, 1]])),
        masks.pairs(TRIANGLE.mT),
    ],
)
def test_what_is_not_causal(mask):
    attn, x = attention(), dense.normal(2, 5, 6)
    assert not source_of(attn(x, mask=mask, weights=True)).causal
    assert GatedFlow(6, 3).double()(x, attn(x, mask=mask, weights=True)).shape == x.shape


def test_cross_attention_and_one_position_are_not_causal():
    attn, x = attention(), dense.normal(2, 5, 6)
    crossing = attn(x, dense.normal(2, 5, 6), causal=True, weights=True)
    assert not source_of(crossing).causal
    assert GatedFlow(6, 3, side="key").double()(x, crossing).shape == x.shape
    assert not source_of(attn(x[:, :1], causal=True, weights=True)).causal


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_records_of_gpt2(implementation, padded):
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=12,
        n_layer=1,
        n_head=3,
        attn_implementation=implementation,
    )
    model = transformers.GPT2Model(config).eval()
    keep = torch.ones(2, 5, dtype=torch.long)
    keep[1, 3:] = 0
    with regard.capture(model) as trace, torch.no_grad():
        model(torch.randint(0, 50, (2, 5)), attention_mask=keep if padded else None)
    with pytest.raises(UnavailableError, match="are causal, and 'received'"):
        GatedFlow(6, 3)(torch.randn(2, 5, 6), trace[0])
    assert GatedFlow(6, 3, summaries=SAFE)(torch.randn(2, 5, 6), trace[0]).shape == (2, 5, 6)
