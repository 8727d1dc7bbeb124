"""Laws of state: fixed and growing."""

from __future__ import annotations

import torch

from regard.contract import Mechanism
from regard.testing.law import law
from regard.testing.subject import Subject, Unchecked, call, close, weights_of


@law("step by step with a growing state equals one causal pass")
def step_by_step(subject: Subject) -> None:
    if not subject.traits.keeps_state:
        raise Unchecked("the module declares no growing state")
    x, module = subject.own(), subject.module()
    full = call(module, x, causal=True, weights=True)
    for size in (1, 2):
        state, outputs = None, []
        for start in range(0, x.shape[1], size):
            piece = x[:, start : start + size]
            step = call(module, piece, causal=True, state=state or True, weights=True)
            state = step.state
            assert state is not None, "a growing state was asked for and none came back"
            outputs.append(step.output)
        close(torch.cat(outputs, 1), full.output, 1e-9, f"output in steps of {size}")
        last = weights_of(step)[:, :, -1]
        close(last, weights_of(full)[:, :, -1], 1e-9, f"weights of the last of steps of {size}")


@law("a fixed state equals passing the keys, and `begin` one that grows from them")
def fixed_state(subject: Subject) -> None:
    module = subject.module()
    if not isinstance(module, Mechanism) or subject.traits.self_only:
        raise Unchecked("the module has no `fix`")
    query, key, value = subject.inputs()
    want = call(module, query, key, value, weights=True)
    got = call(module, query, state=module.fix(key, value), weights=True)
    close(got.output, want.output, 1e-9, "output with a fixed state")
    close(weights_of(got), weights_of(want), 1e-9, "weights with a fixed state")
    if not subject.traits.keeps_state:
        return
    half = key.shape[1] // 2
    grown = module.begin(key[:, :half], value[:, :half])
    got = call(module, query, key[:, half:], value[:, half:], state=grown, weights=True)
    close(got.output, want.output, 1e-9, "output with a state that grew from `begin`")
