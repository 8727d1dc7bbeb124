"""Tiles, rows and columns against weights made whole."""

import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from serving import attention, until

from regard import masks
from regard.aggregate import Words, rollout
from regard.recipe import Dot, Given
from regard.record import Record, Site, Trace
from regard.record.stored_attention import StoredRecipe
from regard.viewer import Scene
from regard.viewer.server.limits import Refusal
from regard.viewer.server.maps.map_query import MapQuery
from regard.viewer.server.maps.tile_manifest import tile_manifest
from regard.viewer.server.maps.tiles import SIDE, Maps, TileCache

TOKENS = ["[CLS]", "un", "##believ", "##able", "news", "[SEP]", "in", "##deed", "[SEP]"]


def trace_of(count, heads=3, layers=2, dtype=torch.float32, lse=False):
    generator = torch.Generator().manual_seed(count)
    records = []
    for layer in range(layers):
        query, key = (
            (torch.randn(2, heads, count, 16, generator=generator) * 1.5).to(dtype)
            for _ in range(2)
        )
        recipe = Dot(query, key, mask=masks.causal(), scale=0.25)
        with torch.no_grad():
            recipe = recipe.with_lse() if lse else recipe
        site = Site(f"layer.{layer}.attention", "Attention", "", "given", attends="self")
        records.append(
            Record(
                site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
            )
        )
    return Trace(records)


def maps_of(trace, limit=1 << 28, **options):
    return Maps("x", Scene.of(trace, **options), TileCache(limit))


def asked(maps, **query):
    return MapQuery.of({name: str(value) for name, value in query.items()}, maps.scene)


