"""The differentiable neural computer: against a loop from the paper, and its memory at work."""

import addressing_loops as loops
import pytest
import torch

import regard
from regard.memory import DNC, NTM
from regard.memory.controllers import FeedForwardController


def small(**options):
    torch.manual_seed(0)
    sizes = {"slots": 6, "slot_width": 3, "read_heads": 2} | options
    width = 4 + sizes["read_heads"] * sizes["slot_width"]
    machine = DNC(4, 2, controller=FeedForwardController(width, 5), **sizes).double()
    for parameter in machine.parameters():
        parameter.data.normal_()
    return machine


def affine(linear, x):
    rows = zip(linear.weight.tolist(), linear.bias.tolist())
    return [sum(w * v for w, v in zip(row, x)) + b for row, b in rows]


def by_loop(machine, x):
    """One example, x a list of steps: outputs, read weights and write weights of each step."""
    width, readers, slots = machine.slot_width, machine.read_heads, machine.slots
    memory = [[0.0] * width for _ in range(slots)]
    usage, precedence, write = ([0.0] * slots for _ in range(3))
    links = [[0.0] * slots for _ in range(slots)]
    read_weights = [[0.0] * slots for _ in range(readers)]
    reads = [[0.0] * width for _ in range(readers)]
    outputs, all_reads, all_writes = [], [], []
    for step in x:
        inputs = [*step, *(number for vector in reads for number in vector)]
        raw = affine(machine.controller.to_features, inputs)
        hidden = torch.tensor(raw, dtype=torch.float64).tanh().tolist()
        numbers = iter(affine(machine.to_interface, hidden))

        def take(count, function=lambda number: number, numbers=numbers):
            return [function(next(numbers)) for _ in range(count)]

        read_keys = [take(width) for _ in range(readers)]
        write_key, vector = take(width), take(width)
        write_strength, *read_strengths = take(1 + readers, lambda n: 1 + loops.softplus(n))
        erase, free = take(width, loops.sigmoid), take(readers, loops.sigmoid)
        allocation_gate, write_gate = take(2, loops.sigmoid)
        modes = [loops.softmax(take(3)) for _ in range(readers)]

        usage = loops.usage(usage, write, read_weights, free)
        allocation = loops.allocation(usage)
        content = loops.content(write_key, memory, write_strength)
        write = [
            write_gate * (allocation_gate * a + (1 - allocation_gate) * c)
            for a, c in zip(allocation, content)
        ]
        memory = loops.written(memory, [(write, erase, vector)])
        links = loops.links(links, write, precedence)
        precedence = loops.precedence(precedence, write)
        for head in range(readers):
            three = (
                loops.backward(links, read_weights[head]),
                loops.content(read_keys[head], memory, read_strengths[head]),
                loops.forward(links, read_weights[head]),
            )
            read_weights[head] = [
                sum(mode * weights[slot] for mode, weights in zip(modes[head], three))
                for slot in range(slots)
            ]
        reads = [loops.read(memory, weights) for weights in read_weights]
        features = [*hidden, *(number for vector in reads for number in vector)]
        outputs.append(affine(machine.to_output, features))
        all_reads.append(list(read_weights))
        all_writes.append([write])
    return outputs, all_reads, all_writes


@torch.no_grad()
def test_it_is_the_paper_s_machine():
    machine, x = small(), torch.randn(2, 6, 4, dtype=torch.float64)
    answer = machine(x, weights=True)
    for example in range(2):
        output, reads, writes = by_loop(machine, x[example].tolist())
        torch.testing.assert_close(answer.output[example], torch.tensor(output).double())
        for name, rows in (("read", reads), ("write", writes)):
            want = torch.tensor(rows).double().transpose(0, 1)  # (head, step, slot)
            torch.testing.assert_close(answer.weights[name][example], want)


def test_the_interface_has_the_paper_s_size():
    width, readers = 5, 3
    machine = DNC(4, 2, slot_width=width, read_heads=readers)
    want = width * readers + 3 * width + 5 * readers + 3
    assert machine.to_interface.out_features == want


