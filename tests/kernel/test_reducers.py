"""Every reducer, for any cutting into tiles and any order of merging, gives the dense answer."""

import math
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from jaxtyping import config

import regard
from regard import masks
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.kernel import dense, reduce, tile_makers
from regard.kernel.position_encodings import AlibiBias
from regard.kernel.reducers import ReceivedGradient
from regard.kernel.reducers.base import Matrix
from regard.recipe import Dot, Given
from regard.types import NEVER, whole

sizes = st.integers(1, 44)
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def entropy(w):
    return -torch.xlogy(w, w).sum(-1)


def effective(w):
    squares = w.square().sum(-1)
    return torch.where(squares > 0, 1 / squares.clamp_min(1e-300), 0.0)


def distance(w, signed):
    queries, keys = w.shape[-2:]
    offset = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    return (w * (offset if signed else offset.abs())).sum(-1)


def histogram(w, allowed, bins, low):
    """Counts of permitted weights, one by one."""
    counts = torch.zeros(*w.shape[:2], bins, dtype=torch.long)
    for b, h, i, j in allowed.expand_as(w).nonzero().tolist():
        weight = float(w[b, h, i, j])
        share = weight if low is None else 1 - math.log10(max(weight, 1e-300)) / low
        counts[b, h, min(max(int(share * bins), 0), bins - 1)] += 1
    return counts


def vectors(length, several):
    shape = (1, 1, 3, length) if several else (length,)
    return torch.linspace(-1, 2, math.prod(shape), dtype=torch.float64).view(shape)


# Each: the reducer for some queries and keys, and its answer from weights and what is permitted.
CASES = {
    "ReceivedAttention": (lambda q, k: regard.ReceivedAttention(), lambda w, a: w.sum(2)),
    "ReceivedAttention: vector": (
        lambda q, k: regard.ReceivedAttention(vectors(q, False)),
        lambda w, a: (vectors(w.shape[2], False)[:, None] * w).sum(2),
    ),
    "ReceivedAttention: several": (
        lambda q, k: regard.ReceivedAttention(vectors(q, True)),
        lambda w, a: vectors(w.shape[2], True) @ w,
    ),
    "WeightedSum: vector": (
        lambda q, k: regard.WeightedSum(vectors(k, False)),
        lambda w, a: (w * vectors(w.shape[3], False)).sum(3),
    ),
    "WeightedSum: several": (
        lambda q, k: regard.WeightedSum(vectors(k, True)),
        lambda w, a: vectors(w.shape[3], True) @ w.mT,
    ),
    "SegmentWeights": (
        lambda q, k: regard.SegmentWeights(torch.arange(k) % 3, 4),
        lambda w, a: (
            torch.stack([w[..., s::3].sum(3) for s in range(4)], -1) * torch.tensor([1, 1, 1, 0])
        ),
    ),
    "Distance": (lambda q, k: regard.Distance(), lambda w, a: distance(w, False)),
    "Distance: signed": (lambda q, k: regard.Distance(signed=True), lambda w, a: distance(w, True)),
    "Entropy": (lambda q, k: regard.Entropy(), lambda w, a: entropy(w)),
    "EffectiveKeys": (
        lambda q, k: regard.EffectiveKeys(0.2),
        lambda w, a: ((w > 0.2).sum(3).double(), effective(w)),
    ),
    "QueryRows": (lambda q, k: regard.QueryRows([0, -1]), lambda w, a: w[:, :, [0, -1]]),
    "Histogram": (lambda q, k: regard.Histogram(7), lambda w, a: histogram(w, a, 7, -8.0)),
    "Histogram: of weight": (
        lambda q, k: regard.Histogram(7, low=None),
        lambda w, a: histogram(w, a, 7, None),
    ),
    "FullWeights": (lambda q, k: regard.FullWeights(), lambda w, a: w),
    "HeadMean": (lambda q, k: regard.HeadMean(), lambda w, a: w.mean(1)),
    "HeadMax": (lambda q, k: regard.HeadMax(), lambda w, a: w.amax(1)),
    "TopK": (lambda q, k: regard.TopK(min(2, k)), lambda w, a: w.topk(min(2, w.shape[3])).values),
}


