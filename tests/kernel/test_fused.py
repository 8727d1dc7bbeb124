"""The fused path against the truth: outputs, log-sum-exps and gradients."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import masks
from regard.kernel import dense, fused
from regard.kernel.position_encodings import AlibiBias, RelativeTable
from regard.recipe import Dot
from regard.types import whole

BATCH, HEADS = 2, 4
SHAPES = {  # queries, keys, groups, width, value width
    "Q<K": (3, 7, 2, 6, 3),
    "Q=K": (5, 5, 4, 4, 4),
    "Q>K": (7, 4, 1, 3, 5),
}
MASKS = {
    "none": lambda q, k: None,
    "causal": lambda q, k: masks.causal(),
    "padding": lambda q, k: _padding(k),
    "causal&padding": lambda q, k: masks.causal() & _padding(k),
    "window": lambda q, k: masks.window(1, 1),
    "window&padding": lambda q, k: masks.window(2, None) & _padding(k),
    "pairs": lambda q, k: masks.pairs(random(BATCH, HEADS, q, k, seed=9) > 0),
    "pairs-of-keys": lambda q, k: masks.pairs(random(1, HEADS, 1, k, seed=9) > -1),
    "segments": lambda q, k: _segments(q, k),
    "segments|causal": lambda q, k: _segments(q, k) | masks.causal(),
    "~causal": lambda q, k: ~masks.causal(),
    "~(segments&padding)&causal": lambda q, k: ~(_segments(q, k) & _padding(k)) & masks.causal(),
    "nothing": lambda q, k: masks.pairs(torch.zeros(1, 1, 1, k, dtype=torch.bool)),
}
BIASES = {
    "none": lambda q, k: None,
    "full": lambda q, k: random(BATCH, HEADS, q, k, seed=5),
    "key": lambda q, k: random(1, 1, 1, k, seed=5),
    "query": lambda q, k: random(BATCH, 1, q, 1, seed=5),
    "head": lambda q, k: random(1, HEADS, 1, 1, seed=5),
    "trained": lambda q, k: random(1, HEADS, q, k, seed=5).requires_grad_(),
    "alibi": lambda q, k: AlibiBias(random(HEADS, seed=5)),
    "relative": lambda q, k: RelativeTable(random(HEADS, 5, seed=5).requires_grad_()),
}


def random(*shape, seed=0, dtype=torch.float64):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def _padding(keys):
    return masks.lengths(torch.tensor([keys - 1, keys - 2]), keys)


def _segments(queries, keys):
    return masks.segments(torch.arange(queries)[None] // 2, torch.arange(keys)[None] // 2)


def recipe_of(shape, mask="none", bias="none", sink=False, dtype=torch.float64):
    queries, keys, groups, width, value_width = SHAPES[shape]
    return Dot(
        random(BATCH, HEADS, queries, width, seed=1, dtype=dtype).requires_grad_(),
        random(BATCH, groups, keys, width, seed=2, dtype=dtype).requires_grad_(),
        random(BATCH, groups, keys, value_width, seed=3, dtype=dtype).requires_grad_(),
        mask=MASKS[mask](queries, keys),
        bias=BIASES[bias](queries, keys),
        scale=0.6,
        sink=random(HEADS, seed=4, dtype=dtype).requires_grad_() if sink else None,
    )


def truth(recipe):
    """Output, log-sum-exp by dense formulas."""
    _, heads, queries, keys = recipe.shape
    mask = None if recipe.mask is None else recipe.mask.dense(queries, keys)
    bias = recipe.bias
    if bias is not None and not isinstance(bias, torch.Tensor):
        bias = bias.block(whole(queries, keys))
    output, _ = dense.attention(
        recipe.query,
        recipe.key,
        recipe.value,
        mask=mask,
        bias=bias,
        scale=recipe.scale,
        sink=recipe.sink,
    )
    with torch.no_grad():
        key = recipe.key.repeat_interleave(heads // recipe.key.shape[1], 1).double()
        scores = recipe.query.double() @ key.mT * recipe.scale
        scores = scores if bias is None else scores + bias
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        if recipe.sink is not None:
            column = recipe.sink.double()[:, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column], -1)
        lse = scores.logsumexp(-1)
    return output, lse.masked_fill(lse == -torch.inf, 0.0)


def leaves(recipe):
    held = [recipe.query, recipe.key, recipe.value, recipe.sink]
    bias = recipe.bias.table if isinstance(recipe.bias, RelativeTable) else recipe.bias
    return [x for x in (*held, bias) if isinstance(x, torch.Tensor) and x.requires_grad]


def same_as_the_truth(recipe, tolerance=1e-8):
    (output, lse), (expected, expected_lse) = fused.attention(recipe), truth(recipe)
    close = {"atol": tolerance, "rtol": tolerance}
    torch.testing.assert_close(output, expected, **close)
    if lse is not None:
        torch.testing.assert_close(lse.double(), expected_lse, **close)
    upstream = random(*output.shape, seed=8, dtype=output.dtype)
    # A mask that leaves nothing leaves no path to the bias either: no gradient means zero.
    got = torch.autograd.grad(output, leaves(recipe), upstream, materialize_grads=True)
    wanted = torch.autograd.grad(expected, leaves(recipe), upstream)
    torch.testing.assert_close(got, wanted, **close)
    return lse


@pytest.mark.parametrize("sink", [False, True], ids=["", "sink"])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_dense_with_gradients(shape, mask, bias, sink):
    lse = same_as_the_truth(recipe_of(shape, mask, bias, sink))
    assert (lse is None) == (bias in ("trained", "relative"))  # flash gives it, else nobody


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 4e-2), (torch.float16, 5e-3)],
    ids=str,
)
@pytest.mark.parametrize("bias", ["none", "full", "trained"])
@pytest.mark.parametrize("mask", ["none", "causal", "causal&padding", "window", "pairs"])
@pytest.mark.parametrize("shape", SHAPES)
def test_other_dtypes(shape, mask, bias, dtype, tolerance):
    recipe = recipe_of(shape, mask, bias, sink=True, dtype=dtype)
    output, lse = fused.attention(recipe)
    expected, expected_lse = truth(recipe)
    assert output.dtype == dtype and output.isfinite().all()
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)
    if lse is not None:
        assert lse.dtype == torch.float32
        torch.testing.assert_close(lse.double(), expected_lse, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("trained", [False, True], ids=["flash", "sdpa"])
def test_half_precision_takes_scores_beyond_its_own_range(dtype, trained):
    query = (100 + random(1, 2, 6, 64)).to(dtype)  # scores ~ 8e4, beyond float16
    value = random(1, 2, 6, 64, seed=1).to(dtype)
    bias = torch.zeros(1, 1, 1, 6, requires_grad=True) if trained else None
    output, _ = fused.attention(Dot(query, query, value, bias=bias, scale=0.125))
    expected, _ = dense.attention(query, query, value)
    torch.testing.assert_close(output, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("sink", [None, torch.zeros(2)], ids=["", "sink"])
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
def test_an_empty_query_or_key_gives_zeros_and_gradients(queries, keys, mask, sink):
    query, key = random(1, 2, queries, 4), random(1, 2, keys, 4)
    query, key = query.requires_grad_(), key.requires_grad_()
    output, lse = fused.attention(Dot(query, key, key, mask=mask, sink=sink))
    assert output.shape == (1, 2, queries, 4) and lse.shape == (1, 2, queries)
    assert (output == 0).all()
    grads = torch.autograd.grad(output.sum(), (query, key), materialize_grads=True)
    assert all((grad == 0).all() for grad in grads)


def test_a_sink_of_minus_infinity_is_no_sink():
    plain = recipe_of("Q=K")
    sink = torch.full((HEADS,), -torch.inf, dtype=torch.float64)
    output, _ = fused.attention(Dot(plain.query, plain.key, plain.value, scale=0.6, sink=sink))
    torch.testing.assert_close(output, fused.attention(plain)[0])


class TestKnownWrongCasesOfSdpa:
    """Each is what `F.scaled_dot_product_attention` gets wrong, or refuses, on its own."""

    def test_a_mask_beside_causal_is_intersected(self):
        recipe = recipe_of("Q=K", "causal&padding")
        by_hand = (recipe.query @ recipe.key.mT * 0.6).masked_fill(
            ~(torch.ones(5, 5).tril() * (torch.arange(5) < 3)).bool(), -torch.inf
        )
        output, _ = fused.attention(recipe)
        torch.testing.assert_close(output[1], (by_hand.softmax(-1) @ recipe.value)[1])

    def test_unequal_lengths_are_aligned_at_the_bottom_right(self):
        query, key = random(1, 1, 1, 4), random(1, 1, 3, 4, seed=1)
        last, _ = fused.attention(Dot(query, key, key, mask=masks.causal()))
        torch.testing.assert_close(last, fused.attention(Dot(query, key, key))[0])

    @pytest.mark.parametrize("trained", [False, True], ids=["flash", "sdpa"])
    def test_a_row_that_may_see_nothing_is_zero_and_not_the_mean(self, trained):
        query = random(1, 1, 3, 4).requires_grad_()
        allowed = torch.tensor([[True] * 3, [False] * 3, [True] * 3])[None, None]
        bias = torch.zeros(1, 1, 3, 3, dtype=torch.float64, requires_grad=trained)
        output, _ = fused.attention(Dot(query, query, query, masks.pairs(allowed), bias))
        assert (output[0, 0, 1] == 0).all() and output[0, 0, 0].abs().min() > 0
        assert torch.autograd.grad(output.square().sum(), query)[0].isfinite().all()

    def test_a_bias_of_minus_infinity_forbids_too(self):
        query = random(1, 1, 3, 4).requires_grad_()
        bias = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
        bias[..., 1, :] = -torch.inf
        output, lse = fused.attention(Dot(query, query, query, bias=bias))
        assert (output[0, 0, 1] == 0).all() and lse[0, 0, 1] == 0
        assert torch.autograd.grad(output.square().sum(), query)[0].isfinite().all()

    @pytest.mark.parametrize("trained", [False, True], ids=["flash", "sdpa"])
    def test_nan_in_padding_reaches_nothing(self, trained):
        recipe = recipe_of("Q<K", "causal&padding", "trained" if trained else "none")
        expected = fused.attention(recipe)[0]
        with torch.no_grad():
            recipe.key[0, :, 6:], recipe.value[0, :, 6:] = torch.nan, torch.nan
            recipe.key[1, :, 5:], recipe.value[1, :, 5:] = torch.nan, torch.inf
        output, _ = fused.attention(recipe)
        assert torch.equal(output, expected)
        grads = torch.autograd.grad(output.square().sum(), leaves(recipe))
        assert all(grad.isfinite().all() for grad in grads)


def test_dropout_repeats_with_its_seed_and_stays_masked():
    recipe = recipe_of("Q=K", "causal&padding")
    identity = torch.eye(5, dtype=torch.float64).expand(BATCH, HEADS, 5, 5)
    recipe = Dot(recipe.query, recipe.key, identity, recipe.mask)
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(fused.attention(recipe, dropout=0.5)[0])  # dropped weights themselves
    assert torch.equal(*outputs)
    weights = recipe.weights()
    kept = outputs[0] != 0
    torch.testing.assert_close(outputs[0], torch.where(kept, 2 * weights, 0.0))
    assert 0 < kept.sum() < (weights > 0).sum()


@pytest.mark.parametrize("sink", [False, True], ids=["", "sink"])
@pytest.mark.parametrize("mask", ["none", "causal", "causal&padding", "window"])
def test_double_backward_where_flash_is_switched_off(mask, sink):
    recipe = recipe_of("Q=K", mask, sink=sink)

    def run(query):
        with sdpa_kernel(SDPBackend.MATH):
            return fused.attention(
                Dot(query, recipe.key, recipe.value, recipe.mask, scale=0.6, sink=recipe.sink)
            )[0]

    assert torch.autograd.gradgradcheck(run, recipe.query, fast_mode=True)


@pytest.mark.parametrize("sink", [False, True], ids=["", "sink"])
@pytest.mark.parametrize("bias", [None, AlibiBias(torch.tensor([0.5, 0.1]))], ids=["", "alibi"])
@pytest.mark.parametrize("queries", [150, 200])
@pytest.mark.parametrize(
    "mask",
    [
        masks.window(9, 3),
        masks.causal() & masks.window(5, None),
        masks.causal() & masks.lengths(torch.tensor([170, 60]), 180),
        ~masks.causal(),
    ],
    ids=["window", "causal-window", "causal&padding", "~causal"],
)
def test_strips_equal_one_call(monkeypatch, mask, queries, bias, sink):
    query, key = random(2, 2, queries, 8), random(2, 1, 180, 8, seed=1)
    sinks = random(2) if sink else None
    recipe = Dot(query, key, key, mask, bias, scale=0.3, sink=sinks)
    output, lse = fused.attention(recipe)
    monkeypatch.setattr(fused, "_STRIP", 1)
    assert len(fused._calls(recipe, flash=True)) == (queries + 63) // 64
    strips, strip_lse = fused.attention(recipe)
    torch.testing.assert_close(strips, output, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(strip_lse, lse, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(strips, truth(recipe)[0], atol=1e-8, rtol=1e-8)
