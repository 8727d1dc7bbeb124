"""Attention by offset and by repeated token: any cutting into tiles gives the sums of loops."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import RegardError, ShapeError
from regard.kernel.reducers import Offsets, OwnSegment, Repeats
from regard.kernel.reducers.positions import upright
from regard.recipe import Dot, Given

SHAPES = [(2, 3, 7, 7), (2, 2, 4, 9), (1, 2, 9, 5), (1, 1, 1, 1), (1, 2, 1, 6)]
TILES = [None, (1, 1), (3, 4), (5, 2), (64, 64)]


def made(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double().softmax(-1)


def marks(batch: int, length: int, seed: int) -> torch.Tensor:
    return torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.7


def offsets(weights, rows, keys):
    batch, heads, n_queries, n_keys = weights.shape
    total = torch.zeros(batch, heads, n_queries + n_keys - 1, dtype=weights.dtype)
    for b in range(batch):
        for i in range(n_queries):
            for j in range(n_keys):
                if rows[b, i] and keys[b, j]:
                    away = j - (i + n_keys - n_queries)
                    total[b, :, n_keys - 1 + away] += weights[b, :, i, j]
    return total


def repeats(weights, tokens, after, keys):
    """Weights on copies, and which queries have one."""
    batch, _, n_queries, n_keys = weights.shape
    total, found = torch.zeros_like(weights[..., 0]), torch.zeros(batch, n_queries).bool()
    for b in range(batch):
        for i in range(n_queries):
            own = i + n_keys - n_queries
            for j in range(n_keys):
                copy = j - after
                if copy >= 0 and j <= own - 2 and keys[b, j] and tokens[b, copy] == tokens[b, own]:
                    total[b, :, i] += weights[b, :, i, j]
                    found[b, i] = True
    return total, found


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_offsets(shape, tile):
    weights = made(*shape)
    rows, keys = marks(shape[0], shape[2], 2), marks(shape[0], shape[3], 3)
    (got,) = regard.reduce(Given(weights), [Offsets(rows, keys)], tile=tile)
    torch.testing.assert_close(got, offsets(weights, rows, keys), atol=1e-12, rtol=0)
    (got,) = regard.reduce(Given(weights), [Offsets()], tile=tile)
    everything = torch.ones(shape[0], max(shape[2:]))
    torch.testing.assert_close(got, offsets(weights, everything, everything), atol=1e-12, rtol=0)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] <= shape[3]])
def test_own_segment(shape, tile):
    weights = made(*shape)
    generator = torch.Generator().manual_seed(4)
    segments = torch.randint(-2, 3, (shape[0], shape[3]), generator=generator)
    (got,) = regard.reduce(Given(weights), [OwnSegment(segments)], tile=tile)
    own = segments[:, shape[3] - shape[2] :, None]
    same = (own == segments[:, None]) & (own >= 0)  # below 0 there is no segment
    want = (weights * same[:, None]).sum(3)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        (torch.zeros(5), "OwnSegment: segments are torch.float32, expected whole numbers"),
        (torch.zeros(1, 1, 5).int(), "OwnSegment: segments has 3 axes, expected"),
        (torch.zeros(4).int(), "OwnSegment: segments: axis key has size 4, expected 5"),
        (torch.zeros(3, 5).int(), "OwnSegment: segments: axis batch has size 3, expected 2"),
        (torch.zeros(5).int(), "OwnSegment: 9 queries for 5 keys; segments are of one sequence"),
    ],
)
def test_segments_that_do_not_fit_are_refused(segments, text, without_shape_checks):
    with pytest.raises(RegardError, match=text):
        regard.reduce(Given(made(2, 1, 9, 5)), [OwnSegment(segments)])


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] <= shape[3]])
def test_repeats(shape, tile, after):
    weights, keys = made(*shape), marks(shape[0], shape[3], 3)
    tokens = torch.randint(50, 53, (shape[0], shape[3]), generator=torch.Generator().manual_seed(4))
    reducer = Repeats(tokens, after, keys)
    (got,) = regard.reduce(Given(weights), [reducer], tile=tile)
    want, found = repeats(weights, tokens, after, keys)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    assert torch.equal(reducer.found(shape[2]), found)


def test_many_tiles_in_threads_with_a_causal_mask():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 2, 1500, 8, dtype=torch.float64)
    recipe = Dot(query, key, mask=masks.causal(), scale=0.3)
    tokens = torch.randint(0, 40, (1500,))
    got, copied = regard.reduce(recipe, [Offsets(), Repeats(tokens, 1)])
    weights = recipe.weights()
    want = torch.stack([weights.diagonal(d, 2, 3).sum(-1) for d in range(-1499, 1500)], -1)
    torch.testing.assert_close(got, want, atol=1e-10, rtol=0)
    same = tokens[:, None] == tokens.roll(1)
    same[:, 0] = False
    want = (weights * same.tril(-2)).sum(-1)
    torch.testing.assert_close(copied, want, atol=1e-10, rtol=0)


def test_upright_puts_diagonals_upright():
    tall = torch.arange(1.0, 7.0).view(3, 2)
    want = [[0, 0, 1, 2], [0, 3, 4, 0], [5, 6, 0, 0]]
    assert upright(tall).tolist() == want
    assert upright(tall.expand(2, 5, 3, 2))[1, 4].tolist() == want


def test_answers_can_stay_in_the_graph():
    scores = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([1, 2, 1, 2, 1])

    def asked(scores):
        given = Given(scores.softmax(-1))
        kept = [Offsets(differentiable=True), Repeats(tokens, 1, differentiable=True)]
        return regard.reduce(given, kept)

    assert torch.autograd.gradcheck(asked, (scores,))


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (lambda: Offsets(torch.ones(2, 3, 4)), ShapeError, r"rows has 3 axes \(2, 3, 4\), expec"),
        (lambda: Offsets(torch.ones(5)), ShapeError, "rows: axis position has size 5, expected 4"),
        (lambda: Offsets(keys=torch.ones(3, 4)), ShapeError, "axis batch has size 3, expected 2"),
        (lambda: Repeats(torch.ones(4)), RegardError, "tokens are torch.float32, expected whole"),
        (lambda: Repeats(torch.ones(4).int(), -1), RegardError, "after=-1, expected 0 or more"),
        (
            lambda: Repeats(torch.ones(4).int(), keys=torch.ones(3).bool()),
            ShapeError,
            "keys: axis position has size 3, expected 4 as tokens",
        ),
        (lambda: Repeats(torch.ones(5).int()), ShapeError, "tokens: axis position has size 5"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_makes_no_sense_is_refused(asked, error, text):
    with pytest.raises(error, match=text):
        regard.reduce(Given(made(2, 1, 4, 4)), [asked()])


def test_copies_are_looked_for_in_one_sequence():
    with pytest.raises(ShapeError, match="4 queries for 3 keys; copies are looked for"):
        regard.reduce(Given(made(1, 1, 4, 3)), [Repeats(torch.tensor([1, 2, 1]))])
