"""The walk over tiles: every kind of recipe, gradients, threads, hard numbers, memory."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import regard
from regard import masks
from regard.errors import UnavailableError
from regard.kernel import dense, tile_walk
from regard.recipe import Additive, Dot, Given


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def entropy(w):
    return -(w * w.clamp_min(1e-300).log()).sum(-1)


def dot(queries=6, keys=9, heads=4, **changes):
    parts = {
        "query": random(2, heads, queries, 4, seed=1),
        "key": random(2, 2 if heads % 2 == 0 else 1, keys, 4, seed=2),
        "mask": masks.causal() & masks.lengths(torch.tensor([keys, keys // 2]), keys),
        "sink": random(heads, seed=4),
    }
    return Dot(**(parts | changes))


def additive():
    query, key, vector = random(2, 1, 6, 4, seed=1), random(2, 1, 9, 4, seed=2), random(4, seed=3)
    mask = masks.causal() & masks.lengths(torch.tensor([9, 4]), 9)
    return Additive(query, key, vector, mask=mask)


def given():
    return Given(random(2, 4, 6, 9).softmax(-1).triu(1))


def dense_weights(recipe):
    """The matrix by the shortest formula."""
    if isinstance(recipe, Given):
        return recipe.matrix
    mask = recipe.mask.dense(*recipe.shape[2:])
    if isinstance(recipe, Dot):
        _, weights = dense.attention(
            recipe.query, recipe.key, recipe.key, mask=mask, scale=recipe.scale, sink=recipe.sink
        )
        return weights
    scores = (recipe.query[:, :, :, None] + recipe.key[:, :, None]).tanh() @ recipe.vector
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


one_or_many = pytest.mark.parametrize("tile", [None, (3, 2)], ids=["one tile", "many"])
every_recipe = pytest.mark.parametrize("make", [dot, additive, given])


@every_recipe
@pytest.mark.parametrize("tile", [None, (1, 1), (4, 5), (256, 512)], ids=str)
def test_every_kind_of_recipe(make, tile):
    weights = dense_weights(make())
    received, spread, best, mean = regard.reduce(
        make(),
        [regard.ReceivedAttention(), regard.Entropy(), regard.TopK(2), regard.HeadMean()],
        tile=tile,
    )
    torch.testing.assert_close(received, weights.sum(2))
    torch.testing.assert_close(spread, entropy(weights))
    torch.testing.assert_close(best.weights, weights.topk(2).values)
    torch.testing.assert_close(mean, weights.mean(1))


@pytest.mark.parametrize("kind", ["signed", "gate"])
@one_or_many
def test_weights_of_any_sign_are_reduced_where_no_logarithm_is_needed(tile, kind):
    recipe = Given(random(2, 3, 5, 7), of=kind)
    asked = [regard.ReceivedAttention(), regard.HeadMean(), regard.HeadMax(), regard.HeadMin()]
    received, mean, largest, smallest = regard.reduce(recipe, asked, tile=tile)
    torch.testing.assert_close(received, recipe.matrix.sum(2))
    torch.testing.assert_close(mean, recipe.matrix.mean(1))
    torch.testing.assert_close(largest, recipe.matrix.amax(1))
    torch.testing.assert_close(smallest, recipe.matrix.amin(1))
    for asked, names in (
        ([regard.ReceivedAttention(), regard.Entropy(), regard.TopK(2)], "Entropy, TopK"),
        ([regard.EffectiveKeys(differentiable=True)], "EffectiveKeys"),
    ):
        said = f"^{names}: {kind} weights have no logarithm.*weights.*need no logarithm: Received"
        with pytest.raises(UnavailableError, match=said):
            regard.reduce(recipe, asked, tile=tile)


def test_reducers_that_are_said_to_need_no_logarithm():
    """The error for signed weights lists them."""
    recipe = Given(random(2, 3, 5, 7), of="signed")
    with pytest.raises(UnavailableError) as caught:
        regard.reduce(recipe, [regard.Entropy()])
    listed = str(caught.value).split("no logarithm: ")[1].split(", or your own")[0].split(", ")
    without = [
        name
        for name, reducer in vars(regard).items()
        if isinstance(reducer, type)
        and issubclass(reducer, regard.Reducer)
        and (not reducer.needs_log_weights or reducer.suited is not regard.Reducer.suited)
    ]
    assert sorted(listed) == sorted(without)


def test_zeros_in_a_given_matrix_have_finite_gradients():
    recipe = given()
    matrix, columns = recipe.matrix.requires_grad_(), random(9, seed=5)
    mixed, spread = regard.reduce(
        recipe,
        [regard.WeightedSum(columns, differentiable=True), regard.Entropy(differentiable=True)],
    )
    (grad,) = torch.autograd.grad(mixed.sum(), matrix)
    torch.testing.assert_close(grad, columns.expand_as(matrix))
    (grad,) = torch.autograd.grad(spread.sum(), matrix)
    some = matrix > 0
    torch.testing.assert_close(grad[some], -matrix[some].log() - 1)
    assert grad.isfinite().all()


@one_or_many
def test_other_answers_are_detached_and_grad_mode_is_kept(tile):
    recipe = dot(query=random(2, 4, 6, 4).requires_grad_())
    asked = [regard.QueryRows([0]), regard.Entropy(), regard.ReceivedAttention()]
    answers = regard.reduce(recipe, asked, tile=tile)
    assert torch.is_grad_enabled() and not any(answer.requires_grad for answer in answers)


@pytest.fixture
def two_threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(tile_walk, "_WORTH_THREADS", 0)
    yield
    torch.set_num_threads(before)


class Meet(regard.Reducer):
    """Goes on only when two threads are in a tile at once, each with one torch thread."""

    def __init__(self, across_heads):
        super().__init__()
        self.across_heads, self.barrier = across_heads, threading.Barrier(2, timeout=20)

    def start(self, matrix):
        self.seen = torch.zeros(())

    def tile(self, rows, columns, log_weights, weights):
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
        self.barrier.wait()
        self.seen += 1

    def merge(self, other):
        self.seen = self.seen + other.seen

    def result(self):
        return self.seen


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("heads", "across"), [(2, False), (1, False), (2, True)])
def test_two_threads_share_the_heads_or_the_rows(heads, across):
    x = random(1, heads, 8, 4)
    size = (4, 8) if heads == 1 or across else (8, 8)  # two tiles for each thread to meet in
    (seen,) = regard.reduce(Dot(x, x), [Meet(across)], tile=size)
    assert int(seen.sum()) == heads * (8 // size[0])
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("across", [False, True], ids=["heads", "across heads"])
def test_threads_change_no_answer(monkeypatch, heads, across):
    reducers = [regard.ReceivedAttention(), regard.Entropy(), regard.TopK(3), regard.Histogram(5)]
    reducers += [regard.HeadMean(), regard.HeadMax()] if across else []
    recipe = dot(40, 30, heads, key=random(2, 1, 30, 4, seed=2))
    parallel = regard.reduce(recipe, reducers, tile=(3, 7))
    monkeypatch.setattr(tile_walk, "_WORTH_THREADS", 1 << 60)
    alone = regard.reduce(recipe, reducers, tile=(3, 7))
    for one, other in zip(parallel, alone):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


class Trips(regard.Entropy):
    def __init__(self, where):
        super().__init__()
        self.where = where

    def _trip(self, where):
        if where == self.where:
            raise RuntimeError(f"tripped in {where}")

    def start(self, matrix):
        super().start(matrix)
        self._trip("start")

    def last_tile(self, *tile):
        self._trip("tile")

    def merge(self, other):
        self._trip("merge")

    def result(self):
        self._trip("result")
        return super().result()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("where", ["start", "tile", "merge", "result"])
def test_a_reducer_that_raises_leaves_no_trace(where, heads):
    x = random(1, heads, 8, 4)
    if where != "merge" or heads == 1:  # heads of one thread are not merged
        with pytest.raises(RuntimeError, match=f"tripped in {where}"):
            regard.reduce(Dot(x, x), [Trips(where)], tile=(2, 8))
    assert torch.get_num_threads() == 2 and torch.is_grad_enabled()
    torch.testing.assert_close(*regard.reduce(Dot(x, x), [regard.Entropy(), regard.Entropy()]))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("leaves_first", ["main", "other"])
def test_two_walks_at_once_give_the_threads_back(monkeypatch, leaves_first):
    monkeypatch.setattr(tile_walk, "_WORTH_THREADS", 1 << 60)
    recipe = dot(heads=1)
    other_is_in, main_is_out = threading.Event(), threading.Event()

    class Other(regard.ReceivedAttention):
        def tile(self, *tile):
            other_is_in.set()
            assert leaves_first == "other" or main_is_out.wait(20)

    class Main(regard.ReceivedAttention):
        def tile(self, *tile):
            if not other.ident:
                other.start()
                assert other_is_in.wait(20)
                other.join(20 if leaves_first == "other" else 0)

    other = threading.Thread(target=lambda: regard.reduce(recipe, [Other()]))
    regard.reduce(recipe, [Main()], tile=(8, 8))
    main_is_out.set()
    other.join(20)
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("per_head", [False, True])
@one_or_many
def test_what_nobody_sees_reaches_no_answer(tile, bad, per_head):
    keep = torch.ones(1, 2 if per_head else 1, 1, 5, dtype=torch.bool)
    keep[:, 0, :, 3] = False  # for every head, or for the first one alone
    query, key = random(1, 2, 4, 4), random(1, 2, 5, 4, seed=1)
    weights = dense.attention(query, key, key, mask=keep, scale=1.0)[1]
    key[:, : 1 if per_head else 2, 3] = bad
    received, spread, most = regard.reduce(
        Dot(query, key, mask=masks.pairs(keep)),
        [regard.ReceivedAttention(), regard.Entropy(), regard.HeadMax()],
        tile=tile,
    )
    torch.testing.assert_close(received, weights.sum(2))
    torch.testing.assert_close(spread, entropy(weights))
    torch.testing.assert_close(most, weights.amax(1))


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
@one_or_many
def test_nothing_to_attend(tile, queries, keys):
    recipe = Dot(random(2, 3, queries, 4), random(2, 3, keys, 4), mask=masks.causal())
    asked = [regard.ReceivedAttention(), regard.Entropy(), regard.HeadMean(), regard.Distance()]
    received, spread, mean, far = regard.reduce(recipe, asked, tile=tile)
    assert received.shape == (2, 3, keys) and spread.shape == far.shape == (2, 3, queries)
    assert mean.shape == (2, queries, keys)
    assert not any(answer.any() for answer in (received, spread, mean, far))


class FirstKey(regard.Reducer):
    """How much every query gives to the first key: a reducer of a user's own."""

    def start(self, matrix):
        self.given = matrix.zeros(matrix.queries)

    def tile(self, rows, columns, log_weights, weights):
        if columns.start == 0:
            self.given[rows] += weights[:, 0]

    def merge(self, other):
        self.given += other.given

    def result(self):
        return self.given, self.given.sum()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("heads", [1, 4])
def test_a_reducer_of_ones_own(heads):
    recipe = dot(heads=heads)
    each, total = regard.reduce(recipe, [FirstKey()], tile=(2, 2))[0]
    torch.testing.assert_close(each, dense_weights(recipe)[..., 0])
    torch.testing.assert_close(total, each.sum(-1))


def test_memory_stays_far_below_the_matrix():
    """4096 tokens and 4 heads make a matrix of 268 MB."""
    code = """
import resource, torch, regard
reducers = [regard.ReceivedAttention(), regard.Entropy()]
ask = lambda q: regard.attend(q, q, q, causal=True, reduce=reducers)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ask(torch.randn(1, 4, 64, 64))
x = torch.randn(1, 4, 4096, 64)
before = peak()
ask(x)
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 40_000  # kilobytes
