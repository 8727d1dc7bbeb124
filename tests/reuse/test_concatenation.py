"""Codes of weights against plain loops; one length in training, others afterwards."""

import pytest
import reuse_dense as dense
import torch
from torch import nn

from regard import masks
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.mechanisms import MultiHead
from regard.reuse import (
    Concatenation,
    LearnedHeadMix,
    LowRankCode,
    OffsetBins,
    PositionSummaries,
    ProjectedRows,
    interpolated,
    pooled,
    source_of,
)

STARTS = [-3, -1, 0, 1, 2, 5]


def codes() -> dict[str, nn.Module]:
    low = LowRankCode(3, 2, cells=6)
    low.fit(dense.weights_of(4, 3, 12, 12))
    made = {
        "summaries": PositionSummaries(3),
        "pooled": ProjectedRows(3, 4, cells=6),
        "interpolated": ProjectedRows(3, 4, cells=6, resample=interpolated),
        "low rank": low,
        "offsets": OffsetBins(3, 4, starts=STARTS),
        "mixed": OffsetBins(3, 4, heads=LearnedHeadMix(3)),
    }
    return {name: code.double() for name, code in made.items()}


@pytest.mark.parametrize("keys", [1, 4, 6, 17])
@pytest.mark.parametrize(
    ("resample", "truth"), [(pooled, dense.pooled), (interpolated, dense.interpolated)]
)
def test_resampled_rows(resample, truth, keys):
    weights = dense.weights_of(keys=keys)
    code = ProjectedRows(3, 4, side="query", cells=6, resample=resample).double()
    found = code(source_of(weights))
    rows = torch.tensor(
        [[[truth(row, 6) for row in head] for head in example] for example in weights]
    ).double()
    by_hand = sum(rows[:, head] @ code.table[head] for head in range(3))
    torch.testing.assert_close(found, by_hand, atol=1e-6, rtol=0)
    if resample is pooled:
        torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("align", ["start", "end"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 6), (6, 2), (3, 0)])
def test_offsets(queries, keys, align):
    weights = dense.weights_of(queries=queries, keys=keys)
    code = OffsetBins(3, 4, side="query", starts=STARTS, align=align).double()
    shift = keys - queries if align == "end" else 0
    mass = torch.stack(
        [torch.stack([dense.offset_mass(m, STARTS, shift) for m in one]) for one in weights]
    )
    torch.testing.assert_close(code.mass(weights), mass, atol=1e-10, rtol=0)
    by_hand = sum(mass[:, head] @ code.table[head] for head in range(3))
    torch.testing.assert_close(code(source_of(weights)), by_hand, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", codes())
def test_gradients_are_right(name):
    code = codes()[name]
    mask = masks.padding(torch.tensor([[True, True, True, False]])) & masks.window(2, 1)
    scores = dense.normal(1, 3, 4, 4).requires_grad_()
    call = lambda scores: code(source_of(scores.softmax(-1), mask=mask))
    torch.autograd.gradcheck(call, scores)


def test_low_rank_is_a_principal_component_analysis():
    weights = dense.weights_of(4, 2, 9, 9)
    exact, random = LowRankCode(2, 3, cells=5).double(), LowRankCode(2, 3, cells=5).double()
    for example in weights:  # streamed, in batches of one
        exact.observe(example[None])
    exact.settle()
    state = torch.get_rng_state()
    random.fit(weights)
    assert torch.equal(torch.get_rng_state(), state)
    for head in range(2):
        rows = torch.tensor([dense.pooled(row, 5) for one in weights[:, head] for row in one])
        rows = rows.double()
        centred = rows - rows.mean(0)
        _, values, directions = torch.linalg.svd(centred, full_matrices=False)
        shares = (values**2 / (values**2).sum())[:3]
        for code in (exact, random):
            torch.testing.assert_close(code.mean[head], rows.mean(0), atol=1e-6, rtol=0)
            torch.testing.assert_close(code.explained[head], shares, atol=1e-5, rtol=0)
            projector = code.basis[head] @ code.basis[head].T
            truth = directions[:3].T @ directions[:3]
            torch.testing.assert_close(projector, truth, atol=1e-5, rtol=0)
            coded = code(source_of(weights))[..., 3 * head : 3 * head + 3].flatten(0, 1)
            mine = (rows - code.mean[head]) @ code.basis[head]
            torch.testing.assert_close(coded, mine, atol=1e-6, rtol=0)
    torch.testing.assert_close(exact.basis, random.basis, atol=1e-5, rtol=0)


def test_low_rank_is_saved_with_the_module():
    weights = dense.weights_of(4, 3, 9, 9)
    layer = Concatenation(6, LowRankCode(3, 2, cells=5)).double()
    x = dense.normal(4, 9, 6)
    with pytest.raises(UnavailableError, match=r"not fitted yet; call fit\(weights\), or observe"):
        layer(x, weights)
    layer.code.fit(weights)
    other = Concatenation(6, LowRankCode(3, 2, cells=5)).double()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x, weights), layer(x, weights))


