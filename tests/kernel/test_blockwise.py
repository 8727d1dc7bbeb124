"""Windows and packed sequences by blocks: the truth, gradients, and what is left out."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard import masks
from regard.kernel import blockwise, fused
from regard.mechanisms import MultiHead
from regard.recipe import Dot

BATCH, HEADS, KEYS = 2, 4, 400
LENGTHS = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 4e-2}  # tolerances


@pytest.fixture(autouse=True)
def plans_for_small_inputs(monkeypatch):
    monkeypatch.setattr(blockwise, "_SMALL", 0)
    monkeypatch.setattr(blockwise, "_CALL", 1)


def random(*shape, dtype=torch.float64, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def numbers(alike):
    """Segments of uneven lengths; one number comes twice in the second example."""
    one = torch.tensor([0] * 40 + [1] * 150 + [2] * 10 + [3] * 200)
    two = torch.tensor([5] * 100 + [0] * 10 + [5] * 20 + [7] * 270)
    return one[None] if alike else torch.stack([one, two])


def segments(queries, alike):
    key = numbers(alike)
    return masks.segments(key) if queries == KEYS else masks.segments(key[:, -queries:], key)


def even(queries):
    """Segments of one length: their rectangles look alike, but for the one with the first keys."""
    key = torch.arange(KEYS)[None] // 100
    return masks.segments(key[:, -queries:], key)


def keep():
    return masks.padding(random(BATCH, KEYS, seed=3) > -1)


MASKS = {
    "window": lambda q: masks.window(30, 0),
    "both sides": lambda q: masks.window(30, 7),
    "first keys": lambda q: masks.window(30, 0, first=5),
    "window & padding": lambda q: masks.window(30, 0, first=3) & keep(),
    "segments": lambda q: segments(q, True),
    "segments & causal": lambda q: segments(q, True) & masks.causal(),
    "segments & window": lambda q: segments(q, True) & masks.window(20, 0, first=4),
    "alike & first keys": lambda q: even(q) & masks.window(20, 0, first=4),
    "uneven": lambda q: segments(q, False),
    "uneven & causal & padding": lambda q: segments(q, False) & masks.causal() & keep(),
    "strangers": lambda q: masks.segments(numbers(False)[:, -q:] + 1, numbers(False)),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("queries", [KEYS, 333])
@pytest.mark.parametrize(
    ("dtype", "groups"), [(torch.float64, 4), (torch.float32, 2), (torch.bfloat16, 1)], ids=str
)
def test_blocks_give_the_truth_and_its_gradients(mask, queries, dtype, groups):
    mask, tolerance = mask(queries), LENGTHS[dtype]
    query = random(BATCH, HEADS, queries, 16, dtype=dtype, seed=1).requires_grad_()
    key = random(BATCH, groups, KEYS, 16, dtype=dtype, seed=2).requires_grad_()
    value = random(BATCH, groups, KEYS, 8, dtype=dtype, seed=4).requires_grad_()
    recipe = Dot(query, key, value, mask=mask, scale=0.25)
    assert blockwise.plan(blockwise.Structure.of(mask), query, key) is not None
    output, lse = fused.attention(recipe)
    truth = recipe.mixed()
    torch.testing.assert_close(output, truth, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, recipe.log_sum_exp(), atol=tolerance, rtol=tolerance)
    upstream = random(*output.shape, dtype=dtype, seed=5)
    given = torch.autograd.grad(output, (query, key, value), upstream)
    expected = torch.autograd.grad(truth, (query, key, value), upstream)
    for mine, theirs in zip(given, expected):
        torch.testing.assert_close(mine, theirs, atol=4 * tolerance, rtol=4 * tolerance)


def scores_in(mask, queries=KEYS):
    query = torch.empty(1, 1, queries, 8)
    rectangles = blockwise.plan(blockwise.Structure.of(mask), query, torch.empty(1, 1, KEYS, 8))
    return sum((r.bottom - r.top) * (r.right - r.left) for r in rectangles)


def test_what_nobody_may_see_is_left_out():
    packed, window = segments(KEYS, True), masks.window(30, 0)
    assert scores_in(packed) == 40**2 + 150**2 + 10**2 + 200**2
    assert scores_in(window) == 128**2 + 2 * 128 * 158 + 16 * 46
    assert scores_in(packed & window) < min(scores_in(packed), scores_in(window))


def test_a_mask_that_leaves_little_out_is_one_call():
    query, key = torch.empty(1, 1, KEYS, 8), torch.empty(1, 1, KEYS, 8)
    wide = blockwise.Structure.of(masks.window(350, 350))
    assert blockwise.plan(wide, query, key) is None
    for mask in (None, masks.causal(), ~masks.window(3, 0), masks.window(3, 0) | masks.causal()):
        assert blockwise.Structure.of(mask) is None


def test_queries_in_no_rectangle_come_out_zero():
    x = random(1, 1, KEYS, 8)
    alone = torch.arange(KEYS)[None] // 100
    found = regard.attend(x, x, x, mask=masks.segments(alone, alone + 2), weights=True)
    assert not found.output[:, :, :200].any() and not found.weights[:, :, :200].any()
    torch.testing.assert_close(found.output, found.weights @ x)


def test_nan_in_padding_reaches_nothing():
    real = torch.arange(KEYS)[None] < 390
    x = random(1, 1, KEYS, 8).masked_fill(~real[:, None, :, None], torch.nan)
    query, key = random(1, 1, KEYS, 8).requires_grad_(), x.clone().requires_grad_()
    for mask in (masks.window(30, 0), masks.segments(torch.arange(KEYS)[None] // 100)):
        output = regard.attend(query, key, key, mask=mask & masks.padding(real)).output
        gradients = torch.autograd.grad(output[:, :, :390].sum(), (query, key))
        assert output[:, :, :390].isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_second_derivative_takes_the_plain_way():
    x = random(1, 1, KEYS, 8).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        output = regard.attend(x, x, x, mask=masks.window(30, 0)).output
        (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.any()


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's own
def test_transforms_take_the_plain_way():
    x = random(3, 1, 1, KEYS, 8)

    def mixed(one):
        return regard.attend(one, one, one, mask=masks.window(30, 0)).output

    torch.testing.assert_close(torch.func.vmap(mixed)(x)[1], mixed(x[1]))


@pytest.mark.parametrize("path", ["full", "fused", "auto"])
def test_capture_sees_one_attention(path):
    attn, x = MultiHead(16, 4, window=(30, 0)).eval(), random(1, KEYS, 16, dtype=torch.float32)
    mask = segments(KEYS, True)
    expected = attn(x, mask=mask, weights=True)
    for _ in range(2):  # the second one knows the model
        with regard.capture(attn, path=path) as trace:
            output = attn(x, mask=mask).output
        assert torch.equal(output, expected.output)
        (record,) = trace
        torch.testing.assert_close(record.weights(), expected.weights)
        assert not trace.notes


@pytest.mark.compiled
def test_a_compiled_module_gives_the_same():
    attn, x = MultiHead(16, 4, window=(30, 0)), random(1, KEYS, 16, dtype=torch.float32)
    compiled = torch.compile(attn, backend="aot_eager")
    for mask in (None, segments(KEYS, True)):
        torch.testing.assert_close(
            compiled(x, mask=mask).output, attn(x, mask=mask).output, atol=1e-5, rtol=1e-5
        )