def whole(maps, ask, level=0):
    """All tiles of a level, put together."""
    rows, columns = (-(-axis.size // (SIDE << level)) for axis in maps.axes(ask))
    bands = [
        torch.cat([maps.tile(ask, level, row, column) for column in range(columns)], 1)
        for row in range(rows)
    ]
    return torch.cat(bands)


@pytest.mark.parametrize("count", [1, 7, 256, 300, 700, 1100])
@pytest.mark.parametrize("lse", [False, True])
def test_tiles_are_the_weights_of_the_record(count, lse):
    trace = trace_of(count, lse=lse)
    maps = maps_of(trace, example=1)
    want = trace[1].weights()[1].float()
    for head in (0, 2):
        ask = asked(maps, layer=1, head=head)
        assert torch.equal(whole(maps, ask), want[head])
        for index in {0, count // 2, count - 1}:
            assert torch.equal(maps.row(ask, index), want[head, index])
            torch.testing.assert_close(
                maps.column(ask, index), want[head, :, index], atol=1e-6, rtol=1e-5
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    trace = trace_of(40, dtype=dtype)
    maps = maps_of(trace)
    want = trace[0].weights()[0, 1].float()
    assert torch.equal(whole(maps, asked(maps, head=1)), want)
    assert maps.column(asked(maps, head=1), 3).dtype == torch.float32


def test_mean_and_max_of_heads_and_layers():
    trace = trace_of(300)
    maps = maps_of(trace)
    both = torch.stack([record.weights()[0] for record in trace]).double()  # (layer, head, …)
    cases = {
        ("mean", "1"): both[1].mean(0),
        ("max", "0"): both[0].amax(0),
        ("mean", "all"): both.mean((0, 1)),
        ("head", "all"): both.mean((0, 1)),
        ("max", "all"): both.amax((0, 1)),
    }
    for (mode, layer), want in cases.items():
        ask = asked(maps, mode=mode, layer=layer)
        torch.testing.assert_close(whole(maps, ask).double(), want, atol=1e-7, rtol=1e-6)
        torch.testing.assert_close(maps.column(ask, 9).double(), want[:, 9], atol=1e-6, rtol=1e-5)


def test_rollout_goes_through_all_layers():
    trace = trace_of(270)
    maps = maps_of(trace)
    want = rollout(trace)[0].float()
    ask = asked(maps, mode="rollout", layer=1)
    assert torch.equal(whole(maps, ask), want)
    assert torch.equal(maps.row(ask, 260), want[260])
    assert torch.equal(maps.column(ask, 3), want[:, 3])
    with pytest.raises(Refusal, match="gradient"):
        maps.row(asked(maps, mode="relevance"), 0)


@pytest.mark.parametrize("count", [300, 1100])
def test_a_level_is_the_largest_of_each_block(count):
    trace = trace_of(count)
    maps = maps_of(trace)
    fine = trace[0].weights()[0, 0]
    ask = asked(maps)
    assert maps.levels(ask) == {300: 2, 1100: 4}[count]
    for level in range(1, maps.levels(ask)):
        side = 1 << level
        height = -(-count // side)
        want = torch.stack(
            [
                torch.stack(
                    [
                        fine[i * side : (i + 1) * side, j * side : (j + 1) * side].max()
                        for j in range(0, height, 7)
                    ]
                )
                for i in range(0, height, 7)
            ]
        )
        assert torch.equal(whole(maps, ask, level)[::7, ::7], want)


def test_a_level_of_signed_weights_keeps_what_is_farthest_from_nothing():
    weights = torch.randn(1, 1, 300, 300, generator=torch.Generator().manual_seed(0))
    maps = Maps("x", Scene.of(weights, kind="signed"), TileCache(1 << 28))
    coarse = whole(maps, asked(maps), 1)
    for i, j in ((0, 0), (7, 120), (149, 149)):
        block = weights[0, 0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten()
        assert coarse[i, j] == block[block.abs().argmax()]
    assert (coarse < 0).any()


@pytest.mark.parametrize("mode", ["head", "mean", "max", "rollout"])
def test_words_and_folded_special_tokens(mode):
    tokens = TOKENS * 60  # special tokens lie in every band
    trace = trace_of(len(tokens)).with_tokens(tokens)
    maps = maps_of(trace)
    words = maps.scene.lines[0].words
    if mode == "rollout":
        fine = rollout(trace)[0]
    else:
        fine = trace[0].weights()[0]
        fine = {"head": fine[1], "mean": fine.mean(0), "max": fine}[mode]
    cases = {
        ("words", "shown"): words,
        ("words", "folded"): words.pooled_special(),
        ("pieces", "folded"): Words(
            tokens, list(range(len(tokens))), tokens, _special(tokens)
        ).pooled_special(),
    }
    for (unit, special), grouped in cases.items():
        ask = asked(maps, mode=mode, head=1, unit=unit, special=special)
        want = grouped.merge(fine.double()).float()
        want = want.amax(0) if mode == "max" else want
        assert whole(maps, ask).shape == want.shape
        torch.testing.assert_close(whole(maps, ask), want, atol=1e-6, rtol=1e-5)
        last = len(want) - 1
        torch.testing.assert_close(maps.row(ask, last), want[last], atol=1e-6, rtol=1e-5)
        for index in (0, 5, last):
            torch.testing.assert_close(
                maps.column(ask, index), want[:, index], atol=1e-6, rtol=1e-5
            )


def _special(tokens):
    return frozenset(i for i, token in enumerate(tokens) if token.startswith("["))


def test_words_that_lie_apart_and_a_word_without_pieces():
    numbers = [0, 1, 0, None, 2]
    words = Words.given(numbers, list("abcde"), names=["x", "y", "z", "nobody"])
    trace = trace_of(5)
    maps = maps_of(trace, words=words)
    ask = asked(maps, unit="words")
    want = words.merge(trace[0].weights()[0, 0])
    torch.testing.assert_close(whole(maps, ask), want)
    assert "nobody" in words.names and maps.axes(ask)[0].size == len(words.names)


def test_cross_attention_has_axes_of_its_own():
    weights = torch.rand(1, 2, 3, 600, generator=torch.Generator().manual_seed(0)).softmax(-1)
    recipe = Given(weights)
    site = Site("cross.0", "Cross", "", "given", attends="cross")
    record = Record(
        site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
    )
    maps = maps_of(Trace([record]))
    ask = asked(maps, head=1)
    assert torch.equal(whole(maps, ask), weights[0, 1])
    assert maps.tile(ask, 0, 0, 2).shape == (3, 600 - 512)
    assert maps.tile(ask, 2, 0, 0).shape == (1, 150)


def test_the_cache_is_bounded_and_bands_are_made_once():
    cache, made = TileCache(1000), []

    def make(number):
        def now():
            made.append(number)
            return torch.zeros(100)  # 400 bytes

        return now

    for number in (0, 1, 0, 2, 0, 1):
        cache.get(("t", number), make(number))
    assert made == [0, 1, 2, 1], "the one not asked for longest is made again"
    assert cache.nbytes == 800
    cache.forget("t")
    assert cache.nbytes == 0


def test_a_failure_is_not_kept():
    cache = TileCache(1000)

    def fails():
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        cache.get(("t",), fails)
    assert cache.get(("t",), lambda: torch.ones(1)) == 1


def test_what_is_made_twice_is_counted_once():
    """One fails, one waits for it, a third comes: the last two make the same."""
    cache, failing, making = TileCache(10_000), threading.Event(), threading.Event()
    both = threading.Barrier(2, timeout=10)

    def fails():
        making.set()
        assert failing.wait(10)
        raise ValueError

    def meets():
        both.wait()
        return torch.zeros(100)  # 400 bytes

    def first():
        with suppress(ValueError):
            cache.get(("t",), fails)

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert making.wait(10)
    threads.append(threading.Thread(target=cache.get, args=(("t",), meets)))
    threads[1].start()
    time.sleep(0.2)  # it waits for the first
    failing.set()
    threads[0].join(10)
    until(lambda: both.n_waiting == 1)
    cache.get(("t",), meets)
    threads[1].join(10)
    assert cache.nbytes == 400
    assert not cache._locks
    cache.forget("t")
    assert cache.nbytes == 0


def test_only_who_made_a_lock_takes_it_away():
    """The second of two makers is still at work when the first is done."""
    cache = TileCache(10_000)
    lock = threading.Lock()

    def replaced():
        cache._locks[("t",)] = lock
        return torch.zeros(1)

    cache.get(("t",), replaced)
    assert cache._locks == {("t",): lock}


@pytest.mark.parametrize("unit", ["pieces", "words"])
def test_hidden_special_tokens_leave_shares_of_the_rest(unit):
    maps = maps_of(trace_of(len(TOKENS)).with_tokens(TOKENS), example=1)
    folded = whole(maps, asked(maps, unit=unit, special="folded", head=1, layer=1))[:-1, :-1]
    total = folded.sum(1, keepdim=True)
    expected = torch.where(total > 0, folded / total, 0.0)
    ask = asked(maps, unit=unit, special="hidden", head=1, layer=1)
    torch.testing.assert_close(whole(maps, ask), expected)
    for index in range(expected.shape[1]):
        torch.testing.assert_close(maps.column(ask, index), expected[:, index])
        torch.testing.assert_close(maps.row(ask, index), expected[index])


def test_the_largest_of_heads_without_special_tokens_is_that_of_one_head():
    trace = trace_of(len(TOKENS)).with_tokens(TOKENS)
    maps = maps_of(trace)
    words = maps.scene.lines[0].words.without_special()
    merged = words.merge(torch.cat([record.weights()[0] for record in trace]))
    total = merged.sum(-1, keepdim=True)
    want = torch.where(total > 0, merged / total, 0.0).amax(0)
    ask = asked(maps, mode="max", layer="all", unit="words", special="hidden")
    torch.testing.assert_close(whole(maps, ask), want)
    torch.testing.assert_close(maps.column(ask, 1), want[:, 1])


def test_features_of_a_pair_add_up_to_its_score():
    trace = trace_of(9)
    maps = maps_of(trace, example=1)
    features = maps.features(asked(maps, layer=1, head=2), 7, 3)
    recipe = trace[1].recipe
    score = recipe.query[1, 2, 7] @ recipe.key[1, 2, 3] * recipe.scale
    assert features.shape == (16,) and float(features.sum()) == pytest.approx(float(score))
    with pytest.raises(Refusal, match="no products of queries and keys"):
        maps.features(asked(maps, mode="mean"), 7, 3)
    for more in ({"bias": torch.ones(2, 3, 9, 9)}, {"softcap": 5.0}):
        capped = replace(recipe, **more)
        record = Record(
            Site("0", "Attention", "", "given", attends="self"), StoredRecipe(capped),
            shape=capped.shape, kind=capped.kind, dtype=capped.dtype,
        )  # fmt: skip
        maps = maps_of(Trace([record]))
        with pytest.raises(Refusal, match="no products of queries and keys"):
            maps.features(asked(maps), 7, 3)


def test_no_map_goes_through_layers_that_are_too_long(monkeypatch):
    trace = trace_of(40)
    assert "rollout" in tile_manifest(Scene.of(trace)).manifest["parts"][0]["maps"]
    monkeypatch.setattr("regard.viewer.stack._LONGEST", 39)
    assert list(tile_manifest(Scene.of(trace)).manifest["parts"][0]["maps"]) == ["mean", "max"]
    maps = maps_of(trace)
    with pytest.raises(Refusal, match=r"rollout: .* too long"):
        maps.row(asked(maps, mode="rollout"), 0)


def test_wrong_parameters_are_named():
    maps = maps_of(Trace(list(trace_of(5))))
    for query, said in (
        ({"part": 1}, "part='1', expected a whole number from 0 to 0"),
        ({"layer": 2}, "layer='2', expected a whole number from 0 to 1"),
        ({"head": "-1"}, "head='-1'"),
        ({"head": "²"}, "head='²'"),
        ({"mode": "sum"}, "mode='sum', expected one of head, mean, max, rollout, relevance"),
        ({"unit": "letters"}, "unit='letters'"),
        ({"special": "x" * 99}, "special='xxx"),
    ):
        with pytest.raises(Refusal) as caught:
            asked(maps, **query)
        assert said in str(caught.value) and len(str(caught.value)) < 200


def test_random_attention_is_a_stack():
    assert [tuple(weights.shape) for weights in attention(4)] == [(1, 2, 4, 4)] * 2