@torch.no_grad()
def test_weights_are_partial_and_usage_stays_within_bounds():
    machine, x = DNC(4, 2, slots=9, read_heads=2), 3 * torch.randn(2, 60, 4)
    answer = machine(x, weights=True)
    for weights in answer.weights.values():
        assert (weights >= 0).all() and (weights.sum(-1) <= 1 + 1e-5).all()
    state = answer.state
    assert (state.usage >= 0).all() and (state.usage <= 1).all()
    assert (state.links >= 0).all() and (state.links.sum(-1) <= 1 + 1e-5).all()
    assert (state.links.sum(-2) <= 1 + 1e-5).all() and not state.links.diagonal(0, 1, 2).any()


@torch.no_grad()
def test_it_writes_slot_after_slot_and_reads_them_in_order():
    """By hand: write to free slots, then follow the links forwards from the first one."""
    machine = DNC(1, 2, slots=5, slot_width=3, controller=FeedForwardController(4, 2))
    for parameter in machine.parameters():
        parameter.zero_()
    bias = machine.to_interface.bias.split(machine.interface_widths)
    vector, gates, modes = bias[2], bias[4], bias[5]
    vector.fill_(1.0)
    gates[-1] = gates[-2] = 40.0  # allocation and write gates open
    gates[3] = -40.0  # nothing is freed
    modes.copy_(torch.tensor([-40.0, 40.0, -40.0]))  # by content
    answer = machine(torch.zeros(1, 4, 1), weights=True)
    assert answer.weights["write"][0, 0].argmax(-1).tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(
        answer.state.links[0, :4, :4], torch.diag(torch.ones(3), -1), rtol=0, atol=1e-4
    )
    gates[-1] = -40.0  # no more writing
    modes.copy_(torch.tensor([-40.0, -40.0, 40.0]))  # forwards
    first = torch.zeros(1, 1, 5)
    first[..., 0] = 1.0
    state = type(answer.state)(**{**vars(answer.state), "read_weights": first})
    followed = machine(torch.zeros(1, 3, 1), state=state, weights=True)
    assert followed.weights["read"][0, 0].argmax(-1).tolist() == [1, 2, 3]


def test_freed_slots_are_used_again():
    machine = DNC(1, 2, slots=4, slot_width=3, controller=FeedForwardController(4, 2))
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.zero_()
        gates = machine.to_interface.bias.split(machine.interface_widths)[4]
        gates[-1] = gates[-2] = 40.0
    state = machine.initial(1)
    at = torch.tensor([[[0.0, 0.0, 1.0, 0.0]]])
    full = {**vars(state), "usage": torch.ones(1, 4), "read_weights": at}
    for free, want in ((40.0, 1.0), (-40.0, 0.0)):
        gates.data[3] = free
        answer = machine(torch.zeros(1, 1, 1), state=type(state)(**full), weights=True)
        torch.testing.assert_close(
            answer.weights["write"][0, 0, 0, 2].item(), want, atol=1e-4, rtol=0
        )


@torch.no_grad()
def test_the_trace(tmp_path):
    trace = small()(torch.randn(2, 7, 4, dtype=torch.float64), weights=True).trace
    assert [(r.name, r.kind, tuple(r.shape)) for r in trace] == [
        ("read", "partial", (2, 2, 7, 6)),
        ("write", "partial", (2, 1, 7, 6)),
    ]
    assert trace.reduce(regard.Entropy(), regard.ReceivedAttention())["write"][1].shape == (2, 1, 6)
    assert trace.save(tmp_path / "machine.html").stat().st_size


def test_its_gradient_is_that_of_finite_differences():
    """Apart from what flows into the usage from writes, where the authors stop it."""
    machine, x = small(slots=4), torch.randn(1, 1, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: machine(x).output, (x,))


@pytest.mark.parametrize("machine", [NTM(4, 2, slots=8), DNC(4, 2, slots=8, read_heads=2)])
def test_large_inputs_and_long_sequences_stay_finite(machine):
    x = 100 * torch.randn(2, 60, 4)
    answer = machine(x, weights=True)
    answer.output.square().mean().backward()
    assert answer.output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in machine.parameters())