@st.composite
def recipes(draw):
    """A small random attention."""
    batch, groups, share = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    queries, keys = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 5, 9, 43]))
    heads = groups * share
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mask = draw(
        st.sampled_from(
            [
                None,
                masks.causal(),
                masks.window(2, 1),
                masks.pairs(random(batch, heads, queries, keys) > 0),
                masks.lengths(torch.arange(1, batch + 1).clamp_max(keys), keys) & masks.causal(),
                ~masks.causal() | masks.window(0, 0),
                masks.segments(torch.arange(queries)[None] // 3, torch.arange(keys)[None] // 3),
            ]
        )
    )
    bias = draw(
        st.sampled_from(
            [
                None,
                random(1, heads, queries, keys),
                random(batch, 1, 1, keys),
                AlibiBias(random(heads)),
            ]
        )
    )
    return Dot(
        random(batch, heads, queries, 4),
        random(batch, groups, keys, 4),
        mask=mask,
        bias=bias,
        scale=draw(st.sampled_from([0.5, 3.0])),
        softcap=draw(st.sampled_from([None, 2.0])),
        sink=random(heads) if draw(st.booleans()) else None,
    )


def matrices(recipe):
    """The dense weights, and what is permitted."""
    batch, heads, queries, keys = recipe.shape
    mask = masks.window(None, None) if recipe.mask is None else recipe.mask
    allowed = mask.dense(queries, keys)
    bias = (
        recipe.bias.block(whole(queries, keys))
        if isinstance(recipe.bias, AlibiBias)
        else recipe.bias
    )
    _, weights = dense.attention(
        recipe.query,
        recipe.key,
        recipe.key,
        mask=allowed,
        bias=bias,
        scale=recipe.scale,
        softcap=recipe.softcap,
        sink=recipe.sink,
    )
    return weights, allowed.expand(batch, heads, -1, -1)


def same(case, got, weights, allowed):
    expected = CASES[case][1](weights, allowed)
    if case == "TopK":
        strong = got.weights > 0
        at_keys = weights.gather(3, got.keys)
        torch.testing.assert_close(got.weights[strong], at_keys[strong], atol=1e-9, rtol=1e-9)
        assert ((got.keys == 0) | strong).all()  # nothing is named where nothing was found
        ranked = got.keys.masked_fill(~strong, -1).sort(-1).values
        assert (ranked.diff(dim=-1) != 0)[ranked[..., 1:] >= 0].all()  # no key twice
        got = got.weights
    for part, wanted in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (got, expected))):
        torch.testing.assert_close(part, wanted, atol=1e-9, rtol=1e-9)


@quick
@given(recipe=recipes(), rows=st.integers(1, 10), columns=sizes, masked=sizes)
def test_any_cutting_into_tiles(recipe, rows, columns, masked):
    """Each reducer by itself, on the same recipes: drawing them costs more than to reduce."""
    truth = matrices(recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_makers, "_MASKED", masked)  # columns of a mask looked at together
        for case, (make, _) in CASES.items():
            note(case)
            reducer = make(*recipe.shape[2:])
            reducer.shortcut = lambda recipe: None  # tiles, please
            (got,) = regard.reduce(recipe, [reducer], tile=(rows, columns))
            same(case, got, *truth)


@quick
@given(
    recipe=recipes(),
    tile=st.none() | st.tuples(st.integers(1, 10), sizes),
    stack=st.none() | st.integers(1, 400),
)
def test_all_at_once(recipe, tile, stack):
    """Reducers share a walk, or matrices stacked, whatever each of them needs, and may use their
    shortcuts."""
    reducers = [make(*recipe.shape[2:]) for make, _ in CASES.values()]
    with pytest.MonkeyPatch.context() as patch:
        if stack is not None:  # some heads at a time, as of larger recipes
            patch.setattr(reduce, "_SMALL", 0)
            patch.setattr(reduce, "_STACK", stack)
        answers, truth = regard.reduce(recipe, reducers, tile=tile), matrices(recipe)
    for case, got in zip(CASES, answers, strict=True):
        note(case)
        same(case, got, *truth)


@quick
@given(recipe=recipes(), random=st.randoms(use_true_random=False))
def test_any_order_of_merging(recipe, random):
    """Tiles of one matrix in any order, dealt to several copies, merged in any order."""
    weights, allowed = matrices(recipe)
    for case, (make, _) in CASES.items():
        note(case)
        _merged_in_any_order(case, make(*recipe.shape[2:]), random, weights, allowed)


