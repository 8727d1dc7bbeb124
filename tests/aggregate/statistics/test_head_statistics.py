"""Figures of heads against loops over single weights, in any size, tiling and precision."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statistics_loops import WINDOW, Loops, softmaxed

from regard import masks
from regard.aggregate.statistics import head_statistics as statistics
from regard.aggregate.statistics.head_statistics import FIGURES, head_statistics
from regard.aggregate.statistics.head_sums import Questions, RowSums
from regard.aggregate.statistics.token_positions import Positions
from regard.kernel import reduce
from regard.recipe import Dot, Given


def same(found, weights, tolerance=1e-8, **marks):
    """All figures of all heads against the loops."""
    queries, keys = weights.shape[2:]
    ahead = bool((weights.triu(keys - queries + 1) > 0).any())
    for head in range(weights.shape[1]):
        loops = Loops(weights[:, head], ahead, **marks)
        for name in FIGURES:
            want = getattr(loops, name + "_" if name == "special" else name)()
            got = float(getattr(found, name)[head])
            assert got == pytest.approx(want, abs=tolerance, rel=tolerance, nan_ok=True), name


def tokens_for(batch, keys):
    return torch.randint(3, 7, (batch, keys), generator=torch.Generator().manual_seed(9))


@pytest.fixture(params=["at once", "one tile", "tiles of 3 × 4"])
def way(request, monkeypatch):
    """Whether all heads are taken together, or the tiles are walked."""
    tile = {"at once": None, "one tile": (64, 64), "tiles of 3 × 4": (3, 4)}[request.param]
    monkeypatch.setattr(statistics, "reduce", partial(statistics.reduce, tile=tile))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [(9, 9, False), (9, 9, True), (4, 11, True), (4, 11, False), (1, 6, True), (2, 2, False)],
)
def test_every_figure_is_that_of_the_loops(queries, keys, causal):
    weights = softmaxed(3, 2, 3, queries, keys, causal)
    tokens = tokens_for(2, keys)
    special = torch.zeros(2, keys, dtype=torch.bool)
    special[0, 1] = special[1, -1] = True
    (found,) = head_statistics(weights, tokens=tokens, special=special, window=WINDOW)
    same(found, weights, tokens=tokens, special=special)
    torch.testing.assert_close(found.received, weights.mean(2))
    assert found.queries == 2 * queries
    (bare,) = head_statistics(weights, window=WINDOW)
    same(bare, weights)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("entries", [1, 1 << 20])
def test_what_is_kept_is_that_of_a_walk_over_nothing_else(monkeypatch, share, causal, entries):
    """The other keys are taken out of sums over all of them."""
    monkeypatch.setattr("regard.aggregate.statistics.head_sums._ENTRIES", entries)
    weights, tokens = softmaxed(4, 3, 2, 7, 9, causal), tokens_for(3, 9)
    real, marks = torch.ones(3, 9, dtype=torch.bool), torch.Generator().manual_seed(2)
    real[1, :2] = False
    special = torch.zeros_like(real)
    special[:, 5] = True
    questions = Questions(Positions(real[:, 2:], real, special, tokens), ordered=True)

    def sums_of(weights, kept=None):
        answers = statistics.reduce(Given(weights), list(questions.reducers.values()))
        return RowSums(Given(weights), questions, dict(zip(questions.reducers, answers)), kept)

    kept = torch.rand(3, 2, 9, generator=marks) >= share
    rest, walked = (
        RowSums.of_kept(sums_of(weights), kept),
        sums_of(weights * kept[:, :, None], kept),
    )
    torch.testing.assert_close(rest.answers, walked.answers)
    torch.testing.assert_close(rest.sums(WINDOW), walked.sums(WINDOW))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("queries", [8, 4])
def test_padding_is_left_out(side, masked, queries):
    """Also where the model was not told of it, and attends to padding."""
    weights = softmaxed(5, 3, 2, queries, 8)
    real = torch.ones(3, 8, dtype=torch.long)
    real[1, :3] = 0
    real[2, :5] = 0
    real = real.flip(1) if side == "right" else real
    if masked:
        weights = weights * real[:, None, None]
        weights = weights / weights.sum(-1, keepdim=True)
    tokens = tokens_for(3, 8)
    (found,) = head_statistics(weights, tokens=tokens, real=real, window=WINDOW)
    same(found, weights, tokens=tokens, real=real)
    assert found.queries == int(real[:, 8 - queries :].sum())


@pytest.mark.usefixtures("way")
def test_a_padded_batch_is_the_mean_of_its_examples_over_their_queries():
    long, short = softmaxed(1, 1, 2, 9, 9), softmaxed(2, 1, 2, 5, 5)
    padded = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    padded[:, :, :5, :5] = short
    padded[:, :, 5:, 0] = 1.0  # rows of padding hold anything
    real = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    (both,) = head_statistics(torch.cat([long, padded]), real=real)
    (one,), (two,) = head_statistics(long), head_statistics(short)
    for name in ("entropy", "effective", "itself", "sink", "local"):
        want = (9 * getattr(one, name) + 5 * getattr(two, name)) / 14
        torch.testing.assert_close(getattr(both, name), want)


@pytest.mark.usefixtures("way")
def test_rows_that_attend_to_nothing_do_not_count():
    weights = softmaxed(7, 2, 3, 7, 7)
    weights[0, :, 2] = 0.0
    weights[1, 1, :] = 0.0  # all of one head and example
    tokens = tokens_for(2, 7)
    (found,) = head_statistics(weights, tokens=tokens, window=WINDOW)
    same(found, weights, tokens=tokens)
    (none,) = head_statistics(torch.zeros(1, 2, 4, 4))
    assert all(bool(getattr(none, name).isnan().all()) for name in FIGURES)


@pytest.mark.usefixtures("way")
def test_rows_that_sum_to_less_than_one():
    """Entropy and numbers of keys are of the row divided by its sum, shares are as they are."""
    weights = softmaxed(8, 2, 2, 6, 6)
    weights[:, 1] *= 0.25
    (found,) = head_statistics(weights, window=WINDOW, kind="partial")
    same(found, weights)
    torch.testing.assert_close(
        found.entropy[1], -torch.xlogy(4 * weights[:, 1], 4 * weights[:, 1]).sum(-1).mean()
    )


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 99),
    batch=st.integers(1, 3),
    queries=st.integers(1, 9),
    more=st.integers(0, 4),
    causal=st.booleans(),
    small=st.booleans(),
)
def test_any_size(seed, batch, queries, more, causal, small):
    keys = queries + more
    weights = softmaxed(seed, batch, 2, queries, keys, causal, sharp=4.0)
    tokens = tokens_for(batch, keys)
    with pytest.MonkeyPatch.context() as patch:
        if not small:
            patch.setattr(statistics, "reduce", partial(statistics.reduce, tile=(64, 64)))
        (found,) = head_statistics(weights, tokens=tokens, window=WINDOW)
    if keys > 1:  # of a single key there is no logarithm to divide by
        same(found, weights, tokens=tokens)


def test_a_recipe_of_many_tiles():
    """Two tiles a matrix and more, with a causal mask, in float32."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 2, 600, 16)
    recipe = Dot(query, key, mask=masks.causal(), scale=0.5)
    tokens = torch.randint(0, 90, (600,))
    (streamed,) = head_statistics(recipe, tokens=tokens)
    weights = recipe.weights(*2 * [slice(0, 600)]).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce, "_SMALL", weights.numel())
        (dense,) = head_statistics(weights, tokens=tokens)
    for name in FIGURES:
        torch.testing.assert_close(
            getattr(streamed, name), getattr(dense, name), atol=1e-4, rtol=1e-4, equal_nan=True
        )
    assert streamed.repeats == dense.repeats > 400


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    weights = softmaxed(1, 2, 2, 12, 12).to(dtype)
    (found,) = head_statistics(weights, window=WINDOW)
    same(found, weights.double(), tolerance=1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert found.entropy.dtype == torch.float64


@pytest.mark.usefixtures("way")
def test_autocast_and_grad_change_nothing():
    query, key = torch.randn(2, 1, 2, 7, 16)
    recipe = Dot(query.requires_grad_(), key, scale=0.25)
    (plain,) = head_statistics(recipe)
    with torch.autocast("cpu", torch.bfloat16):
        (cast,) = head_statistics(recipe)
    for name in FIGURES:
        got, want = getattr(cast, name), getattr(plain, name)
        assert not got.requires_grad
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6, equal_nan=True)


