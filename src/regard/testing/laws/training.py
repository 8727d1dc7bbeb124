"""Laws of training and of copies: dropout, gradients, state dicts, pickles, no side effects."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor

from regard.testing.assertions import close, finite_gradients
from regard.testing.law import law
from regard.testing.laws.weights import check_rows
from regard.testing.subject import BlockSubject, ImageSubject, Subject, all_weights


@law("returned weights are those before dropout", "mechanism", "block")
def weights_before_dropout(subject: Subject) -> None:
    """In training the first attention sees what it sees in eval, unless the input is dropped."""
    inputs, module = subject.sample(), subject.module()
    in_eval = all_weights(subject.run(module, *inputs, weights=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        in_training = all_weights(subject.run(module.train(), *inputs, weights=True))
    if subject.traits.hard:  # what is drawn differs from what eval chooses
        for label, weights in in_training.items():
            check_rows(f"drawn {label}", weights, subject.kind)
        return
    first = next(iter(in_eval))
    close(in_training[first], in_eval[first], subject.fine, f"{first} in training")
    for label, weights in in_training.items():
        touched = (weights == 0) & (in_eval[label] > 0)
        assert not touched.any(), f"{label} are 0 where dropout fell"


@law("gradients of output and weights are right (gradcheck in float64)", "mechanism", "image")
def gradients(subject: Subject) -> None:
    module = subject.module()

    def answers(*leaves: Tensor) -> tuple[Tensor, ...]:
        result = subject.run(module, *leaves, weights=True)
        return result.output, *all_weights(result).values()

    leaves = [tensor.clone().requires_grad_() for tensor in subject.sample(small=True)]
    options: dict[str, Any] = {"fast_mode": True}
    if subject.fine > 1e-9:  # float32 moves in steps of 1e-7, which differences over 1e-6 would see
        options = {"eps": 1e-2, "atol": 1e-3, "rtol": 1e-3}
    assert torch.autograd.gradcheck(answers, leaves, **options), "gradcheck"
    result = subject.run(module, *leaves, weights=True)
    assert result.output.requires_grad, "the output is not in the graph"
    for label, weights in all_weights(result).items():
        assert weights.requires_grad or subject.traits.hard, f"{label} are not in the graph"


@law(
    "gradients of output and weights are right (gradcheck), and reach every parameter",
    "block",
    name="gradients",
)
def block_gradients(subject: BlockSubject) -> None:
    gradients(subject)
    module = subject.module()
    output = subject.run(module, *subject.sample(small=True)).output
    finite_gradients(module, output.square().sum(), "the output")
    missed = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    assert not missed, f"no gradient reaches {', '.join(missed)}"


@law("image and parameters get finite gradients in training, also an image of zeros", "image")
def training(subject: ImageSubject) -> None:
    for scale in (1.0, 0.0):
        module, image = subject.module().train(), (scale * subject.image()).requires_grad_()
        result = subject.run(module, image, weights=True)
        loss = result.output.square().sum() + result.output.sum()
        for weights in all_weights(result).values():
            loss = loss + weights.square().sum()
        required = {"image": image, **dict(module.named_parameters())}
        finite_gradients(module, loss, f"{scale:g} times an image", required)


@law("a state dict carries everything to a freshly built module", "mechanism", "image")
def state_dict(subject: Subject) -> None:
    inputs = subject.sample()
    first, second = subject.module(seed=0), subject.module(seed=7)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    want, got = subject.run(first, *inputs).output, subject.run(second, *inputs).output
    assert torch.equal(got, want), "the output differs after load_state_dict"


@law(
    "a state dict carries everything to a freshly built block, each tensor once",
    "block",
    name="state_dict",
)
def block_state_dict(subject: BlockSubject) -> None:
    tensors = subject.module().state_dict().values()
    pointers = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    assert len(set(pointers)) == len(pointers), "a tensor is in the state dict under two names"
    state_dict(subject)


@law("deepcopy and pickle give a module with the same output", "mechanism", "block", "image")
def copies(subject: Subject) -> None:
    inputs, module = subject.sample(), subject.module()
    want = subject.run(module, *inputs).output
    for name, twin in (
        ("deepcopy", copy.deepcopy(module)),
        ("pickle", pickle.loads(pickle.dumps(module))),
    ):
        same = torch.equal(subject.run(twin, *inputs).output, want)
        assert same, f"the output differs after {name}"


@law(
    "a call in eval mode has no side effects: inputs, buffers, randomness, mode, threads as before",
    "mechanism",
    "block",
    "image",
)
def leaves_no_trace(subject: Subject) -> None:
    inputs, module, reducers = subject.sample(), subject.module(), [subject.reducer]
    reduces = subject.reduces  # asked before: building a module draws random numbers
    copied, state = [tensor.clone() for tensor in inputs], copy.deepcopy(module.state_dict())
    before = (torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled())
    first = subject.run(module, *inputs, weights=True).output
    if reduces:
        subject.run(module, *inputs, reduce=reducers)
    with contextlib.suppress(Exception):  # any error will do: what matters is what is left
        module(inputs[0], torch.zeros(1), mask="nonsense")
    assert torch.equal(torch.get_rng_state(), before[0]), "random numbers were drawn"
    now = (torch.get_num_threads(), torch.is_grad_enabled())
    assert now == before[1:], f"threads and grad mode are {now}, were {before[1:]}"
    for tensor, old in zip(inputs, copied):
        assert torch.equal(tensor, old), "an input was changed"
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name]), f"{name} changed in eval mode"
    assert not module.training, "the module went into training mode"
    second = subject.run(module, *inputs, weights=True).output
    assert torch.equal(second, first), "the second call differs"
