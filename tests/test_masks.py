"""Masks: every part, evaluated any way, is the same boolean matrix."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import config
from torch.utils import _pytree

import regard
from regard import masks
from regard.errors import DtypeError, MaskError
from regard.masks import parts, sizes
from regard.types import Block, Shape, whole

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@pytest.fixture
def unchecked(monkeypatch):
    """Our own errors come first, where run-time shape checks would stop the call before them."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)


@st.composite
def planes(draw):
    """A random mask with the sizes it fits: (mask, batch, heads, queries, keys)."""
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))

    def flip(*shape):
        return torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.7]))

    def number(*shape):
        return torch.randint(0, 3, shape, generator=generator)

    def part():
        kind = draw(st.sampled_from(["padding", "lengths", "band", "pairs", "segments"]))
        some = draw(st.sampled_from([1, batch]))
        if kind == "padding":
            return masks.padding(flip(some, keys))
        if kind == "lengths":
            return masks.lengths(torch.randint(0, keys + 1, (some,), generator=generator), keys)
        if kind == "band":
            side = st.one_of(st.none(), st.integers(0, 5))
            return masks.window(draw(side), draw(side))
        if kind == "pairs":
            row = draw(st.sampled_from([1, queries]))
            return masks.pairs(flip(some, draw(st.sampled_from([1, heads])), row, keys))
        return masks.segments(number(some, queries), number(some, keys))

    def tree(depth):
        how = draw(st.sampled_from(["part", "part", "&", "|", "~"])) if depth else "part"
        if how == "part":
            return part()
        if how == "~":
            return ~tree(depth - 1)
        first, second = tree(depth - 1), tree(depth - 1)
        return first & second if how == "&" else first | second

    return tree(3), batch, heads, queries, keys


def slices(draw, length):
    start = draw(st.integers(0, length - 1))
    return slice(start, draw(st.integers(start + 1, length)))


@quick
@given(planes(), st.data())
def test_any_block_is_that_block_of_the_whole(plane, data):
    mask, batch, heads, queries, keys = plane
    rows, columns = slices(data.draw, queries), slices(data.draw, keys)
    part = mask.block(Block.of(rows, columns, queries, keys))
    whole = mask.dense(queries, keys).expand(batch, heads, -1, -1)
    assert torch.equal(
        torch.as_tensor(part).expand_as(whole[:, :, rows, columns]), whole[:, :, rows, columns]
    )


@quick
@given(planes(), st.data())
def test_columns_leave_out_no_permitted_pair(plane, data):
    mask, _, _, queries, keys = plane
    rows = slices(data.draw, queries)
    seen = mask.columns(rows, queries, keys)
    assert 0 <= seen.start <= seen.stop <= keys
    whole = mask.dense(queries, keys)[:, :, rows]
    assert not whole[..., : seen.start].any() and not whole[..., seen.stop :].any()


@quick
@given(planes(), st.sampled_from([1, 1 << 22]))
def test_alive_awake_counts_and_own_are_exact(plane, strip):
    mask, batch, heads, queries, keys = plane
    whole = mask.dense(queries, keys).expand(batch, heads, -1, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "_STRIP", strip)  # one row at a time, or everything at once
        alive, awake = mask.alive(queries, keys), mask.awake(queries, keys)
        counts, own = mask.counts(queries, keys), mask.own(queries, keys)
    for found, expected in ((alive, whole.any(2)), (awake, whole.any(3))):
        got = torch.tensor(True) if found is None else found
        assert torch.equal(got.expand_as(expected), expected)
    for query in range(max(0, queries - keys), queries):  # earlier ones have no key of their own
        itself = whole[:, :, query, query + keys - queries]
        got = torch.ones(1, 1, dtype=torch.bool) if own is None else own[:, :, query]
        assert torch.equal(got.expand_as(itself), itself)
    assert torch.equal(counts.expand(batch, heads, -1), whole.sum(3))


@quick
@given(planes(), st.data())
def test_at_is_the_mask_of_one_example_and_head(plane, data):
    mask, batch, heads, queries, keys = plane
    b, h = data.draw(st.integers(0, batch - 1)), data.draw(st.integers(0, heads - 1))
    whole = mask.dense(queries, keys).expand(batch, heads, -1, -1)
    one = mask.at(b, h).dense(queries, keys)
    assert one.shape[:2] == (1, 1) and torch.equal(one[0, 0], whole[b, h])