def _merged_in_any_order(case, reducer, random, weights, allowed):
    _, heads, queries, keys = weights.shape
    matrix = Matrix(0, 1, 0, heads, queries, keys, torch.float64, torch.device("cpu"))
    copies = [reducer.started(matrix) for _ in range(random.randint(1, 4))]

    def cuts(length):
        inner = random.sample(range(1, length), random.randint(0, min(4, length - 1)))
        return [slice(*ends) for ends in pairwise([0, *sorted(inner), length])]

    shown = range(heads if reducer.across_heads else 1)
    blocks = list(product(shown, cuts(queries), cuts(keys)))
    random.shuffle(blocks)
    for head, rows, columns in blocks:
        part, permitted = weights[0, head, rows, columns], allowed[0, head, rows, columns]
        if permitted.any() or random.random() < 0.5:  # blocks of nothing may be left out
            logs = torch.where(permitted, part.log(), NEVER)
            random.choice(copies).tile(rows, columns, logs, part.clone())
    while len(copies) > 1:
        random.shuffle(copies)
        copies[0].merge(copies.pop())
    answer = copies[0].result()
    lead = (None,) if reducer.across_heads else (None, None)
    got = type(answer)(*(x[lead] for x in answer)) if isinstance(answer, tuple) else answer[lead]
    kept = slice(0, 1), slice(None) if reducer.across_heads else slice(0, 1)
    same(case, got, weights[kept], allowed[kept])


def ask(*reducers, queries=3, keys=4, heads=2, batch=2):
    x = torch.randn(batch, heads, max(queries, keys), 4, generator=torch.Generator().manual_seed(0))
    return regard.reduce(Dot(x[:, :, :queries], x[:, :, :keys]), reducers)


@pytest.mark.parametrize("stack", [1, 1 << 20], ids=["a head at a time", "all heads"])
def test_vectors_and_segments_of_each_example_and_head(monkeypatch, stack):
    monkeypatch.setattr(reduce, "_SMALL", 0)
    monkeypatch.setattr(reduce, "_STACK", stack)
    gradient = torch.randn(2, 2, 3, 4)
    rows, columns = torch.randn(2, 2, 1, 3), torch.randn(2, 1, 5, 4)
    segments = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    weights, received, applied, mass, pulled = ask(
        regard.FullWeights(),
        regard.ReceivedAttention(rows),
        regard.WeightedSum(columns),
        regard.SegmentWeights(segments),
        ReceivedGradient(rows, gradient),
    )
    torch.testing.assert_close(pulled, rows @ (gradient * weights).clamp_min(0.0))
    torch.testing.assert_close(received, rows @ weights)
    torch.testing.assert_close(applied, columns @ weights.mT)
    torch.testing.assert_close(mass[0, ..., 0], weights[0, ..., :2].sum(-1))
    torch.testing.assert_close(mass[1, ..., 1], weights[1, ..., 1:].sum(-1))


