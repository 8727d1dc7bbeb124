"""Rotary turns, ALiBi and relative tables."""

import cmath
import copy

import jaxtyping
import pytest
import torch
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention

import regard
from regard.errors import RegardError, ShapeError
from regard.kernel.position_encodings import (
    AlibiBias,
    BucketedTable,
    RelativeTable,
    alibi_slopes,
)
from regard.kernel.rotary import rotate
from regard.mechanisms import (
    Alibi,
    BucketedBias,
    LinearScaling,
    MultiHead,
    NtkScaling,
    RelativeBias,
    Rotary,
    YarnScaling,
)
from regard.types import Block, whole


def features(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_turned_dot_products_depend_on_distance_alone():
    query, key = features(1, 1, 2, 8).unbind(2)
    positions = torch.arange(12)
    queries = rotate(query[:, :, None].expand(-1, -1, 12, -1), positions)[0, 0]
    keys = rotate(key[:, :, None].expand(-1, -1, 12, -1), positions)[0, 0]
    products = queries @ keys.T
    for distance in range(-11, 12):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    torch.testing.assert_close(products[0, 0], (query * key).sum())
    assert products[0].unique().numel() == 12  # and they do depend on it


def test_turning_keeps_the_norm_and_the_dtype():
    x = features(2, 3, 5, 6).half()
    turned = rotate(x, torch.arange(5))
    assert turned.dtype == x.dtype
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-2, rtol=1e-2)
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_a_pair_turns_by_its_own_rate():
    x = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    x[..., 1] = 1.0  # the second pair: features 1 and 3, rate base^(-1/2)
    turned = rotate(x, torch.tensor([3]), base=100.0)[0, 0, 0]
    angle = torch.tensor(0.3, dtype=torch.float64)
    expected = torch.stack([x.new_zeros(()), angle.cos(), x.new_zeros(()), angle.sin()])
    torch.testing.assert_close(turned, expected)


def test_slopes_of_eight_heads_are_powers_of_a_half():
    assert alibi_slopes(8).tolist() == [2.0**-power for power in range(1, 9)]


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 12, 20])
def test_slopes_follow_the_papers_code(n_heads):
    def power_of_two(n):
        start = 2 ** (-(2 ** -(n.bit_length() - 1 - 3)))
        return [start * start**i for i in range(n)]

    def published(n):
        if n & (n - 1) == 0:
            return power_of_two(n)
        below = 1 << (n.bit_length() - 1)
        return power_of_two(below) + published(2 * below)[0::2][: n - below]

    torch.testing.assert_close(alibi_slopes(n_heads), torch.tensor(published(n_heads)))


def test_alibi_falls_with_the_distance_to_the_last_keys():
    bias = AlibiBias(torch.tensor([1.0, 0.5])).block(whole(2, 3))
    assert bias.shape == (1, 2, 2, 3)
    assert (-bias[0, 0]).tolist() == [[1, 0, 1], [2, 1, 0]]
    assert torch.equal(bias[0, 1], bias[0, 0] / 2)


def test_a_table_is_read_at_the_clipped_offset():
    table = torch.tensor([[-2.0, -1.0, 0.0, 1.0, 2.0], [10.0, 11.0, 12.0, 13.0, 14.0]])
    bias = RelativeTable(table).block(whole(4, 4))
    assert bias[0, 0].tolist() == [[0, 1, 2, 2], [-1, 0, 1, 2], [-2, -1, 0, 1], [-2, -2, -1, 0]]
    assert torch.equal(bias[0, 1], bias[0, 0] + 12)


@pytest.mark.parametrize(
    "bias",
    [AlibiBias(features(3)), RelativeTable(features(3, 5)), BucketedTable(features(3, 8), 6)],
)
def test_a_block_and_a_head_are_parts_of_the_whole(bias):
    rows, columns = slice(1, 3), slice(2, 7)
    full = bias.block(whole(4, 7))
    assert torch.equal(bias.block(Block.of(rows, columns, 4, 7)), full[:, :, rows, columns])
    assert torch.equal(bias.at(0, 2).block(whole(4, 7)), full[:, 2:])
    assert not bias.requires_grad