@quick
@given(planes())
def test_a_mask_survives_flattening_and_moving(plane):
    mask, batch, heads, queries, keys = plane
    mask.check(Shape(batch, heads, queries, keys))
    leaves, structure = _pytree.tree_flatten(mask)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = _pytree.tree_unflatten(leaves, structure)
    assert type(again) is type(mask)
    for twin in (again, mask.to("cpu")):
        assert torch.equal(twin.dense(queries, keys), mask.dense(queries, keys))


@quick
@given(planes(), st.data())
def test_laws_of_and_or_not(plane, data):
    first, *lead, queries, keys = plane
    second = masks.window(data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4)))

    def dense(mask):
        return mask.dense(queries, keys).expand(*lead, queries, keys)

    assert torch.equal(dense(first & second), dense(first) & dense(second))
    assert torch.equal(dense(first | second), dense(first) | dense(second))
    assert torch.equal(dense(~first), ~dense(first))
    assert torch.equal(dense(~(first & second)), dense(~first | ~second))
    assert torch.equal(dense(~~first), dense(first))


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "expected"),
    [
        (masks.causal(), 2, 4, ["1110", "1111"]),
        (masks.causal(), 3, 3, ["100", "110", "111"]),
        (masks.causal(), 4, 2, ["00", "00", "10", "11"]),
        (masks.window(1, 0), 3, 3, ["100", "110", "011"]),
        (masks.window(None, 1), 2, 3, ["111", "111"]),
        (masks.window(0, 0), 2, 3, ["010", "001"]),
        (masks.window(2, None) & masks.causal(), 4, 4, ["1000", "1100", "1110", "0111"]),
        (masks.lengths(torch.tensor([2]), 3), 1, 3, ["110"]),
        (masks.padding(torch.tensor([[True, False]])), 2, 2, ["10", "10"]),
        (masks.segments(torch.tensor([[0, 0, 1]])), 3, 3, ["110", "110", "001"]),
        (masks.pairs(torch.tensor([[[[True, False]]]])), 2, 2, ["10", "10"]),
    ],
)
def test_what_each_part_permits(mask, queries, keys, expected):
    drawn = ["".join(str(int(x)) for x in row) for row in mask.dense(queries, keys)[0, 0]]
    assert drawn == expected


def test_bands_meet_in_one_band():
    assert isinstance(masks.causal() & masks.window(3, 5), parts.Band)
    assert isinstance(masks.causal() & masks.lengths(torch.tensor([1]), 2), parts.Both)


def test_both_takes_none_for_everything():
    causal = masks.causal()
    assert masks.both(None, None) is None
    assert masks.both(causal, None) is causal and masks.both(None, causal) is causal


def test_a_long_causal_mask_never_becomes_a_matrix():
    length = 100_000  # as a matrix: ten gigabytes
    mask = masks.causal() & masks.lengths(torch.tensor([length - 10]), length)
    corner = Block.of(slice(length - 4, length), slice(length - 12, length), length, length)
    assert mask.block(corner)[0, 0].sum(1).tolist() == [2, 2, 2, 2]
    assert mask.columns(slice(0, 256), length, length) == slice(0, 256)
    assert int(mask.alive(length, length).sum()) == length - 10
    assert masks.causal().block(Block.of(slice(0, 9), slice(9, 99), length, length)) is False


@pytest.mark.parametrize("polarity", ["bool", "float"])
@pytest.mark.parametrize("per_head", [False, True])
def test_from_torch_means_what_multi_head_attention_means(polarity, per_head):
    torch.manual_seed(0)
    batch, heads, queries, keys, width = 2, 3, 4, 5, 6
    attention = torch.nn.MultiheadAttention(width, heads, batch_first=True).double()
    query, key = (
        torch.randn(batch, queries, width).double(),
        torch.randn(batch, keys, width).double(),
    )
    attn_mask = torch.rand(*([batch * heads] if per_head else []), queries, keys) < 0.4
    attn_mask[..., 0] = False
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    if polarity == "float":
        attn_mask = torch.where(attn_mask, -torch.inf, torch.randn(attn_mask.shape)).double()
        padding = torch.where(padding, -torch.inf, 0.0).double()
    _, expected = attention(
        query, key, key, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False
    )
    project_query, project_key, _ = attention.in_proj_weight.chunk(3)
    q = (query @ project_query.T).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = (key @ project_key.T).unflatten(-1, (heads, -1)).transpose(1, 2)
    mask, bias = masks.from_torch(attn_mask, padding, n_heads=heads)
    assert (bias is None) == (polarity == "bool")
    found = regard.attend(q, k, k, mask=mask, bias=bias, weights=True)
    torch.testing.assert_close(found.weights, expected)


def test_from_torch_of_nothing_is_nothing():
    assert masks.from_torch() == (None, None)


