"""`attend`: one output whatever is asked besides, exact weights, reductions, errors that help."""

import pytest
import torch
from jaxtyping import config
from torch.utils import _pytree

import regard
from regard import attend, masks
from regard.errors import DtypeError, MaskError, RegardError, ShapeError
from regard.kernel import dense, reduce
from regard.kernel.attend import run
from regard.kernel.position_encodings import RelativeTable
from regard.recipe import Additive, Dot, Given


def random(*shape, seed=0, dtype=torch.float64):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def entropy(w):
    return -(w * w.clamp_min(1e-300).log()).sum(-1)


@pytest.fixture(autouse=True, params=[0, 1 << 19], ids=["tiles", "one tile"])
def _small(request, monkeypatch):
    """Small attentions are reduced as one tile a matrix; here also as large ones are."""
    monkeypatch.setattr(reduce, "_SMALL", request.param)
    monkeypatch.setattr(reduce, "_SMALL_MATRIX", request.param)


Q, K, V = random(2, 4, 6, 8, seed=1), random(2, 2, 9, 8, seed=2), random(2, 2, 9, 5, seed=3)
PADDING = masks.lengths(torch.tensor([9, 4]), 9)
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "padding": {"causal": True, "mask": PADDING},
    "tensor mask": {"mask": random(2, 1, 6, 9) > 0, "causal": True},
    "bias": {"bias": random(1, 4, 6, 9)},
    "trained bias": {"bias": RelativeTable(random(4, 5).requires_grad_()), "mask": PADDING},
    "softcap": {"softcap": 1.5, "causal": True},
    "sink": {"sink": random(4), "causal": True},
    "dropout": {"dropout": 0.5, "mask": PADDING},
    "softcap and dropout": {"dropout": 0.5, "softcap": 1.5},
    "scale": {"scale": 2.0},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@every_option
def test_asking_changes_no_bit_of_the_output(options):
    outputs = []
    for asked in ({}, {"weights": True}, {"reduce": [regard.Entropy(), regard.HeadMean()]}):
        torch.manual_seed(0)
        outputs.append(attend(Q, K, V, **options, **asked).output)
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@every_option
def test_weights_are_exact_and_mix_the_values_into_the_output(options):
    found = attend(Q, K, V, **options, weights=True)
    assert found.weights.shape == (2, 4, 6, 9) and found.weights.dtype == torch.float64
    sums = found.weights.sum(-1)
    if "sink" in options:
        assert (sums < 1).all() and found.recipe.kind == "partial"
    else:
        torch.testing.assert_close(sums, found.weights.any(-1).double())
    mixed = found.weights @ V.repeat_interleave(2, 1)
    torch.testing.assert_close(found.recipe.mixed(), mixed)
    torch.testing.assert_close(found.recipe.weights(), found.weights)
    if "dropout" not in options:
        torch.testing.assert_close(found.output, mixed)


def test_a_recipe_is_kept_only_when_something_was_asked():
    plain = attend(Q, K, V)
    assert plain.recipe is plain.weights is plain.state is None and plain.reductions == ()
    assert attend(Q, K, V, softcap=1.0).recipe is None
    assert attend(Q, K, V, weights=True).reductions == ()
    reduced = attend(Q, K, V, reduce=[regard.Entropy()])
    assert reduced.weights is None and isinstance(reduced.recipe, Dot)
    held = (reduced.recipe.query, reduced.recipe.key, reduced.recipe.value, reduced.recipe.lse)
    assert reduced.recipe.nbytes == sum(tensor.nbytes for tensor in held)
    assert not reduced.recipe.lse.requires_grad


@every_option
def test_reductions_come_in_the_order_asked(options):
    """Shortcuts, small tiles and whole rows take different ways, and come back in place."""
    asked = [
        regard.TopK(1),
        regard.HeadMean(),
        regard.QueryRows([2]),
        regard.TopK(2),
        regard.ReceivedAttention(),
    ]
    found = attend(Q, K, V, **options, weights=True, reduce=asked)
    w, (best, mean, row, two, received) = found.weights, found.reductions
    answers = best.weights, mean, row, two.weights, received
    expected = w.topk(1).values, w.mean(1), w[:, :, 2:3], w.topk(2).values, w.sum(2)
    for answer, wanted in zip(answers, expected):
        torch.testing.assert_close(answer, wanted)
        assert not answer.requires_grad


