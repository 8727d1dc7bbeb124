"""Memories in chunks: against one step after another, and against the implied weights."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from regard import masks
from regard.errors import MaskError, RegardError, UnavailableError
from regard.kernel.attend import run
from regard.kernel.linear_delta_chunks import Store, additive_step, delta_step, recur
from regard.recipe import Delta, Linear

SIZES = [(1, 1), (5, 7), (7, 5), (64, 64), (65, 130), (150, 150), (3, 0), (0, 3)]


def parts(queries, keys, dtype=torch.float64, seed=0, rate=2.0):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(2, 3, *shape, generator=random, dtype=torch.float64).to(dtype)

    query, key, value = draw(queries, 6), normalize(draw(keys, 6), dim=-1), draw(keys, 5)
    strength, log_decay = draw(keys).sigmoid(), -rate * draw(keys).abs()
    return query, key, value, strength, log_decay


def recipes(queries, keys, causal, decay, dtype=torch.float64):
    query, key, value, strength, log_decay = parts(queries, keys, dtype)
    options = {
        "log_decay": log_decay if decay else None,
        "mask": masks.causal() if causal else None,
    }
    yield Linear(query.exp(), key.exp(), value, **options)
    yield Linear(query, key, value, **options, normalised=False, of="signed")
    yield Delta(query, key, strength, value, **options)


def stepped(recipe):
    """The recurrence, one key after another; each query reads at its own time."""
    _, _, queries, keys = recipe.shape
    key, value, query = (x.flatten(0, 1) for x in (recipe.key, recipe.value, recipe.query))
    normalised = isinstance(recipe, Linear) and recipe.normalised
    zeros = key.new_zeros(6, key.shape[2], value.shape[2])
    store = Store(zeros, zeros[..., 0] if normalised else None)
    stores = [store]
    for place in range(keys):
        one = slice(place, place + 1)
        decay = None if recipe.log_decay is None else recipe.log_decay.flatten(0, 1)[:, one]
        if isinstance(recipe, Delta):
            beta = recipe.strength.flatten(0, 1)[:, one]
            _, store = delta_step(store, None, key[:, one], value[:, one], beta, decay)
        else:
            _, store = additive_step(store, None, key[:, one], value[:, one], decay)
        stores.append(store)
    outputs = []
    for row in range(queries):
        end = max(0, row + 1 + keys - queries) if recipe.causal else keys
        memory, total = stores[end]
        read = torch.einsum("mf,mfv->mv", query[:, row], memory)
        if total is not None:
            sums = torch.einsum("mf,mf->m", query[:, row], total)[:, None]
            read = torch.where(sums == 0, 0.0, read / sums)
        outputs.append(read)
    output = torch.stack(outputs, 1) if outputs else query.new_zeros(6, 0, value.shape[2])
    return output.unflatten(0, (2, 3)), stores[-1].memory.unflatten(0, (2, 3))


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("decay", [True, False])
def test_steps_chunks_and_weights_agree(queries, keys, causal, decay):
    for recipe in recipes(queries, keys, causal, decay):
        output, memory = stepped(recipe)
        reading = recur(recipe)
        torch.testing.assert_close(reading.output, output, rtol=0, atol=1e-10)
        torch.testing.assert_close(reading.memory, memory, rtol=0, atol=1e-10)
        weights = recipe.weights()
        torch.testing.assert_close(weights @ recipe.value, output, rtol=0, atol=1e-10)
        with torch.no_grad():
            torch.testing.assert_close(recipe.mixed(), output, rtol=0, atol=1e-10)


@pytest.mark.parametrize("decay", [True, False])
def test_float32_agrees_to_1e_5(decay):
    for single, double in zip(
        recipes(200, 200, True, decay, torch.float32), recipes(200, 200, True, decay)
    ):
        want, _ = stepped(double)
        for got in (recur(single).output, single.weights() @ single.value, stepped(single)[0]):
            apart = (got.double() - want).abs().max() / want.abs().max().clamp_min(1.0)
            assert apart < 1e-5


@pytest.mark.parametrize("decay", [True, False])
def test_any_block_of_weights_is_that_of_all(decay):
    for recipe in recipes(130, 150, True, decay):
        whole = recipe.weights()
        for rows, columns in itertools.product(
            (slice(0, 130), slice(60, 70), slice(129, 130), slice(4, 4)),
            (slice(0, 150), slice(63, 66), slice(149, 150), slice(7, 7)),
        ):
            block = recipe.weights(rows, columns)
            torch.testing.assert_close(block, whole[:, :, rows, columns], rtol=0, atol=1e-12)
        one = recipe.at(1, 2)
        torch.testing.assert_close(one.weights()[0, 0], whole[1, 2], rtol=0, atol=1e-12)
        some = recipe.of_heads([2, 0])
        torch.testing.assert_close(some.weights(), whole[:, [2, 0]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("decay", [True, False])
def test_a_text_in_pieces_is_one_text(decay):
    """Pieces of all sizes, with the memory handed on; `mixed` reads the earlier memory too."""
    for recipe in recipes(150, 150, True, decay):
        memory, outputs, start = {}, [], 0
        for stop in (1, 3, 70, 134, 150):
            cut = slice(start, stop)
            fields = {
                name: getattr(recipe, name)[:, :, cut]
                for name in ("query", "key", "value", "strength", "log_decay")
                if getattr(recipe, name, None) is not None
            }
            piece = replace(recipe, **fields, **memory)
            reading = recur(piece)
            torch.testing.assert_close(piece.mixed(), reading.output, rtol=0, atol=1e-10)
            if memory and recipe.kind == "distribution":
                assert piece.kind == "partial"
                assert (piece.weights()[:, :, 0].sum(-1) < 1).all()
            outputs.append(reading.output)
            memory = {"memory": reading.memory}
            if isinstance(recipe, Linear) and recipe.normalised:
                memory["normaliser"] = reading.normaliser
            start = stop
        want = recur(recipe)
        torch.testing.assert_close(torch.cat(outputs, 2), want.output, rtol=0, atol=1e-10)
        torch.testing.assert_close(reading.memory, want.memory, rtol=0, atol=1e-10)


@pytest.mark.parametrize("decay", [True, False])
def test_the_future_changes_nothing_at_all(decay):
    """Not by a bit: 1e4 times larger, in the same chunk and in later ones. Keys of the delta rule
    keep their length, beyond which its recurrence diverges."""
    now, late = 100, torch.arange(150) > 100
    for recipe in recipes(150, 150, True, decay, torch.float32):
        loud = recipe.map(lambda tensor: _louder(tensor, late))
        if isinstance(recipe, Delta):
            loud = replace(loud, key=torch.where(late[:, None], -recipe.key, recipe.key))
        before, after = recur(recipe).output, recur(loud).output
        assert torch.equal(before[:, :, : now + 1], after[:, :, : now + 1])
        assert not torch.equal(before[:, :, now + 1 :], after[:, :, now + 1 :])
        assert not recipe.weights().triu(1).any()


def _louder(tensor, late):
    if tensor.dim() == 3:  # strengths and decays keep their range
        return torch.where(late, tensor * 0.5, tensor)
    return torch.where(late[:, None], tensor * 1e4, tensor)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_as_if_deleted(causal):
    keep = torch.rand(2, 150, generator=torch.Generator().manual_seed(3)) > 0.3
    keep[:, -1] = True
    for recipe in recipes(150, 150, causal, True):
        mask = masks.padding(keep)
        padded = replace(recipe, mask=mask & masks.causal() if causal else mask)
        dirty = padded.map(lambda tensor: _spoilt(tensor, keep))
        weights, output = dirty.weights(), recur(dirty).output
        for example in range(2):
            real = keep[example]
            short = recipe.map(lambda tensor, i=example, r=real: tensor[i : i + 1][:, :, r])
            want = recur(short).output[0]
            torch.testing.assert_close(output[example][:, real], want, rtol=0, atol=1e-10)
            torch.testing.assert_close(
                weights[example][:, real][..., real], short.weights()[0], rtol=0, atol=1e-10
            )
            assert not weights[example][..., ~real].any()


def _spoilt(tensor, keep):
    if tensor.dtype == torch.bool:
        return tensor
    hidden = ~keep[:, None] if tensor.dim() == 3 else ~keep[:, None, :, None]
    spoilt = tensor.masked_fill(hidden, torch.nan)
    return spoilt if tensor.shape[-1] != 6 or tensor.dim() == 3 else _only_keys(tensor, spoilt)


def _only_keys(tensor, spoilt):
    """Queries at padded places stay: they are asked too, and their answers are not looked at."""
    return torch.where(spoilt.isnan(), tensor * 0 + 7.0, spoilt)


def test_orthonormal_keys_give_plain_products():
    """With β = 1 and no decay the delta rule's weights are q · k."""
    query, key = torch.randn(1, 1, 8, 8, dtype=torch.float64), torch.eye(8, dtype=torch.float64)
    key, ones = key[None, None], torch.ones(1, 1, 8, dtype=torch.float64)
    recipe = Delta(query, key, ones, mask=masks.causal())
    torch.testing.assert_close(recipe.weights(), (query @ key.mT).tril(), rtol=0, atol=1e-12)