SHAPE = Shape(2, 3, 4, 5)


def true(*shape):
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        (torch.ones(2, 3, 4, 5), DtypeError, r"mask is torch.float32.*pass them as bias="),
        (true(2, 5), MaskError, r"mask has 2 axes \(2, 5\), expected 4.*masks.padding\(keep\)"),
        (torch.ones(2, 3, 4, 5).int(), DtypeError, r"mask is torch.int32, expected torch.bool"),
        ([[True]], DtypeError, r"mask is list, not a Mask; use masks.padding"),
        (true(3, 3, 4, 5), MaskError, r"pairs: axis batch has size 3, expected 2 or 1"),
        (true(2, 2, 4, 5), MaskError, r"pairs: axis head has size 2, expected 3 or 1"),
        (true(2, 3, 5, 5), MaskError, r"pairs: axis query has size 5, expected 4 or 1"),
        (true(2, 3, 4, 1), MaskError, r"pairs: axis key has size 1, expected 5 \(mask \(2, 3, 4"),
        (masks.padding(true(4, 5)), MaskError, r"padding: axis batch has size 4, expected 2 or 1"),
        (masks.padding(true(2, 4)), MaskError, r"padding: axis key has size 4, expected 5"),
        (masks.segments(torch.zeros(2, 4).int()), MaskError, r"segments: axis key has size 4"),
        (~masks.padding(true(2, 4)), MaskError, r"padding: axis key has size 4"),
        (masks.causal() & masks.padding(true(2, 4)), MaskError, r"padding: axis key has size 4"),
        (masks.padding(true(2, 4)) | masks.causal(), MaskError, r"padding: axis key has size 4"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_mask_that_does_not_fit_says_why(mask, error, text):
    with pytest.raises(error, match=text):
        masks.resolve(mask, True, SHAPE)


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: masks.padding(torch.ones(2, 5)), DtypeError, "padding: dtype torch.float32, exp"),
        (lambda: masks.padding(true(5)), MaskError, r"padding: 1 axes \(5,\), expected 2. Use"),
        (lambda: masks.pairs(true(4, 5)), MaskError, r"pairs: 2 axes \(4, 5\), expected 4. Use"),
        (lambda: masks.causal() & true(2, 5), DtypeError, "with a Mask, not with Tensor.*pairs"),
        (lambda: masks.causal() | None, DtypeError, "combines with a Mask, not with NoneType"),
        (lambda: masks.window(-1, 2), MaskError, "window: left=-1, expected a number >= 0"),
        (lambda: masks.window(None, -2), MaskError, "window: right=-2, expected a number >= 0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_constructors_refuse_what_is_not_a_mask(build, error, text):
    with pytest.raises(error, match=text):
        build()


def test_resolve_intersects_with_causal():
    whole = masks.resolve(masks.lengths(torch.tensor([5, 3]), 5), True, SHAPE).dense(4, 5)
    expected = torch.ones(4, 5).tril(1) * (torch.arange(5) < torch.tensor([[5], [3]]))[:, None]
    assert torch.equal(whole[:, 0], expected.bool())
    assert masks.resolve(None, False, SHAPE) is None


def test_first_keys_are_seen_however_far_before():
    mask = masks.window(1, 0, first=2)
    assert mask.dense(6, 6)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]
    assert repr(mask) == "window(1, 0, first=2)"
    assert repr(masks.window(None, 0, first=2)) == "causal()"
    with pytest.raises(MaskError, match="first=-1, expected a number >= 0"):
        masks.window(1, 0, first=-1)


def test_windows_with_first_keys_combine_as_their_matrices():
    bands = [masks.causal(), masks.window(1, 2), masks.window(3, 0, first=2)]
    bands += [masks.window(2, None, first=2), masks.window(1, 1, first=4)]
    for one, other in itertools.product(bands, bands):
        for queries in (3, 7):
            both = one.dense(queries, 7) & other.dense(queries, 7)
            together = one & other
            assert torch.equal(together.dense(queries, 7), both)
            blocks = [whole(queries, 7).over(slice(left, left + 2)) for left in range(6)]
            for block in blocks:
                allowed = together.block(block)
                expected = both[..., block.columns]
                assert torch.equal(torch.as_tensor(allowed).expand_as(expected), expected)
            alive, awake = together.alive(queries, 7), together.awake(queries, 7)
            seen = torch.ones(1, 1, 7, dtype=torch.bool) if alive is None else alive
            assert torch.equal(seen, both.any(2))
            assert torch.equal(both.any(3) if awake is None else awake, both.any(3))