@pytest.mark.parametrize("bias", [AlibiBias(features(1)), RelativeTable(features(1, 5))])
@pytest.mark.parametrize("tile", [None, (4, 4)], ids=["one tile", "many"])
def test_one_head_of_bias_serves_all(bias, tile):
    x = features(1, 3, 6, 4)
    found = regard.attend(x, x, x, bias=bias, weights=True)
    (received,) = regard.reduce(found.recipe, [regard.ReceivedAttention()], tile=tile)
    torch.testing.assert_close(received, found.weights.sum(2))


def test_a_trained_table_gets_gradients():
    table = features(2, 5).requires_grad_()
    x = features(1, 2, 6, 4)
    output = regard.attend(x, x, x, bias=RelativeTable(table), causal=True).output
    (grad,) = torch.autograd.grad(output.square().sum(), table)
    assert (grad[:, :3] != 0).all() and (grad[:, 3:] == 0).all()  # the future is not seen


def test_a_rotary_table_is_made_once_and_grows():
    rotary, x = Rotary(), features(1, 2, 5, 8)
    torch.testing.assert_close(rotary.turn(x, 3), rotate(x, torch.arange(3, 8)))
    (table,) = rotary._tables.values()
    rotary.turn(x, 50)
    assert next(iter(rotary._tables.values()))[0] is table[0]
    torch.testing.assert_close(rotary.turn(x, 1000), rotate(x, torch.arange(1000, 1005)))
    torch.testing.assert_close(rotary.turn(x, -2), rotate(x, torch.arange(-2, 3)))


def test_rotary_tables_are_one_for_each_dtype_width_and_device():
    rotary, x = Rotary(), features(1, 2, 5, 8)
    for other in (x, x.float(), x.bfloat16(), x[..., :4], x.to("meta")):
        turned = rotary.turn(other, 2)
        assert (turned.dtype, turned.device) == (other.dtype, other.device)
        if not other.is_meta:
            torch.testing.assert_close(turned, rotate(other, torch.arange(2, 7)))


def test_a_rotary_table_of_inference_mode_serves_training():
    rotary = Rotary()
    with torch.inference_mode():
        rotary.turn(features(1, 2, 5, 8), 0)
    x = features(1, 2, 5, 8).requires_grad_()
    rotary.turn(x, 0).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # turning keeps the norm


def test_rotary_tables_are_not_saved_or_copied_or_kept_from_a_graph():
    rotary, x = Rotary(), features(1, 2, 5, 8)
    torch.func.vmap(lambda one: rotary.turn(one[None], 0))(x)
    with torch._subclasses.FakeTensorMode() as fake:
        rotary.turn(fake.from_tensor(x), 0)
    assert not rotary._tables
    rotary.turn(x, 0)
    assert not rotary.state_dict() and not copy.deepcopy(rotary)._tables


# -- scaled and partial rotary positions, T5's buckets


def rope_config(kind: str, **more: float) -> LlamaConfig:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **more}
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters=parameters,
    )


