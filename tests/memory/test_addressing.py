"""Addressing functions, each alone: against plain loops, and where the papers' traps are."""

import addressing_loops as loops
import pytest
import torch

from regard.errors import ShapeError
from regard.memory import addressing


def numbers(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_head(function, *tensors):
    """A loop's answer for each example and head; two-axis tensors hold a number a head."""
    return torch.tensor(
        [[function(*head) for head in zip(*example)] for example in zip(*map(listed, tensors))],
        dtype=torch.float64,
    )


def by_example(function, *tensors):
    return torch.tensor(
        [function(*example) for example in zip(*map(listed, tensors))], dtype=torch.float64
    )


def listed(tensor):
    return tensor.tolist()


def weights(*shape, seed=0):
    return numbers(*shape, seed=seed).softmax(-1)


def test_content():
    key, memory, strength = numbers(2, 3, 4) - 0.5, numbers(2, 5, 4, seed=1) - 0.5, numbers(2, 3)
    got = addressing.content_weights(key, memory, 9 * strength)
    want = by_example(
        lambda keys, slots, strengths: [
            loops.content(k, slots, 9 * b) for k, b in zip(keys, strengths)
        ],
        key,
        memory,
        strength,
    )
    torch.testing.assert_close(got, want)


def test_an_exact_key_and_a_large_strength_find_one_slot():
    memory = torch.eye(4)[None]
    weights = addressing.content_weights(memory[:, 2:3], memory, torch.tensor([[1e4]]))
    torch.testing.assert_close(weights, torch.tensor([[[0.0, 0.0, 1.0, 0.0]]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_content_of_zeros_is_uniform_with_finite_gradients(dtype):
    key = torch.zeros(1, 1, 3, dtype=dtype, requires_grad=True)
    memory = torch.zeros(1, 4, 3, dtype=dtype, requires_grad=True)
    weights = addressing.content_weights(key, memory, torch.full((1, 1), 50.0, dtype=dtype))
    torch.testing.assert_close(weights, torch.full((1, 1, 4), 0.25, dtype=dtype))
    weights[0, 0, 0].backward()
    assert key.grad.isfinite().all() and memory.grad.isfinite().all()


def test_interpolation():
    new, old = weights(1, 2, 3), weights(1, 2, 3, seed=1)
    gate = torch.tensor([[1.0, 0.25]], dtype=torch.float64)
    got = addressing.interpolate(new, old, gate)
    torch.testing.assert_close(got[:, 0], new[:, 0])
    torch.testing.assert_close(got[:, 1], 0.25 * new[:, 1] + 0.75 * old[:, 1])


@pytest.mark.parametrize("shifts", [0, 1, 2, 3])
def test_shift(shifts):
    rows, kernel = weights(2, 3, 7), weights(2, 3, 2 * shifts + 1, seed=1)
    torch.testing.assert_close(addressing.shift(rows, kernel), by_head(loops.shifted, rows, kernel))


def test_a_shift_moves_forwards_and_round_the_end():
    rows = torch.eye(5)[None]  # heads at slots 0 to 4
    on = torch.tensor([0.0, 0.0, 1.0]).expand(1, 5, 3)
    torch.testing.assert_close(addressing.shift(rows, on), rows.roll(1, -1))
    torch.testing.assert_close(addressing.shift(rows, on.flip(-1)), rows.roll(-1, -1))


@pytest.mark.parametrize("size", [2, 5])
def test_kernels_that_do_not_fit_are_refused(size):
    with pytest.raises(
        ShapeError, match=f"kernel has {size} entries over 4 slots, expected an odd"
    ):
        addressing.shift(torch.ones(1, 1, 4), torch.ones(1, 1, size))


def test_sharpening():
    rows, exponent = weights(2, 3, 5), 1 + 4 * numbers(2, 3, seed=1)
    torch.testing.assert_close(
        addressing.sharpen(rows, exponent), by_head(loops.sharpened, rows, exponent)
    )


@pytest.mark.parametrize("exponent", [1.0, 50.0, 1e6, 1e38])
def test_sharpening_sums_to_one_whatever_the_exponent(exponent):
    rows = torch.tensor([[[0.3, 0.5, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]])
    rows.requires_grad_()
    power = torch.full((1, 3), exponent, requires_grad=True)
    sharp = addressing.sharpen(rows, power)
    torch.testing.assert_close(sharp.sum(-1), torch.ones(1, 3))
    if exponent > 1:
        torch.testing.assert_close(sharp[0, 0], torch.tensor([0.0, 1.0, 0.0, 0.0]))
    (sharp * torch.arange(4.0)).sum().backward()
    assert rows.grad.isfinite().all() and power.grad.isfinite().all()


def test_a_huge_exponent_over_equal_weights():
    """γ log w of every slot is beyond float32 here."""
    rows = torch.full((1, 1, 128), 1 / 128)
    torch.testing.assert_close(addressing.sharpen(rows, torch.tensor([[1e38]])), rows)


def test_writing():
    memory, rows = numbers(2, 4, 3), weights(2, 2, 4)
    erase, vectors = numbers(2, 2, 3, seed=2), numbers(2, 2, 3, seed=3)
    want = by_example(
        lambda slots, *heads: loops.written(slots, list(zip(*heads))), memory, rows, erase, vectors
    )
    torch.testing.assert_close(addressing.write(memory, rows, erase, vectors), want)


def test_what_is_written_is_read():
    once = torch.tensor([[[0.0, 1.0, 0.0]]])
    vector = torch.tensor([[[5.0, -7.0]]])
    memory = addressing.write(torch.randn(1, 3, 2), once, torch.ones(1, 1, 2), vector)
    torch.testing.assert_close(addressing.read(memory, once), vector)


def test_reading():
    memory, rows = numbers(2, 4, 3), weights(2, 2, 4)
    want = by_example(
        lambda slots, heads: [loops.read(slots, head) for head in heads], memory, rows
    )
    torch.testing.assert_close(addressing.read(memory, rows), want)


def test_usage():
    previous, write = numbers(2, 4), weights(2, 4, seed=1)
    reads, free = weights(2, 3, 4, seed=2), numbers(2, 3, seed=3)
    torch.testing.assert_close(
        addressing.usage(previous, write, reads, free),
        by_example(loops.usage, previous, write, reads, free),
    )


def test_usage_gives_no_gradient_to_what_was_written():
    parts = [numbers(1, 4), weights(1, 4), weights(1, 2, 4), numbers(1, 2)]
    previous, write, reads, free = (tensor.requires_grad_() for tensor in parts)
    addressing.usage(previous, write, reads, free).sum().backward()
    assert write.grad is None
    assert previous.grad.any() and reads.grad.any() and free.grad.any()


def test_allocation():
    rows = numbers(4, 6)
    torch.testing.assert_close(
        addressing.allocation(rows),
        by_example(loops.allocation, rows),
    )


def test_allocation_by_hand():
    got = addressing.allocation(torch.tensor([[0.9, 0.1, 0.5]]))
    torch.testing.assert_close(got, torch.tensor([[0.005, 0.9, 0.05]]))
    torch.testing.assert_close(got.sum(), torch.tensor(0.955))


def test_an_empty_memory_allocates_its_first_slot_and_a_full_one_none():
    got = addressing.allocation(torch.tensor([[0.0] * 5, [1.0] * 5]))
    torch.testing.assert_close(got, torch.tensor([[1.0, 0, 0, 0, 0], [0.0] * 5]))


def test_empty_slots_have_a_finite_gradient():
    rows = torch.tensor([[0.0, 0.5, 0.0, 1.0]], requires_grad=True)
    (addressing.allocation(rows) * torch.arange(1.0, 5.0)).sum().backward()
    assert rows.grad.isfinite().all() and rows.grad.any()


def test_the_gradient_of_allocation_goes_through_the_sort():
    rows = torch.tensor([[0.9, 0.1, 0.5, 0.02]], dtype=torch.float64, requires_grad=True)
    (jacobian,) = torch.autograd.functional.jacobian(addressing.allocation, (rows,))
    step = 1e-6
    for slot in range(4):
        above, below = rows.detach()[0].tolist(), rows.detach()[0].tolist()
        above[slot] += step
        below[slot] -= step
        want = [
            (up - down) / (2 * step)
            for up, down in zip(loops.allocation(above), loops.allocation(below))
        ]
        got = jacobian[0, :, 0, slot]
        torch.testing.assert_close(got, torch.tensor(want).double(), rtol=1e-4, atol=1e-5)


def test_write_weights():
    a, c = weights(1, 4), weights(1, 4, seed=1)
    gates = torch.tensor([[0.75, 0.5]], dtype=torch.float64).split(1, dim=1)
    got = addressing.write_weights(a, c, *gates)
    torch.testing.assert_close(got, 0.5 * (0.75 * a + 0.25 * c))


def test_links_and_precedence():
    link, before = torch.zeros(2, 4, 4, dtype=torch.float64), torch.zeros(2, 4).double()
    for step in range(3):
        write = 0.9 * weights(2, 4, seed=step)
        want = by_example(loops.links, link, write, before)
        link, before = (
            addressing.links(link, write, before),
            (addressing.precedence(before, write), by_example(loops.precedence, before, write)),
        )
        torch.testing.assert_close(link, want)
        torch.testing.assert_close(*before)
        before = before[0]
    read = weights(2, 3, 4)
    for ours, loop in (
        (addressing.forward_weights, loops.forward),
        (addressing.backward_weights, loops.backward),
    ):
        want = by_example(lambda rows, heads, loop=loop: [loop(rows, h) for h in heads], link, read)
        torch.testing.assert_close(ours(link, read), want)


def test_links_lead_from_the_first_write_to_the_second():
    link, before = torch.zeros(1, 3, 3), torch.zeros(1, 3)
    for slot in (0, 1):
        write = torch.eye(3)[slot][None]
        link, before = addressing.links(link, write, before), addressing.precedence(before, write)
    assert link[0, 1, 0] == 1 and link.sum() == 1
    at = torch.eye(3)[None]  # heads at slots 0, 1, 2
    assert addressing.forward_weights(link, at)[0, 0].tolist() == [0, 1, 0]
    assert addressing.backward_weights(link, at)[0, 1].tolist() == [1, 0, 0]


def test_read_modes():
    modes = torch.eye(3, dtype=torch.float64)[None]
    backward, content, forward = (weights(1, 3, 4, seed=seed) for seed in range(3))
    got = addressing.read_weights(modes, backward, content, forward)
    want = torch.stack([backward[0, 0], content[0, 1], forward[0, 2]])[None]
    torch.testing.assert_close(got, want)