def test_padding_does_not_change_a_fit():
    weights = dense.weights_of(2, 3, 9, 9)
    mask = dense.padded_mask(2, 9, 6)
    short = weights[1:, :, :6, :6].clone()
    weights[1, :, 6:], weights[1, :, :, 6:] = torch.nan, torch.nan
    for first, second in ((weights[:1], short), (weights, None)):
        code = LowRankCode(3, 2, cells=5)
        if second is None:
            code.observe(first, mask=mask)
        else:
            code.observe(first)
            code.observe(second)
        code.settle()
        if second is not None:
            truth = code.basis
    torch.testing.assert_close(code.basis, truth, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", codes())
def test_padding_changes_nothing(name):
    weights, x = dense.weights_of(), dense.normal(2, 5, 6)
    layer, mask = Concatenation(6, codes()[name]).double(), dense.padded_mask(2, 5, 3)
    short = weights[1:, :, :3, :3].clone()
    truth = layer(x[1:, :3], short)
    for rubbish in (1e4, torch.nan):
        x[1, 3:] = rubbish
        weights[1, :, :, 3:], weights[1, :, 3:] = rubbish, rubbish
        given, features = weights.clone().requires_grad_(), x.clone().requires_grad_()
        layer.zero_grad()
        found = layer(features, given, mask=mask)
        torch.testing.assert_close(found[1:, :3], truth, atol=1e-10, rtol=0)
        assert found.isfinite().all()
        found.square().sum().backward()
        for tensor in (given, features, *layer.parameters()):
            assert tensor.grad is not None and tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", codes())
def test_dtypes(name, dtype):
    weights, x = dense.weights_of(), dense.normal(2, 5, 6)
    layer = Concatenation(6, codes()[name]).double()
    truth = layer(x, weights)
    layer = layer.to(dtype)
    found = layer(x.to(dtype), weights.to(dtype))
    assert found.dtype == dtype
    assert torch.equal(found[..., :6], x.to(dtype))
    tolerance = 1e-4 if dtype == torch.float32 else 0.06
    torch.testing.assert_close(found.double(), truth, atol=tolerance, rtol=tolerance)


def looking(length: int, batch: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of one head that look to the left, to the right, or all around, and which it is."""
    kind = torch.randint(3, (batch, length))
    place = torch.arange(length)
    nearby = -(place - place[:, None]).abs().float() / 3
    left = nearby.masked_fill(place >= place[:, None].clamp_min(1), -torch.inf)
    right = nearby.masked_fill(place <= place[:, None].clamp_max(length - 2), -torch.inf)
    around = torch.zeros(length, length)
    scores = torch.stack([left, right, around])[kind, place] + 0.3 * torch.randn(
        batch, length, length
    )
    inside = (place > 2) & (place < length - 3)
    return scores.softmax(-1)[:, None], torch.where(inside, kind, -100)


@pytest.mark.parametrize(
    ("build", "good"),
    [
        (lambda: PositionSummaries(1), 0.6),  # tells near from far, hardly left from right
        (lambda: ProjectedRows(1, 16, cells=8), 0.8),
        (lambda: LowRankCode(1, 6, cells=8), 0.8),
        (lambda: OffsetBins(1, 8), 0.75),
    ],
)
def test_trained_on_one_length_good_on_others(build, good):
    """What a position looks at, read off the channels by a small network that saw one length."""
    layer = Concatenation(2, build())
    if isinstance(layer.code, LowRankCode):
        layer.code.fit(looking(24)[0])
    read = nn.Sequential(nn.Linear(layer.output_width, 32), nn.ReLU(), nn.Linear(32, 3))
    parameters = [*layer.parameters(), *read.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.02)
    for _ in range(150):
        weights, kind = looking(24)
        place = torch.linspace(0, 1, 24).expand(16, -1)
        features = torch.stack([place, 1 - place], -1)
        scores = read(layer(features, weights))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), kind.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for length in (12, 24, 48, 70):
        weights, kind = looking(length)
        place = torch.linspace(0, 1, length).expand(16, -1)
        found = read(layer(torch.stack([place, 1 - place], -1), weights)).argmax(-1)
        right = (found == kind)[kind >= 0].float().mean()
        assert right > good, f"length {length}: {right:.2f}"
        others = weights.roll(1, 0)  # another example's: what is read is the weights, not the place
        found = read(layer(torch.stack([place, 1 - place], -1), others)).argmax(-1)
        assert (found == kind)[kind >= 0].float().mean() < 0.5


def test_cross_attention():
    weights = dense.weights_of(queries=4, keys=7)
    for code in (
        PositionSummaries(3, side="query"),
        ProjectedRows(3, 4, side="query"),
        OffsetBins(3, 4, side="query"),
    ):
        layer = Concatenation(6, code).double()
        assert layer(dense.normal(2, 4, 6), weights).shape == (2, 4, layer.output_width)
    layer = Concatenation(6, PositionSummaries(3, side="key")).double()
    assert layer(dense.normal(2, 7, 6), weights).shape == (2, 7, 9)


def test_wrong_parts(without_shape_checks):
    for build, message in (
        (lambda: Concatenation(6, nn.Identity()), r"code=Identity\(\), expected a PositionSummari"),
        (lambda: ProjectedRows(3, 4, cells=0), "cells=0, expected a whole number from 1 on"),
        (lambda: ProjectedRows(3, 4, side="key"), "side='key', expected 'query' or 'self': rows"),
        (lambda: LowRankCode(3, 9, cells=8), "rank=9, expected from 1 to 8, the cells"),
        (lambda: LowRankCode(3, 2).settle(), r"settle\(\) before any observe"),
        (lambda: LowRankCode(3, 8).fit(dense.weights_of(1, 3, 4, 4)), "4 rows of weights, expec"),
        (lambda: OffsetBins(3, 4, starts=[1, 0]), r"starts=\[1, 0\], expected rising whole"),
        (lambda: OffsetBins(3, 4, align="left"), "align='left', expected 'start' or 'end'"),
        (lambda: OffsetBins(3, 4, heads="sum"), "OffsetBins: heads='sum', expected 'mean', 'max'"),
    ):
        with pytest.raises(RegardError, match=message):
            build()


def test_wrong_sizes(without_shape_checks):
    x, weights = dense.normal(2, 4, 6), dense.weights_of(queries=4, keys=7)
    layer = Concatenation(6, OffsetBins(3, 4)).double()
    text = "Concatenation: side='self' needs queries and keys that.* say side='query'$"
    with pytest.raises(ShapeError, match=text):
        layer(x, weights)
    summaries = Concatenation(6, PositionSummaries(3)).double()
    with pytest.raises(ShapeError, match=r"Concatenation: .* say side='query' or side='key'$"):
        summaries(x, weights)
    layer = Concatenation(6, OffsetBins(2, 4, side="query")).double()
    with pytest.raises(ShapeError, match="OffsetBins: weights: axis head has size 3, expected 2"):
        layer(x, weights)
    with pytest.raises(ShapeError, match="axis position has size 2, expected 4 as the queries of"):
        layer(x[:, :2], weights)


def test_rows_of_padding_are_not_fitted():
    """An attention gives padding rows too; they say nothing of what real positions look at."""
    attn, x = MultiHead(6, 3).double(), dense.normal(2, 9, 6)
    found, truth = LowRankCode(3, 2, cells=5), LowRankCode(3, 2, cells=5)
    found.fit(attn(x, mask=dense.padded_mask(2, 9, 4), weights=True))
    truth.observe(attn(x[:1], weights=True))
    truth.observe(attn(x[1:, :4], weights=True))
    truth.settle()
    torch.testing.assert_close(found.basis, truth.basis, atol=1e-5, rtol=0)
