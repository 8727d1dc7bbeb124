"""The neural Turing machine: against a loop from the paper, and what it says of each step."""

import copy

import addressing_loops as loops
import pytest
import torch
from torch.utils import _pytree

import regard
from regard.errors import DtypeError, RegardError, ShapeError, StateError, UnavailableError
from regard.memory import DNC, NTM
from regard.memory.controllers import FeedForwardController, LSTMController


def small(**options):
    torch.manual_seed(0)
    sizes = {"slots": 6, "slot_width": 3, "read_heads": 2, "write_heads": 2} | options
    width = 4 + sizes["read_heads"] * sizes["slot_width"]
    machine = NTM(4, 2, controller=FeedForwardController(width, 5), **sizes).double()
    for parameter in machine.parameters():
        parameter.data.normal_()
    return machine


def affine(linear, x):
    rows = zip(linear.weight.tolist(), linear.bias.tolist())
    return [sum(w * v for w, v in zip(row, x)) + b for row, b in rows]


def by_loop(machine, x):
    """One example, x a list of steps: outputs, read weights and write weights of each step."""
    width, readers, writers = machine.slot_width, machine.read_heads, machine.write_heads
    heads, kernel = readers + writers, 2 * machine.shifts + 1
    memory = [[1e-6] * width for _ in range(machine.slots)]
    weights = [[1.0] + [0.0] * (machine.slots - 1) for _ in range(heads)]
    reads = [loops.read(memory, weights[head]) for head in range(readers)]
    outputs, read_weights, write_weights = [], [], []
    for step in x:
        inputs = [*step, *(number for vector in reads for number in vector)]
        raw = affine(machine.controller.to_features, inputs)
        hidden = torch.tensor(raw, dtype=torch.float64).tanh().tolist()
        numbers = iter(affine(machine.to_interface, hidden))

        def take(count, function=lambda number: number, numbers=numbers):
            return [function(next(numbers)) for _ in range(count)]

        keys = [take(width) for _ in range(heads)]
        strengths, exponents = take(heads, loops.softplus), take(heads, loops.softplus)
        gates = take(heads, loops.sigmoid)
        erases = [take(width, loops.sigmoid) for _ in range(writers)]
        kernels = [loops.softmax(take(kernel)) for _ in range(heads)]
        raw_vectors = [take(width) for _ in range(writers)]
        vectors = torch.tensor(raw_vectors, dtype=torch.float64).tanh().tolist()
        for head in range(heads):
            content = loops.content(keys[head], memory, strengths[head])
            mixed = [
                gates[head] * new + (1 - gates[head]) * old
                for new, old in zip(content, weights[head])
            ]
            moved = loops.shifted(mixed, kernels[head])
            weights[head] = loops.sharpened(moved, 1 + exponents[head])
        reads = [loops.read(memory, weights[head]) for head in range(readers)]
        memory = loops.written(memory, list(zip(weights[readers:], erases, vectors)))
        features = [*hidden, *(number for vector in reads for number in vector)]
        outputs.append(affine(machine.to_output, features))
        read_weights.append(list(weights[:readers]))
        write_weights.append(list(weights[readers:]))
    return outputs, read_weights, write_weights


@torch.no_grad()
@pytest.mark.parametrize("shifts", [0, 1, 2])
def test_it_is_the_paper_s_machine(shifts):
    machine, x = small(shifts=shifts), torch.randn(2, 6, 4, dtype=torch.float64)
    answer = machine(x, weights=True)
    for example in range(2):
        output, reads, writes = by_loop(machine, x[example].tolist())
        torch.testing.assert_close(answer.output[example], torch.tensor(output).double())
        for name, rows in (("read", reads), ("write", writes)):
            want = torch.tensor(rows).double().transpose(0, 1)  # (head, step, slot)
            torch.testing.assert_close(answer.weights[name][example], want)


def test_the_defaults():
    machine = NTM(9, 8)
    state = machine.initial(3)
    assert state.memory.shape == (3, 128, 20) and (state.memory == 1e-6).all()
    assert isinstance(machine.controller, LSTMController) and machine.controller.width == 100
    for weights in (state.read_weights, state.write_weights):
        assert (weights.argmax(-1) == 0).all() and (weights.sum(-1) == 1).all()
    assert "128 slots × 20" in repr(machine)


