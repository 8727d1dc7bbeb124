"""Growing states: values that share a buffer, and copy no old keys at a step."""

import copy
import threading
from dataclasses import replace

import pytest
import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.contract import State
from regard.mechanisms import Additive, MultiHead, Rotary

X = torch.randn(2, 12, 16)


class Written(TorchDispatchMode):
    """The largest tensor that was copied or concatenated."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("copy_", "cat", "clone", "_to_copy", "index_select"):
            self.largest = max(self.largest, out.numel())
        return out


def steps(attn, state, x):
    outputs = []
    for position in range(x.shape[1]):
        attended = attn(x[:, position : position + 1], causal=True, state=state)
        state = attended.state
        outputs.append(attended.output)
    return torch.cat(outputs, 1), state


@pytest.mark.parametrize("calm", [torch.no_grad, torch.inference_mode])
def test_a_step_copies_its_own_keys_alone(calm):
    attn = MultiHead(16, 4, position=Rotary()).eval()
    with calm():
        _, state = steps(attn, attn(X, causal=True, state=True).state, X[:, :2])
        buffer = state.buffer.tensors[0]
        with Written() as written:
            for position in range(12):
                state = attn(X[:, position : position + 1], causal=True, state=state).state
    assert state.keys == 26 and state.buffer.tensors[0] is buffer
    assert written.largest == 2 * 16  # one position of a batch of two


def test_reordered_beams_get_no_spare_entries():
    attn = MultiHead(16, 4).eval()
    with torch.no_grad():
        _, state = steps(attn, True, X[:, :6])
        reordered = _pytree.tree_map_only(torch.Tensor, lambda held: held[[1, 1]], state)
        _, stepped = steps(attn, reordered, X[:, 6:7])
        _, again = steps(attn, stepped, X[:, 7:8])
    assert state.buffer.tensors[0].shape[2] > state.keys
    assert stepped.buffer.tensors[0].shape[2] == stepped.keys == 7
    assert again.buffer.tensors[0].shape[2] > again.keys == 8


def test_a_full_buffer_is_copied_into_a_larger_one():
    attn, x = MultiHead(16, 4, position=Rotary()).eval(), torch.randn(1, 300, 16)
    with torch.no_grad():
        outputs, state = steps(attn, True, x)
        torch.testing.assert_close(outputs, attn(x, causal=True).output, atol=1e-5, rtol=1e-5)
    assert state.keys == 300
    assert state.buffer.tensors[0].shape[2] < 2 * 300  # no more than half as much again


@pytest.mark.parametrize("build", [lambda: MultiHead(16, 4), lambda: Additive(16, 16, width=8)])
def test_two_continuations_of_one_state_are_both_right(build):
    attn = build().eval()
    with torch.no_grad():
        _, trunk = steps(attn, True, X[:, :6])
        held = trunk.key.clone()
        left, first = steps(attn, trunk, X[:, 6:8])
        right, second = steps(attn, trunk, X[:, 9:11])
        again, _ = steps(attn, first, X[:, 8:9])  # the first goes on after the second
        whole = attn(X[:, :9], causal=True).output
        other = attn(torch.cat([X[:, :6], X[:, 9:11]], 1), causal=True).output
    torch.testing.assert_close(torch.cat([left, again], 1), whole[:, 6:])
    torch.testing.assert_close(right, other[:, 6:])
    assert torch.equal(trunk.key, held)
    assert first.buffer is trunk.buffer and second.buffer is not trunk.buffer


def test_beams_that_are_reordered_go_on_from_their_own_keys():
    attn, order = MultiHead(16, 4).eval(), torch.tensor([1, 1])
    with torch.no_grad():
        _, state = steps(attn, True, X[:, :6])
        shuffled = replace(state, key=state.key[order], value=state.value[order])
        mapped = _pytree.tree_map_only(torch.Tensor, lambda held: held[order], state)
        expected = attn(torch.cat([X[order, :6], X[:, 6:9]], 1), causal=True).output[:, 6:]
        for beams in (shuffled, mapped):
            torch.testing.assert_close(steps(attn, beams, X[:, 6:9])[0], expected)


def test_gradients_flow_through_every_step():
    attn, x = MultiHead(16, 4, position=Rotary()), X.clone().requires_grad_()
    outputs, state = steps(attn, True, x)
    assert state.buffer is None
    (stepped,) = torch.autograd.grad(outputs.square().sum(), x)
    (whole,) = torch.autograd.grad(attn(x, causal=True).output.square().sum(), x)
    torch.testing.assert_close(stepped, whole)


def test_training_goes_on_from_a_cached_prompt_that_others_go_on_from():
    """A backward pass is not disturbed by a later step that writes behind what it saved."""
    attn, query = MultiHead(16, 4), X[:, :2].clone().requires_grad_()
    with torch.no_grad():
        _, prompt = steps(attn, True, X)
    memory = State(prompt.key, prompt.value, growing=False)
    output = attn(query, state=memory).output
    expected = torch.autograd.grad(attn(query, X).output.sum(), query)[0]
    with torch.no_grad():
        _, longer = steps(attn, prompt, X[:, :3])
    assert longer.buffer is prompt.buffer
    torch.testing.assert_close(torch.autograd.grad(output.sum(), query)[0], expected)


def test_a_state_of_inference_mode_goes_on_outside_of_it():
    attn = MultiHead(16, 4).eval()
    with torch.inference_mode():
        _, state = steps(attn, True, X[:, :6])
    with torch.no_grad():
        rest, _ = steps(attn, state, X[:, 6:])
        torch.testing.assert_close(rest, attn(X, causal=True).output[:, 6:])


def test_a_pytree_and_a_copy_of_a_state_share_nothing_with_it():
    attn = MultiHead(16, 4).eval()
    with torch.no_grad():
        _, state = steps(attn, True, X[:, :6])
        leaves, spec = _pytree.tree_flatten(state)
        assert len(leaves) == 2 and _pytree.tree_unflatten(leaves, spec).buffer is None
        twin = copy.deepcopy(state)
        steps(attn, twin, X[:, 6:])
        assert state.buffer.taken == 6
        assert "buffer" not in repr(state)


def test_threads_that_go_on_from_one_state_do_not_meet():
    attn, results = MultiHead(16, 4).eval(), {}
    with torch.no_grad():
        _, trunk = steps(attn, True, X[:, :2])
        expected = {n: steps(attn, attn.begin(X[:, :2]), X[:, n:])[0] for n in range(2, 8)}

    def go_on(start):
        with torch.no_grad():
            results[start] = steps(attn, trunk, X[:, start:])[0]

    threads = [threading.Thread(target=go_on, args=[start]) for start in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for start, output in expected.items():
        torch.testing.assert_close(results[start], output)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_and_forward_gradients_pass_through_a_state():
    attn, tangent = MultiHead(16, 4).eval(), torch.randn(2, 2, 16)

    def last(x):
        return steps(attn, trunk, x)[0]

    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, trunk = steps(attn, True, X[:, :6])
        _, pushed = torch.func.jvp(last, (X[:, :2],), (tangent,))
        step = 1e-3
        nearby = (last(X[:, :2] + step * tangent) - last(X[:, :2] - step * tangent)) / (2 * step)
        torch.testing.assert_close(pushed, nearby, atol=1e-2, rtol=1e-2)
        batched = torch.func.vmap(last)(torch.stack([X[:, :2], X[:, 2:4]]))
        torch.testing.assert_close(batched[1], last(X[:, 2:4]))


def test_capture_reads_every_step():
    attn = MultiHead(16, 4, position=Rotary()).eval()
    with torch.no_grad():
        expected = attn(X, causal=True, weights=True).weights
        with regard.capture(attn) as trace:
            steps(attn, True, X)
    for position, record in enumerate(trace):
        row = expected[:, :, position : position + 1, : position + 1]
        torch.testing.assert_close(record.weights(), row, atol=1e-6, rtol=1e-5)
