"""Attention under conditions: inference mode, autocast, other devices, large numbers, memory."""

import pytest
import torch

import regard
from regard import masks
from regard.kernel import dense, tile_walk
from regard.recipe import Dot


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    "reducer", [regard.ReceivedAttention(), regard.HeadMean(), regard.HeadMax()]
)
def test_inference_mode_with_threads(monkeypatch, reducer):
    monkeypatch.setattr(tile_walk, "_WORTH_THREADS", 0)
    x = torch.randn(1, 1, 80, 8)
    want = regard.attend(x, x, x, reduce=[reducer]).reductions[0]
    with torch.inference_mode():
        recipe = regard.attend(x, x, x, reduce=[regard.QueryRows([0])]).recipe
        got = regard.reduce(recipe, [reducer], tile=(16, 16))[0]
    torch.testing.assert_close(got.clone(), want)


def test_autocast_rounds_no_weights():
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    calm = regard.attend(q, k, v, weights=True, reduce=[regard.Entropy(), regard.HeadMean()])
    with torch.autocast("cpu", torch.bfloat16):
        found = regard.attend(q, k, v, weights=True, reduce=[regard.Entropy(), regard.HeadMean()])
        truth = dense.attention(q, k, v)[1]
    torch.testing.assert_close(found.weights, calm.weights)
    torch.testing.assert_close(truth, calm.weights)
    torch.testing.assert_close(found.reductions, calm.reductions)


MASKS = {
    "causal and pairs": lambda: masks.causal() & masks.pairs(torch.ones(1, 1, 5, 5).bool()),
    "causal and segments": lambda: masks.causal() & masks.segments(torch.zeros(2, 5).long()),
    "window or pairs": lambda: masks.window(1, 1) | masks.pairs(torch.eye(5).bool()[None, None]),
    "not causal": lambda: ~masks.causal() & masks.padding(torch.ones(2, 5).bool()),
    "window and padding": lambda: masks.window(1, 0) & masks.padding(torch.ones(2, 5).bool()),
    "window": lambda: masks.window(1, 0),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_mask_works_on_another_device(mask):
    """`meta` stands in for a GPU: a tensor made on the wrong device is an error there too."""
    q = torch.empty(2, 4, 5, 8, device="meta")
    there = mask().to("meta")
    attended = regard.attend(q, q[:, :2], q[:, :2], mask=there, causal=True, weights=True)
    assert attended.output.shape == (2, 4, 5, 8)
    assert attended.weights.device.type == "meta"
    module = regard.mechanisms.MultiHead(8, 2, window=(2, 1)).to("meta")
    output = module(torch.empty(2, 5, 8, device="meta"), mask=there).output
    assert output.shape == (2, 5, 8) and output.device.type == "meta"


@pytest.mark.parametrize("size", [10.0, 300.0, 3e3, 3e4])
@pytest.mark.parametrize("tile", [None, (7, 11)])
def test_large_scores_give_the_weights_of_the_dense_way(size, tile):
    q, k = torch.randn(1, 2, 30, 16) * size, torch.randn(1, 2, 30, 16)
    recipe = Dot(q, k, k, scale=1.0).with_lse()
    truth = dense.attention(q.double(), k.double(), k.double(), scale=1.0)[1].float()
    mean, largest = regard.reduce(recipe, [regard.HeadMean(), regard.HeadMax()], tile=tile)
    torch.testing.assert_close(mean, truth.mean(1), atol=2e-3, rtol=0)
    torch.testing.assert_close(largest, truth.amax(1), atol=2e-3, rtol=0)


def test_top_k_of_many_keys_takes_no_square_of_memory():
    q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 200_000, 8)
    (top,) = regard.attend(q, k, k, reduce=[regard.TopK(3)]).reductions
    scores = (q @ k.mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(top.weights, scores.topk(3).values)


def test_half_precision_bias_is_not_rounded_to_forbidden():
    q = torch.randn(1, 1, 3, 8).half()
    bias = torch.full((1, 1, 3, 3), -1e9)
    attended = regard.attend(q, q, q, bias=bias, dropout=1e-9, weights=True)
    torch.testing.assert_close(attended.weights, torch.full((1, 1, 3, 3), 1 / 3))
    mean = q.mean(2, keepdim=True).expand_as(q)
    torch.testing.assert_close(attended.output, mean, atol=2e-3, rtol=0)


@pytest.mark.parametrize(("sink", "scale"), [(3e4, None), (-3e4, None), (0.0, 0.0)])
def test_extreme_sinks(sink, scale):
    q = torch.randn(1, 2, 4, 8).half()
    attended = regard.attend(q, q, q, sink=torch.full((2,), sink), scale=scale, weights=True)
    torch.testing.assert_close(
        attended.output.float(), attended.weights @ q.float(), atol=2e-3, rtol=0
    )


def test_alibi_is_computed_in_float32():
    from regard.kernel.position_encodings import AlibiBias, alibi_slopes
    from regard.types import whole

    exact = AlibiBias(alibi_slopes(8)).block(whole(700, 700))
    half = AlibiBias(alibi_slopes(8).bfloat16()).block(whole(700, 700))
    torch.testing.assert_close(half, exact)  # the slopes themselves are powers of two