def test_weights_are_distributions_in_float32_whatever_the_dtype():
    for dtype in (torch.bfloat16, torch.float32):
        machine = NTM(4, 3, slots=11).to(dtype)
        answer = machine(torch.randn(2, 40, 4, dtype=dtype), weights=True)
        assert answer.output.dtype == dtype and answer.state.memory.dtype == torch.float32
        for weights in answer.weights.values():
            assert weights.dtype == torch.float32
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@torch.no_grad()
def test_the_trace(tmp_path):
    machine, x = small(), torch.randn(2, 7, 4, dtype=torch.float64)
    answer = machine(x, weights=True)
    trace = answer.trace
    assert [record.name for record in trace] == ["read", "write"]
    assert trace["read"].shape == (2, 2, 7, 6) and trace["read"].kind == "distribution"
    assert torch.equal(trace["write"].weights(), answer.weights["write"])
    (entropy,) = trace["read"].reduce(regard.Entropy())
    rows = answer.weights["read"]
    torch.testing.assert_close(entropy, -(rows * rows.log()).sum(-1), rtol=0, atol=1e-6)
    path = trace.save(tmp_path / "machine.safetensors")
    assert torch.equal(regard.load_trace(path)["read"].weights(), trace["read"].weights())
    page = trace.save(tmp_path / "machine.html").read_text()
    assert "read" in page and "write" in page
    pytest.importorskip("matplotlib")
    assert trace[:1].plot("heatmap", heads=1).save(tmp_path / "read.png").stat().st_size
    assert trace.plot().save(tmp_path / "grid.png").stat().st_size


def test_a_trace_that_was_not_asked_for():
    with pytest.raises(UnavailableError, match="NTM: no weights were kept; call it with weights"):
        _ = small()(torch.randn(1, 2, 4, dtype=torch.float64)).trace


@torch.no_grad()
def test_a_state_is_a_value_and_a_pytree():
    machine, x = small(), torch.randn(2, 5, 4, dtype=torch.float64)
    state = machine(x[:, :2]).state
    memory = state.memory.clone()
    first, again = machine(x[:, 2:], state=state), machine(x[:, 2:], state=state)
    assert torch.equal(first.output, again.output) and torch.equal(state.memory, memory)
    leaves, form = _pytree.tree_flatten(state)
    rebuilt = _pytree.tree_unflatten(leaves, form)
    assert torch.equal(machine(x[:, 2:], state=rebuilt).output, first.output)
    with pytest.raises(AttributeError):
        state.memory = memory


def test_gradients_flow_through_a_state():
    machine, x = small(), torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    state = machine(x[:, :3]).state
    (cut,) = torch.autograd.grad(machine(x[:, 3:], state=state).output.sum(), x)
    (whole,) = torch.autograd.grad(machine(x).output[:, 3:].sum(), x)
    assert cut[:, :3].any()
    torch.testing.assert_close(cut, whole)


def test_its_gradient_is_that_of_finite_differences():
    machine, x = small(slots=4), torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: machine(x).output, (x,))


@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_refused():
    machine, x = NTM(4, 2, slots=6, slot_width=3), torch.randn(2, 5, 4)
    with pytest.raises(ShapeError, match=r"x has 2 axes .* expected 3"):
        machine(x[0])
    with pytest.raises(StateError, match=r"memory is \(2, 6, 3\), expected \(1, 6, 3\)"):
        machine(x[:1], state=machine(x).state)
    with pytest.raises(StateError, match="NTM: state is a DNCState, expected a NTMState, as in"):
        machine(x, state=DNC(4, 2)(x).state)
    more_heads = NTM(4, 2, slots=6, slot_width=3, read_heads=2)
    with pytest.raises(
        StateError, match=r"state: read_weights is \(2, 2, 6\), expected \(2, 1, 6\)"
    ):
        machine(x, state=more_heads(x).state)
    wider = NTM(4, 2, slots=6, slot_width=3, controller=LSTMController(7, width=9))
    with pytest.raises(StateError, match=r"controller\[0\] is \(2, 9\), expected \(2, 100\)"):
        machine(x, state=wider(x).state)
    feed_forward = NTM(4, 2, slots=6, slot_width=3, controller=FeedForwardController(7))
    with pytest.raises(StateError, match="the controller holds 0 tensors, expected 2"):
        machine(x, state=feed_forward(x).state)
    with pytest.raises(DtypeError, match=r"memory is torch\.float32, expected torch\.float64"):
        copy.deepcopy(machine).double()(x.double(), state=machine(x).state)
    with pytest.raises(ShapeError, match="NTM: x is a nested tensor, expected a padded one"):
        machine(torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged))
    with pytest.raises(ShapeError, match="controller takes 5 features, expected 7: 4 of the input"):
        NTM(4, 2, slot_width=3, controller=LSTMController(5))
    with pytest.raises(ShapeError, match=r"shifts 3 over 6 slots, expected .* at most 2"):
        NTM(4, 2, slots=6, shifts=3)
    with pytest.raises(RegardError, match="NTM: read_heads=0, expected a whole number from 1"):
        NTM(4, 2, read_heads=0)
    with pytest.raises(RegardError, match="LSTMController: width=0, expected a whole number"):
        LSTMController(5, 0)


def test_one_slot():
    machine = NTM(4, 2, slots=1, shifts=0)
    assert (machine(torch.randn(1, 3, 4), weights=True).weights["read"] == 1).all()