def test_a_key_written_again_replaces_its_value():
    key = torch.eye(2)[[0, 1, 0]][None, None]
    recipe = Delta(key[:, :, :1], key, torch.ones(1, 1, 3))
    assert torch.equal(recipe.weights(), torch.tensor([[[[0.0, 0.0, 1.0]]]]))
    added = Linear(key[:, :, :1], key, normalised=False, of="signed")
    assert torch.equal(added.weights(), torch.tensor([[[[1.0, 0.0, 1.0]]]]))


def test_strong_decays_stay_finite():
    """Products of a chunk's decays underflow here; differences of their logarithms do not."""
    for recipe in recipes(130, 130, True, False, torch.float32):
        steep = torch.full((2, 3, 130), -30.0, requires_grad=True)
        fading = replace(recipe, log_decay=steep)
        output = recur(fading).output
        output.square().sum().backward()
        assert output.isfinite().all() and steep.grad.isfinite().all()
        torch.testing.assert_close(output, fading.weights() @ fading.value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients(causal):
    for recipe in recipes(4, 5, causal, True):
        names = [
            name
            for name in ("query", "key", "value", "strength", "log_decay")
            if getattr(recipe, name, None) is not None
        ]
        rest = {
            name: getattr(recipe, name) for name in recipe.__dataclass_fields__ if name not in names
        }

        def read(*leaves, names=names, recipe=recipe, rest=rest):
            made = type(recipe)(**dict(zip(names, leaves)), **rest)
            reading = recur(made)
            return reading.output, reading.memory, made.weights()

        leaves = [getattr(recipe, name)[:1, :1].clone().requires_grad_() for name in names]
        assert torch.autograd.gradcheck(read, leaves, fast_mode=True)


def test_gradients_of_chunks_are_those_of_steps():
    for recipe in recipes(100, 100, True, True):
        leaf = recipe.key.clone().requires_grad_()
        made = replace(recipe, key=leaf)
        along = torch.randn(2, 3, 100, 5, dtype=torch.float64)
        gradients = [
            torch.autograd.grad((output * along).sum(), leaf)[0]
            for output in (recur(made).output, stepped(made)[0])
        ]
        torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


def test_half_precision_is_added_up_in_float32():
    for recipe in recipes(100, 100, True, True, torch.float32):
        half = recipe.map(lambda tensor: tensor.bfloat16())
        reading = recur(half)
        assert reading.output.dtype == torch.bfloat16 and reading.memory.dtype == torch.float32
        exact = recur(half.map(lambda tensor: tensor.float()))
        torch.testing.assert_close(reading.memory, exact.memory)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(recur(half).memory, reading.memory)


def test_the_state_that_was_given_is_left_alone():
    for recipe in recipes(3, 3, True, True):
        first = recur(recipe)
        options = {"memory": first.memory}
        if first.normaliser is not None:
            options["normaliser"] = first.normaliser
        before = first.memory.clone()
        with torch.no_grad():
            recur(replace(recipe, **options))
        assert torch.equal(first.memory, before)


def test_run_gives_weights_reductions_and_state():
    from regard.kernel.reducers import Entropy, ReceivedAttention

    for recipe in recipes(5, 7, True, True):
        attended = run(recipe, weights=True, reduce=[ReceivedAttention()])
        torch.testing.assert_close(attended.weights, recipe.weights())
        torch.testing.assert_close(attended.reductions[0], recipe.weights().sum(2))
        assert attended.state.keys == 7 and attended.state.written.tolist() == [7, 7]
        if recipe.kind == "signed":
            with pytest.raises(UnavailableError, match="Entropy: signed weights have no logarithm"):
                run(recipe, reduce=[Entropy()])
        with pytest.raises(RegardError, match=r"dropout is 0.5, expected 0: a \w+ recipe makes"):
            run(recipe, dropout=0.5)


def test_reducers_walk_long_recipes_in_rows():
    from regard import reduce
    from regard.kernel.reducers import Entropy, HeadMean, ReceivedAttention, TopK

    for recipe in recipes(600, 600, True, True, torch.float32):
        weights = recipe.weights()
        mean, received = reduce(recipe, [HeadMean(), ReceivedAttention()], tile=(128, 100))
        torch.testing.assert_close(mean, weights.mean(1), rtol=0, atol=1e-5)
        torch.testing.assert_close(received, weights.sum(2), rtol=1e-4, atol=1e-4)
        if recipe.kind == "distribution":
            entropy, top = reduce(recipe, [Entropy(), TopK(3)], tile=(128, 100))
            want = -torch.xlogy(weights, weights).sum(-1)
            torch.testing.assert_close(entropy, want, rtol=0, atol=1e-4)
            torch.testing.assert_close(top.weights, weights.topk(3).values, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [masks.window(3, 0), masks.pairs(torch.ones(1, 1, 5, 7, dtype=torch.bool)), ~masks.causal()],
)
def test_other_masks_are_refused(mask):
    query, key, value, strength, _ = parts(5, 7)
    for recipe in (
        Linear(query, key, value, mask=mask),
        Delta(query, key, strength, value, mask=mask),
    ):
        with pytest.raises(MaskError, match="a memory is read whole, so a mask may only name keys"):
            recur(recipe)


def test_without_values_there_is_nothing_to_read():
    query, key, *_ = parts(5, 7)
    with pytest.raises(UnavailableError, match="made without values"):
        recur(Linear(query, key))
