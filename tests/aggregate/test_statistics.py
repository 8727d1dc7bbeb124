"""Figures of heads against loops over single weights; what is refused; real models."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import masks
from regard.aggregate import statistics
from regard.aggregate.places import is_special
from regard.aggregate.statistics import FIGURES, head_statistics
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.recipe import Dot, Given

WINDOW = 2


def softmaxed(seed, batch, heads, queries, keys, causal=False, sharp=2.0):
    random = torch.Generator().manual_seed(seed)
    scores = sharp * torch.randn(batch, heads, queries, keys, generator=random).double()
    if causal:
        later = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1)


class Loops:
    """Every figure of one head, written from its definition, a weight at a time."""

    def __init__(self, weights, ahead, real=None, special=None, tokens=None):
        self.w = weights.tolist()  # (batch, query, key) of one head
        self.batch, self.n_queries, self.n_keys = weights.shape
        shift = self.n_keys - self.n_queries
        real = torch.ones(self.batch, self.n_keys) if real is None else real
        self.real = real.bool().tolist()
        self.special = None if special is None else special.tolist()
        self.tokens = None if tokens is None else tokens.tolist()
        self.first = [row.index(True) for row in self.real]
        self.last = [self.n_keys - 1 - row[::-1].index(True) for row in self.real]
        self.ahead = ahead
        # rows that count: example, query, own position
        self.rows = [
            (b, i, i + shift)
            for b in range(self.batch)
            for i in range(self.n_queries)
            if self.real[b][i + shift] and sum(self.w[b][i]) > 0
        ]

    def row(self, b, i):
        """A row divided by its sum."""
        return [x / sum(self.w[b][i]) for x in self.w[b][i]]

    def mean(self, figure, rows=None):
        rows = self.rows if rows is None else rows
        return sum(figure(*row) for row in rows) / len(rows) if rows else math.nan

    def entropy(self):
        return self.mean(lambda b, i, own: -sum(x * math.log(x) for x in self.row(b, i) if x > 0))

    def in_sight(self, b, own):
        return range(self.first[b], (self.last[b] if self.ahead else own) + 1)

    def even(self):
        return self.mean(lambda b, i, own: math.log(len(self.in_sight(b, own))))

    def evenness(self):
        return self.entropy() / self.even()

    def effective(self):
        return self.mean(lambda b, i, own: 1 / sum(x * x for x in self.row(b, i)))

    def by_offset(self, weigh):
        """Real pairs gathered by j − i."""
        found: dict[int, float] = {}
        for b, i, own in self.rows:
            for j in range(self.n_keys):
                if self.real[b][j]:
                    found[j - own] = found.get(j - own, 0.0) + weigh(b, i, own, j)
        whole = sum(found.values())
        return {d: x / whole for d, x in found.items()}

    def seen(self):
        return self.by_offset(lambda b, i, own, j: self.w[b][i][j])

    def distance(self):
        return sum(abs(d) * x for d, x in self.seen().items())

    def spread(self):
        mean = self.distance()
        return math.sqrt(sum((abs(d) - mean) ** 2 * x for d, x in self.seen().items()))

    def at(self, d):
        rows = [
            (b, i, own)
            for b, i, own in self.rows
            if 0 <= own + d < self.n_keys and self.real[b][own + d]
        ]
        return self.mean(lambda b, i, own: self.w[b][i][own + d], rows)

    def itself(self):
        return self.at(0)

    def previous(self):
        return self.at(-1)

    def next(self):
        return self.at(1)

    def sink(self):
        return self.mean(lambda b, i, own: self.w[b][i][self.first[b]])

    def mass(self, b, i, keys):
        return sum(self.w[b][i][j] for j in keys)

    def special_(self):
        if self.special is None:
            return math.nan
        return self.mean(
            lambda b, i, own: self.mass(b, i, [j for j in range(self.n_keys) if self.special[b][j]])
        )

    def local(self):
        return self.mean(
            lambda b, i, own: self.mass(
                b,
                i,
                [j for j in range(self.n_keys) if abs(j - own) <= WINDOW and self.real[b][j]],
            )
        )

    def peak(self):
        best = []
        for b in range(self.batch):
            rows = [i for example, i, _ in self.rows if example == b]
            if rows:
                got = [sum(self.w[b][i][j] for i in rows) / len(rows) for j in range(self.n_keys)]
                best.append(max(got))
        return sum(best) / len(best)

    def copies(self, b, own, after):
        if self.tokens is None:
            return []
        return [
            j
            for j in range(after, own - 1)
            if self.tokens[b][j - after] == self.tokens[b][own]
            and self.real[b][j]
            and j != self.first[b]
            and not (self.special is not None and self.special[b][j])
        ]

    def copied(self, after):
        rows = [(b, i, own) for b, i, own in self.rows if self.copies(b, own, after)]
        return self.mean(lambda b, i, own: self.mass(b, i, self.copies(b, own, after)), rows)

    def induction(self):
        return self.copied(1)

    def duplicate(self):
        return self.copied(0)

    def positional(self):
        def entropy(shares):
            return -sum(x * math.log(x) for x in shares.values() if x > 0)

        evenly = self.by_offset(
            lambda b, i, own, j: (
                1 / len(self.in_sight(b, own)) if j in self.in_sight(b, own) else 0.0
            )
        )
        rows = self.even() - self.entropy()
        if rows <= 0.01:
            return math.nan
        return min(1.0, max(0.0, (entropy(evenly) - entropy(self.seen())) / rows))


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
    if request.param != "at once":
        monkeypatch.setattr(statistics, "_SMALL", 0)
    if request.param == "tiles of 3 × 4":
        monkeypatch.setattr(statistics, "reduce", partial(statistics.reduce, tile=(3, 4)))


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
            patch.setattr(statistics, "_SMALL", 0)
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
        patch.setattr(statistics, "_SMALL", 600 * 600)
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


def test_cross_attention_has_no_positions():
    weights = softmaxed(0, 2, 2, 7, 5)
    (found,) = head_statistics(weights)
    for name in ("distance", "previous", "next", "itself", "local", "positional", "induction"):
        assert bool(getattr(found, name).isnan().all())
    assert found.offsets is None
    torch.testing.assert_close(found.sink, weights[..., 0].mean((0, 2)))
    entropy = -torch.xlogy(weights, weights).sum(-1).mean((0, 2))
    torch.testing.assert_close(found.evenness, entropy / math.log(5))
    (same_size,) = head_statistics(softmaxed(0, 2, 2, 5, 5), cross=True)
    assert bool(same_size.previous.isnan().all())
    real = torch.tensor([[1] * 7, [1] * 3 + [0] * 4])  # of the queries
    (some,) = head_statistics(weights, real=real)
    want = (weights[0, :, :, 0].sum(-1) + weights[1, :, :3, 0].sum(-1)) / 10
    torch.testing.assert_close(some.sink, want)
    with pytest.raises(ShapeError, match="cross=False, but 7 queries for 5 keys"):
        head_statistics(weights, cross=False)


def test_words_tell_special_tokens():
    special = ["[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "<|endoftext|>", "<|im_start|>", "[PAD]"]
    special += ["<bos>", "<｜begin▁of▁sentence｜>", "<start_of_turn>"]
    plain = ["the", "##ing", "▁the", "Ġthe", "[UNK]", "[MASK]", "<", "[NH]", "[Na+]", "|", "<div>"]
    assert all(map(is_special, special)) and not any(map(is_special, plain))
    weights = softmaxed(0, 1, 2, 4, 4)
    (found,) = head_statistics(weights, tokens=["[CLS]", "a", "b", "[SEP]"])
    torch.testing.assert_close(found.special, weights[0][..., [0, 3]].sum(-1).mean(-1))
    (numbers,) = head_statistics(weights, tokens=[5, 6, 7, 8])
    assert bool(numbers.special.isnan().all())


@pytest.mark.parametrize(
    "special",
    [[0, -1], torch.tensor([0, 3]), torch.tensor([True, False, False, True])],
    ids=["list", "tensor", "mask"],
)
def test_special_tokens_can_be_given(special):
    weights = softmaxed(0, 2, 2, 4, 4)
    (found,) = head_statistics(weights, special=special)
    torch.testing.assert_close(found.special, weights[..., [0, 3]].sum(-1).mean((0, 2)))


def test_tokens_as_words_numbers_and_from_the_record():
    weights = softmaxed(0, 2, 2, 6, 6)
    words = [list("abcabc"), list("xyzzzx")]
    numbers = torch.tensor([[1, 2, 3, 1, 2, 3], [8, 9, 7, 7, 7, 8]])
    (one,), (two,) = (head_statistics(weights, tokens=t) for t in (words, numbers))
    torch.testing.assert_close(one.duplicate, two.duplicate)
    layer = torch.nn.MultiheadAttention(8, 2)
    x = torch.randn(6, 1, 8)
    trace = regard.trace(layer.eval(), x, x, x).with_tokens(list("abcabc"))
    (told,) = head_statistics(trace)
    (given_,) = head_statistics(trace, tokens=torch.tensor([0, 1, 2, 0, 1, 2]))
    torch.testing.assert_close(told.induction, given_.induction)
    assert told.repeats == 3 and not bool(told.induction.isnan().any())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"window": 0}, RegardError, "window=0, expected a whole number of positions from 1"),
        ({"window": 2.5}, RegardError, "window=2.5"),
        ({"real": torch.ones(5)}, ShapeError, r"real is \(1, 5\), expected \(4,\) or \(2, 4\)"),
        ({"real": torch.ones(3, 4)}, ShapeError, r"real is \(3, 4\)"),
        ({"real": torch.full((4,), 2)}, RegardError, "expected a boolean tensor"),
        ({"tokens": torch.ones(4)}, ShapeError, r"tokens are torch.float32 \(4,\), expected whole"),
        ({"tokens": ["a", "b"]}, ShapeError, r"tokens is \(1, 2\), expected \(4,\) or \(2, 4\)"),
        ({"tokens": [["a"], ["a", "b"]]}, ShapeError, "different numbers of positions"),
        ({"tokens": "text"}, RegardError, "tokens='text', expected words or numbers"),
        ({"special": [4]}, RegardError, "special: position 4 is outside the 4 keys"),
        ({"special": "[CLS]"}, RegardError, r"special='\[CLS\]', expected positions"),
        ({"special": torch.ones(3).bool()}, ShapeError, r"special is \(1, 3\)"),
        ({"part": "encoder"}, RegardError, "chooses from a Trace"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_makes_no_sense_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        head_statistics(softmaxed(0, 2, 1, 4, 4), **options)


@pytest.mark.parametrize("kind", ["signed", "gate"])
def test_weights_that_are_no_shares_are_refused(kind):
    with pytest.raises(UnavailableError, match=f"layer 0: {kind} weights are no shares"):
        head_statistics(torch.randn(1, 2, 3, 3), kind=kind)


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0)])
def test_an_attention_of_nothing_is_refused(shape):
    with pytest.raises(ShapeError, match="layer 0: there is nothing in an attention"):
        head_statistics(torch.zeros(shape))


def test_a_record_without_a_recipe_is_refused():
    layer = torch.nn.MultiheadAttention(8, 2).eval()
    x = torch.randn(6, 1, 8)
    with torch.no_grad(), regard.capture(layer, keep=[regard.Entropy()]) as trace:
        layer(x, x, x)
    with pytest.raises(UnavailableError, match="only reductions were kept"):
        head_statistics(trace)


def test_given_weights_are_left_as_they_are():
    weights = softmaxed(0, 1, 2, 5, 5)
    before = weights.clone()
    head_statistics(Given(weights), tokens=list("abcab"))
    assert torch.equal(weights, before)