#: ours, and what transformers calls it; its dynamic factor 3 is 4 at twice the original length.
SCALINGS = {
    "linear": (LinearScaling(4.0), "linear", {"factor": 4.0}, None),
    "ntk": (NtkScaling(4.0), "dynamic", {"factor": 3.0}, 128),
    "yarn": (
        YarnScaling(4.0, original=64, fast=8.0),
        "yarn",
        {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0},
        None,
    ),
    "yarn, long": (
        YarnScaling(16.0, original=4096),
        "yarn",
        {"factor": 16.0, "original_max_position_embeddings": 4096},
        None,
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rates_are_those_of_transformers(name):
    ours, kind, more, length = SCALINGS[name]
    theirs, amplitude = ROPE_INIT_FUNCTIONS[kind](rope_config(kind, **more), "cpu", seq_len=length)
    plain = 10000.0 ** (-torch.arange(16) / 16)
    torch.testing.assert_close(ours.rates(plain, 10000.0), theirs, rtol=1e-5, atol=0)
    assert ours.amplitude == pytest.approx(amplitude)


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_positions_by_complex_numbers(name):
    scaling, x = SCALINGS[name][0], features(1, 1, 1, 8)
    turned = rotate(x, torch.tensor([37]), scaling=scaling)[0, 0, 0]
    rates = scaling.rates(10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4), 10000.0)
    for i in range(4):
        pair = complex(x[0, 0, 0, i], x[0, 0, 0, i + 4])
        pair *= scaling.amplitude * cmath.exp(1j * 37 * float(rates[i]))
        assert turned[i] == pytest.approx(pair.real) and turned[i + 4] == pytest.approx(pair.imag)


def test_part_of_the_features_is_turned():
    rotary, x = Rotary(base=100.0, share=0.5), features(1, 2, 5, 8)
    turned = rotary.turn(x, 3)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    expected = rotate(x[..., :4], torch.arange(3, 8), 100.0)
    torch.testing.assert_close(turned[..., :4], expected)
    for share, count in ((0.4, 3), (0.1, 0)):
        with pytest.raises(ShapeError, match=f"{share} of 8 features is {count}, expected an even"):
            Rotary(share=share).turn(x, 0)


def test_what_is_set_later_counts():
    rotary, x = Rotary(base=100.0), features(1, 2, 5, 8)
    rotary.turn(x, 3)
    rotary.base = 50.0
    torch.testing.assert_close(rotary.turn(x, 3), Rotary(base=50.0).turn(x, 3))
    rotary.scaling = LinearScaling(2.0)
    expected = Rotary(base=50.0, scaling=LinearScaling(2.0)).turn(x, 3)
    torch.testing.assert_close(rotary.turn(x, 3), expected)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_t5(both_ways, buckets, distance):
    offsets = torch.arange(-300, 301)[None]
    theirs = T5Attention._relative_position_bucket(offsets, both_ways, buckets, distance)
    ours = BucketedTable(features(2, buckets), distance, both_ways).buckets(offsets)
    assert torch.equal(ours, theirs)


def test_a_bucketed_bias_is_that_of_t5():
    config = T5Config(d_model=16, d_kv=4, num_heads=4, relative_attention_num_buckets=16)
    theirs = T5Attention(config, has_relative_attention_bias=True)
    ours = BucketedBias(4, 16)
    with torch.no_grad():
        ours.table.copy_(theirs.relative_attention_bias.weight.T)
    bias = ours.bias().block(whole(40, 40))
    torch.testing.assert_close(bias, theirs.compute_bias(40, 40))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rotary(share=0.0), "Rotary: share=0.0, expected a number above 0 and up to 1"),
        (lambda: Rotary(scaling=2.0), r"Rotary: scaling=2.0, expected a part, as LinearScaling"),
        (lambda: BucketedBias(4, 30), "BucketedBias: n_buckets=30, expected a multiple of 4"),
        (lambda: BucketedBias(4, distance=8), "distance=8, expected more than the 8 offsets"),
    ],
)
def test_positions_that_make_no_sense_are_refused(build, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # our own errors
    with pytest.raises(RegardError, match=message):
        build()


@pytest.mark.parametrize("position", [Alibi(2), RelativeBias(2), BucketedBias(2)])
def test_positions_of_another_number_of_heads_are_named(position):
    name = type(position).__name__
    with pytest.raises(ShapeError, match=f"MultiHead: position: {name} has 2 heads, expected 4"):
        MultiHead(16, 4, position=position)(torch.randn(1, 3, 16))


def test_the_base_of_rotary_positions_is_named():
    """Elsewhere the first argument is the width of a head, which would be a base in silence."""
    with pytest.raises(TypeError, match="positional argument"):
        Rotary(64)