class TestPositional:
    """1 for attention by relative position, near 0 for attention by content."""

    n = 200

    def share(self, *heads):
        return head_statistics(torch.stack(heads)[None])[0].positional.tolist()

    def causal(self, weights):
        weights = weights.tril()
        return weights / weights.sum(-1, keepdim=True)

    def content(self, keys=1):
        """Each query looks at keys of its own, anywhere before it."""
        random = torch.Generator().manual_seed(0)
        weights = torch.zeros(self.n, self.n, dtype=torch.float64)
        for i in range(self.n):
            weights[i, torch.randint(0, i + 1, (keys,), generator=random)] = 1.0
        return weights / weights.sum(-1, keepdim=True)

    def decay(self, width):
        place = torch.arange(self.n, dtype=torch.float64)
        return self.causal((-(place - place[:, None]).abs() / width).exp())

    def test_position(self):
        back = torch.eye(self.n, dtype=torch.float64).roll(-7, 1)
        back[:7] = torch.eye(self.n, dtype=torch.float64)[:7]
        narrow, wide = self.decay(2.0), self.decay(30.0)
        assert min(self.share(back, narrow, wide, self.content())[:3]) > 0.9

    def test_content(self):
        alone, several, narrow = self.share(self.content(), self.content(5), self.decay(2.0))
        assert alone < 0.2 and several < 0.2 < narrow

    def test_half_of_each_is_about_half(self):
        half = (self.decay(0.2) + self.content()) / 2
        (got, _) = self.share(half, self.content())
        assert got == pytest.approx(0.5, abs=0.1)

    def test_even_attention_has_nothing_to_explain(self):
        even = self.causal(torch.ones(self.n, self.n, dtype=torch.float64))
        assert math.isnan(self.share(even, self.content())[0])

    def test_a_fixed_place_is_not_a_relative_position(self):
        sink = torch.zeros(self.n, self.n, dtype=torch.float64)
        sink[:, 0] = 1.0
        assert self.share(sink, self.content())[0] < 0.1
