"""Laws of blocks: gradients, state dicts, copies, no trace."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle

import torch
from torch import Tensor

from regard.testing.block_law import all_weights, block_law, finite_gradients, run, sides
from regard.testing.subject import Subject


@block_law("gradients of output and weights are right (gradcheck), and reach every parameter")
def gradients(subject: Subject) -> None:
    inputs, module = sides(subject, length=3, context_length=4), subject.module()

    def answers(*leaves: Tensor) -> tuple[Tensor, ...]:
        blocked = run(module, *leaves, weights=True)
        return blocked.output, *all_weights(blocked).values()

    leaves = [features.clone().requires_grad_() for features in inputs]
    assert torch.autograd.gradcheck(answers, leaves, fast_mode=True), "gradcheck"
    output, *weights = answers(*leaves)
    assert output.requires_grad, "the output is not in the graph"
    assert all(each.requires_grad for each in weights), "the weights are not in the graph"
    finite_gradients(module, output.square().sum(), "the output")
    missed = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    assert not missed, f"no gradient reaches {', '.join(missed)}"


@block_law("a state dict carries everything to a freshly built block, each tensor once")
def state_dict(subject: Subject) -> None:
    inputs = sides(subject)
    first, second = subject.module(seed=0), subject.module(seed=7)
    held = [tensor.data_ptr() for tensor in first.state_dict().values() if tensor.numel()]
    assert len(set(held)) == len(held), "a tensor is in the state dict under two names"
    memory = io.BytesIO()
    torch.save(first.state_dict(), memory)
    memory.seek(0)
    second.load_state_dict(torch.load(memory, weights_only=True))
    want, got = run(first, *inputs).output, run(second, *inputs).output
    assert torch.equal(got, want), "the output differs after load_state_dict"


@block_law("deepcopy and pickle give a block with the same output")
def copies(subject: Subject) -> None:
    inputs, module = sides(subject), subject.module()
    want = run(module, *inputs).output
    for name, twin in (
        ("deepcopy", copy.deepcopy(module)),
        ("pickle", pickle.loads(pickle.dumps(module))),
    ):
        assert torch.equal(run(twin, *inputs).output, want), f"the output differs after {name}"


@block_law("a call in eval mode leaves no trace: same answer twice; randomness, mode as before")
def leaves_no_trace(subject: Subject) -> None:
    inputs, module = sides(subject), subject.module()
    before = (torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled())
    first = run(module, *inputs, weights=True).output
    with contextlib.suppress(Exception):  # any error will do: what matters is what is left
        module(inputs[0], torch.zeros(1), mask="nonsense")
    assert torch.equal(torch.get_rng_state(), before[0]), "random numbers were drawn"
    now = (torch.get_num_threads(), torch.is_grad_enabled())
    assert now == before[1:], f"threads and grad mode are {now}, were {before[1:]}"
    assert not module.training, "the block went into training mode"
    assert torch.equal(run(module, *inputs, weights=True).output, first), "the second call differs"