def test_weights_keep_their_graph():
    query = Q.clone().requires_grad_()
    weights = attend(query, K, V, causal=True, weights=True).weights
    _, expected = dense.attention(query, K, V, causal=True)
    grads = [torch.autograd.grad(w.square().sum(), query) for w in (weights, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("asked", [{}, {"weights": True}], ids=["output", "weights"])
def test_any_recipe_runs(asked):
    recipe = Given(random(2, 4, 6, 9).softmax(-1), V)
    expected = recipe.matrix @ V.repeat_interleave(2, 1)
    torch.testing.assert_close(run(recipe, **asked).output, expected)
    value = V[:, :1].clone()
    value[1, :, 4:] = torch.nan  # padding
    recipe = Additive(Q[:, :1], K[:, :1], random(8), value, PADDING)
    expected = recipe.weights() @ value.nan_to_num()
    torch.testing.assert_close(run(recipe, **asked).output, expected)


def test_what_is_returned_survives_flattening():
    found = attend(Q, K, V, weights=True, reduce=[regard.Entropy()])
    again = _pytree.tree_unflatten(*_pytree.tree_flatten(found))
    assert torch.equal(again.output, found.output) and torch.equal(again.weights, found.weights)
    assert torch.equal(again.recipe.weights(), found.weights)


GRADIENTS = {
    "ReceivedAttention": (regard.ReceivedAttention, lambda w: w.sum(2)),
    "WeightedSum": (lambda **on: regard.WeightedSum(random(9), **on), lambda w: w @ random(9)),
    "SegmentWeights": (
        lambda **on: regard.SegmentWeights(torch.arange(9) // 5, **on),
        lambda w: torch.stack([w[..., :5].sum(-1), w[..., 5:].sum(-1)], -1),
    ),
    "Distance": (
        regard.Distance,
        lambda w: (w * (torch.arange(9) - torch.arange(3, 9)[:, None]).abs()).sum(-1),
    ),
    "Entropy": (regard.Entropy, entropy),
    "EffectiveKeys": (regard.EffectiveKeys, lambda w: 1 / w.square().sum(-1)),
    "TopK": (lambda **on: regard.TopK(3, **on), lambda w: w.topk(3).values),
    "QueryRows": (lambda **on: regard.QueryRows([1, -1], **on), lambda w: w[:, :, [1, -1]]),
    "HeadMean": (regard.HeadMean, lambda w: w.mean(1)),
    "HeadMax": (regard.HeadMax, lambda w: w.amax(1)),
    "FullWeights": (regard.FullWeights, lambda w: w),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("kind", ["flash", "softcap", "additive"])
def test_differentiable_answers_have_the_gradients_of_dense_ones(kind, name):
    query, key = Q.clone().requires_grad_(), K.clone().requires_grad_()
    mask, allowed = masks.causal() & PADDING, (masks.causal() & PADDING).dense(6, 9)
    if kind == "additive":
        recipe = Additive(query[:, :1], key[:, :1], random(8), V[:, :1], mask)
        scores = (query[:, :1, :, None] + key[:, :1, None]).tanh() @ random(8)
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    else:
        softcap = 2.0 if kind == "softcap" else None
        recipe = Dot(query, key, V, mask, scale=0.5, softcap=softcap, sink=random(4))
        _, weights = dense.attention(
            query, key, V, mask=allowed, scale=0.5, softcap=softcap, sink=random(4)
        )
    reducer, by_dense = GRADIENTS[name]
    (answer,) = run(recipe, reduce=[reducer(differentiable=True)]).reductions
    if isinstance(answer, tuple):
        answer = answer.effective if name == "EffectiveKeys" else answer.weights
    expected = by_dense(weights)
    torch.testing.assert_close(answer, expected)
    pulled = random(*answer.shape, seed=7)
    grads = [torch.autograd.grad(x, (query, key), pulled) for x in (answer, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, 700.0])
def test_very_peaked_scores(dtype, shift):
    scores = torch.linspace(-1000, 0, 30, dtype=torch.float64) + shift
    key = torch.stack([scores, torch.ones(30)], -1)[None, None].to(dtype)
    query = torch.tensor([[1.0, 0.0], [0.1, 0.0], [0.0, 1.0]], dtype=dtype)[None, None]
    weights = (query.double() @ key.double().mT).softmax(-1)
    asked = [regard.HeadMean(), regard.Entropy(), regard.TopK(3)]
    found = attend(query, key, key, scale=1.0, weights=True, reduce=asked)
    everything, spread, best = found.reductions
    close = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(found.weights.double(), weights, **close)
    torch.testing.assert_close(everything.double(), weights[0], **close)
    torch.testing.assert_close(spread.double(), entropy(weights), **close)
    torch.testing.assert_close(best.weights.double(), weights.topk(3).values, **close)


def test_rows_that_may_see_nothing_answer_zero():
    allowed = torch.ones(1, 1, 6, 9, dtype=torch.bool)
    allowed[..., 1:3, :] = False
    asked = [regard.Entropy(), regard.EffectiveKeys(), regard.TopK(2), regard.Distance()]
    found = attend(Q, K, V, mask=allowed, weights=True, reduce=asked)
    spread, support, best, far = found.reductions
    for answer in (
        found.output.norm(dim=-1),
        found.weights.sum(-1),
        spread,
        far,
        *support,
        best.weights[..., 0],
    ):
        assert (answer[:, :, 1:3] == 0).all() and (answer[:, :, 3:] > 0).all()


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_how_large_a_hidden_key_is_changes_nothing(size):
    larger = torch.ones(9, 1, dtype=torch.float64)
    larger[-1] = size  # a key that the last query alone may see
    reduce = [regard.HeadMean(), regard.HeadMax()]
    before = attend(Q, K, V, causal=True, reduce=reduce)
    after = attend(Q, K * larger, V * larger, causal=True, reduce=reduce)
    torch.testing.assert_close(after.output[:, :, :-1], before.output[:, :, :-1])
    for one, other in zip(after.reductions, before.reductions):
        torch.testing.assert_close(one[:, :-1], other[:, :-1])


def test_a_bias_that_forbids_by_the_lowest_number():
    """As masks of other libraries do: a row with nothing else becomes a mean, weights 1/n."""
    x, bias = random(1, 1, 4, 8, dtype=torch.float32), torch.zeros(1, 1, 4, 4)
    bias[..., :2, 2:] = bias[..., 0, :] = torch.finfo(torch.float32).min
    asked = [regard.HeadMean(), regard.HeadMax()]
    found = attend(x, x, x, bias=bias, weights=True, reduce=asked)
    torch.testing.assert_close(found.weights[0, 0, 0], torch.full((4,), 0.25))
    torch.testing.assert_close(found.output[0, 0, 0], x[0, 0].mean(0))
    for answer in found.reductions:
        torch.testing.assert_close(answer, found.weights[:, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_weighed_and_reduced_in_float32(dtype):
    x = random(1, 2, 20, 16, dtype=dtype)
    asked = [regard.HeadMean(), regard.Entropy()]
    found = attend(x, x, x, causal=True, weights=True, reduce=asked)
    expected = dense.attention(x.double(), x.double(), x.double(), causal=True)[1]
    assert found.output.dtype == dtype
    answers = expected, expected.mean(1), entropy(expected)
    for got, wanted in zip((found.weights, *found.reductions), answers):
        assert got.dtype == torch.float32  # the fused log-sum-exp of half inputs is good to 1e-4
        torch.testing.assert_close(got.double(), wanted, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("queries", "keys"), [(0, 9), (6, 0), (0, 0)])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"bias": random(1, 4, 1, 1)}])
def test_nothing_to_attend(queries, keys, options):
    inputs = Q[:, :, :queries], K[:, :, :keys], V[:, :, :keys]
    asked = [regard.Entropy(), regard.ReceivedAttention(), regard.HeadMax()]
    found = attend(*inputs, causal=True, weights=True, reduce=asked, **options)
    assert found.output.shape == (2, 4, queries, 5) and (found.output == 0).all()
    assert found.weights.shape == (2, 4, queries, keys)
    spread, received, largest = found.reductions
    assert spread.shape == (2, 4, queries) and received.shape == (2, 4, keys)
    assert largest.shape == (2, queries, keys)


def changed(**changes):
    return lambda: attend(**({"query": Q, "key": K, "value": V} | changes))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            changed(query=Q[0]),
            ShapeError,
            r"query has 3 axes \(4, 6, 8\), expected 4: \(batch, head",
        ),
        (changed(value=V[0]), ShapeError, r"value has 3 axes \(2, 9, 5\), expected 4"),
        (changed(query=Q.long()), DtypeError, "query is torch.int64, expected floating point"),
        (changed(key=K.float()), DtypeError, "key is torch.float32, expected torch.float64 as the"),
        (changed(key=K[:1]), ShapeError, "key: axis batch has size 1, expected 2"),
        (changed(value=V[:1]), ShapeError, "value: axis batch has size 1, expected 2"),
        (changed(key=K[..., :7]), ShapeError, "key: axis width has size 7, expected 8"),
        (changed(value=V[:, :1]), ShapeError, "value: axis head has size 1, expected 2"),
        (changed(value=V[:, :, :8]), ShapeError, "value: axis key has size 8, expected 9"),
        (changed(query=Q[:, :3]), ShapeError, "key: axis head has size 2, expected a divisor of 3"),
        (changed(bias=random(6, 9)), ShapeError, r"bias has 2 axes \(6, 9\), expected 4"),
        (changed(bias=random(1, 3, 1, 9)), ShapeError, "bias: axis head has size 3, expected 4"),
        (changed(bias=random(1, 1, 1, 8)), ShapeError, "bias: axis key has size 8, expected 9"),
        (changed(bias=random(1, 1, 1, 9) > 0), DtypeError, "bias is torch.bool.*belongs in mask="),
        (changed(mask=random(1, 1, 6, 9)), DtypeError, "mask is torch.float64.*pass them as bias="),
        (changed(mask=random(2, 9) > 0), MaskError, r"mask has 2 axes \(2, 9\), expected 4"),
        (changed(mask=random(1, 1, 5, 9) > 0), MaskError, "axis query has size 5, expected 6 or 1"),
        (changed(sink=random(3)), ShapeError, r"sink has shape \(3,\), expected \(4,\), the heads"),
        (changed(dropout=1.5), RegardError, "dropout is 1.5, expected a probability from 0 to 1"),
        (changed(reduce=[regard.Entropy]), RegardError, "is not a Reducer; pass instances"),
    ],
)
def test_what_does_not_fit_is_named(monkeypatch, call, error, text):
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # our own errors, not the type checker's
    with pytest.raises(error, match=text):
        call()
