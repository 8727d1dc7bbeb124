"""Laws of training and of keeping: dropout, gradients, state dicts, copies, no trace."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from typing import Any

import torch

from regard.testing.law import law
from regard.testing.subject import Subject, call, close, largest, weights_of


@law("returned weights are those before dropout: training and eval give the same")
def weights_before_dropout(subject: Subject) -> None:
    inputs = subject.inputs()
    module = subject.module()
    in_eval = weights_of(call(module, *inputs, weights=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        in_training = weights_of(call(module.train(), *inputs, weights=True))
    if not subject.traits.hard:
        close(in_training, in_eval, subject.fine, "weights in training")
        return
    # What is drawn differs from what eval chooses, but its rows are of the same kind.
    sums = in_training.sum(-1)
    assert (in_training >= 0).all(), "a drawn weight is negative"
    if subject.kind == "distribution":
        close(sums, torch.ones_like(sums), 1e-6, "row sums of drawn weights")
    assert (sums <= 1 + 1e-6).all(), f"a drawn row sums to {largest(sums):.6g}, above 1"


@law("gradients of output and weights are right (gradcheck in float64)")
def gradients(subject: Subject) -> None:
    query, key, value = subject.inputs(queries=3, keys=4)
    module = subject.module()
    alone, as_value = subject.traits.self_only, subject.takes_value

    def run(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        inputs = (query, query, query) if alone else (query, key, value if as_value else key)
        attended = call(module, *inputs, weights=True)
        return attended.output, weights_of(attended)

    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    options: dict[str, Any] = {"fast_mode": True}
    if subject.fine > 1e-9:  # float32 moves in steps of 1e-7, which differences over 1e-6 would see
        options = {"eps": 1e-2, "atol": 1e-3, "rtol": 1e-3}
    assert torch.autograd.gradcheck(run, leaves, **options), "gradcheck"
    output, weights = run(*leaves)
    assert output.requires_grad, "the output is not in the graph"
    assert weights.requires_grad or subject.traits.hard, "the weights are not in the graph"


@law("a state dict carries everything to a freshly built module")
def state_dict(subject: Subject) -> None:
    inputs = subject.inputs()
    first, second = subject.module(seed=0), subject.module(seed=7)
    memory = io.BytesIO()
    torch.save(first.state_dict(), memory)
    memory.seek(0)
    second.load_state_dict(torch.load(memory, weights_only=True))
    want, got = call(first, *inputs).output, call(second, *inputs).output
    assert torch.equal(got, want), "the output differs after load_state_dict"


@law("deepcopy and pickle give a module with the same output")
def copies(subject: Subject) -> None:
    inputs, module = subject.inputs(), subject.module()
    want = call(module, *inputs).output
    for name, twin in (
        ("deepcopy", copy.deepcopy(module)),
        ("pickle", pickle.loads(pickle.dumps(module))),
    ):
        assert torch.equal(call(twin, *inputs).output, want), f"the output differs after {name}"


@law("a call in eval mode leaves no trace: same answer twice; randomness, mode, threads as before")
def leaves_no_trace(subject: Subject) -> None:
    inputs, module = subject.inputs(), subject.module()
    reducers = [subject.reducer] if subject.reduces else []
    before = (torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled())
    first = call(module, *inputs, weights=True).output
    if reducers:
        call(module, *inputs, reduce=reducers)
    with contextlib.suppress(Exception):  # any error will do: what matters is what is left
        module(inputs[0], torch.zeros(1), "nonsense")
    assert torch.equal(torch.get_rng_state(), before[0]), "random numbers were drawn"
    now = (torch.get_num_threads(), torch.is_grad_enabled())
    assert now == before[1:], f"threads and grad mode are {now}, were {before[1:]}"
    assert not module.training, "the module went into training mode"
    assert torch.equal(call(module, *inputs, weights=True).output, first), "the second call differs"
