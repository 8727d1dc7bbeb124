"""Rotary turns, ALiBi and relative tables."""

import copy

import pytest
import torch

import regard
from regard.kernel.positions import AlibiBias, RelativeTable, alibi_slopes, rotate
from regard.mechanisms import Rotary
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


@pytest.mark.parametrize("bias", [AlibiBias(features(3)), RelativeTable(features(3, 5))])
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
    (received,) = regard.reduce(found.recipe, [regard.Received()], tile=tile)
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