@pytest.mark.parametrize(
    ("question", "error", "text"),
    [
        (lambda: regard.TopK(0), RegardError, "TopK: k=0, expected at least 1"),
        (lambda: ask(regard.TopK(5)), RegardError, "TopK: k=5, but there are only 4 keys"),
        (
            lambda: ask(regard.QueryRows([0, 3])),
            RegardError,
            "QueryRows: query 3 is outside the 3 queries",
        ),
        (
            lambda: ask(regard.WeightedSum(torch.zeros(1, 3, 1, 4))),
            ShapeError,
            "head.* 3, expected 2",
        ),
        (lambda: regard.EffectiveKeys(0.0), RegardError, "threshold=0.0, expected between 0 and 1"),
        (lambda: regard.Histogram(0), RegardError, "bins=0, low=-8.0; expected bins >= 1, low < 0"),
        (lambda: regard.Histogram(low=1.0), RegardError, "low=1.0; expected bins >= 1, low < 0"),
        (
            lambda: regard.ReceivedAttention(torch.zeros(2, 3)),
            ShapeError,
            r"rows has 2 axes \(2, 3\), expec",
        ),
        (
            lambda: regard.WeightedSum(torch.zeros(1, 3, 4)),
            ShapeError,
            r"vectors has 3 axes \(1, 3, 4\)",
        ),
        (
            lambda: ask(regard.ReceivedAttention(torch.zeros(4))),
            ShapeError,
            "last axis has size 4, expected 3",
        ),
        (
            lambda: ask(regard.WeightedSum(torch.zeros(3))),
            ShapeError,
            "last axis has size 3, expected 4",
        ),
        (
            lambda: regard.SegmentWeights(torch.zeros(1, 1, 4).int()),
            ShapeError,
            "segments has 3 axes, expec",
        ),
        (
            lambda: ask(regard.SegmentWeights(torch.zeros(3).int())),
            ShapeError,
            "axis key has size 3, expected 4",
        ),
        (
            lambda: regard.SegmentWeights(torch.tensor([0, 3]), 2),
            RegardError,
            "must be from 0 to 1",
        ),
        (lambda: regard.SegmentWeights(torch.tensor([0, -1])), RegardError, "must be from 0 to 0"),
        (lambda: ask(regard.Entropy), RegardError, "Entropy'> is not a Reducer; pass instances"),
        (lambda: regard.reduce(None, regard.TopK(1)), RegardError, "expected a list of reducers"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(monkeypatch, question, error, text):
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # our own errors, not the type checker's
    with pytest.raises(error, match=text):
        question()


@pytest.mark.parametrize("right", [0, 8])
@pytest.mark.parametrize("signed", [False, True])
def test_short_distances_are_exact_far_from_the_start(signed, right):
    """Positions near 16384 differ by a few: float32 must not lose the difference."""
    numbers = torch.randn(1, 1, 16384 + 600, 8, generator=torch.Generator().manual_seed(0))
    query, key = numbers.split([600, 16384], dim=2)  # the last 600 positions look
    recipe = Dot(query, key, mask=masks.window(8, right))
    exact = Dot(query.double(), key.double(), mask=masks.window(8, right))
    (distances,) = regard.reduce(recipe, [regard.Distance(signed=signed)])
    (truth,) = regard.reduce(exact, [regard.Distance(signed=signed)])
    torch.testing.assert_close(distances.double(), truth, rtol=0, atol=2e-5)


def in_an_image(rows, columns, **changes):
    """A small attention whose keys are positions of an image."""
    numbers = torch.Generator().manual_seed(0)
    size = (2, 3, rows * columns, 4)
    query, key = (torch.randn(size, generator=numbers, dtype=torch.float64) for _ in range(2))
    return Dot(query, key, **({"grid": (rows, columns)} | changes))


@pytest.mark.parametrize("tile", [None, (1, 1), (4, 5), (7, 3)])
@pytest.mark.parametrize("mask", [None, masks.window(6, 2)])
@pytest.mark.parametrize("form", [lambda recipe: recipe, lambda recipe: given_of(recipe)])
def test_distances_in_an_image_are_lengths(tile, mask, form):
    recipe = in_an_image(4, 5, mask=mask)
    weights, positions = recipe.weights(), list(product(range(4), range(5)))
    lengths = weights.new_tensor([[math.dist(i, j) for j in positions] for i in positions])
    (distances,) = regard.reduce(form(recipe), [regard.Distance()], tile=tile)
    torch.testing.assert_close(distances, (weights * lengths).sum(-1), rtol=0, atol=1e-12)


def given_of(recipe):
    return Given(recipe.weights(), None, "distribution", recipe.grid)


def test_a_direction_in_an_image_is_not_one_number():
    with pytest.raises(UnavailableError) as caught:
        regard.reduce(in_an_image(4, 5), [regard.Distance(signed=True)])
    assert str(caught.value) == (
        "Distance: signed=True, but keys are positions of a 4 × 5 image, where a direction is "
        "(dy, dx): Distance() gives its length, recipe.offsets() both"
    )


def test_queries_outside_the_image_of_the_keys_have_no_distance():
    recipe = in_an_image(4, 5)
    with pytest.raises(UnavailableError) as caught:
        regard.reduce(Dot(recipe.query[:, :, :7], recipe.key, grid=(4, 5)), [regard.Distance()])
    assert str(caught.value) == (
        "Distance: 7 queries, but keys are the positions of a 4 × 5 image, expected 20 queries, "
        "one for each: elsewhere they have no distance to them"
    )
