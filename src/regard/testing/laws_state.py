"""Laws of state: fixed and growing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from regard.contract import Attended, Mechanism
from regard.testing.law import law
from regard.testing.laws_errors import refuses
from regard.testing.subject import Subject, Unchecked, call, close, over_the_text, weights_of


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
            later = (
                full.output.shape[-1] - step.output.shape[-1]
            )  # keys not there yet, of a pointer
            outputs.append(torch.nn.functional.pad(step.output, (0, later)))
        close(torch.cat(outputs, 1), full.output, subject.fine, f"output in steps of {size}")
        last = over_the_text(weights_of(step), state)[:, :, -1]
        keys = piece.shape[1] if subject.traits.recurrent else x.shape[1]  # earlier ones are gone
        close(
            last,
            weights_of(full)[:, :, -1, -keys:],
            subject.fine,
            f"weights of the last of steps of {size}",
        )


@law("a fixed state equals passing the keys, and `begin` one that grows from them")
def fixed_state(subject: Subject) -> None:
    module = subject.module()
    if not isinstance(module, Mechanism) or subject.traits.self_only:
        raise Unchecked("the module has no `fix`")
    query, key, value = subject.inputs()
    want = call(module, query, key, value, weights=True)
    fixed = module.fix(key, value)
    got = call(module, query, state=fixed)
    close(got.output, want.output, subject.fine, "output with a fixed state")
    if subject.traits.recurrent:  # whose keys are gone
        refuses(lambda: call(module, query, state=fixed, weights=True), "weights", "fixed")
    else:
        weights = weights_of(call(module, query, state=fixed, weights=True))
        close(weights, weights_of(want), subject.fine, "weights with a fixed state")
    if subject.traits.sequential:
        state: Any = module.fix(key, value)
        outputs = list[Tensor]()
        for place in range(query.shape[1]):
            step = call(module, query[:, place : place + 1], state=state)
            assert step.state is not None, "a fixed state was given and none came back"
            state, outputs = step.state, [*outputs, step.output]
        close(torch.cat(outputs, 1), want.output, subject.fine, "one query at a time")
    if not subject.traits.keeps_state:
        return
    half = key.shape[1] // 2
    old, new = (key[:, :half], value[:, :half]), (key[:, half:], value[:, half:])
    grown = module.begin(*(old if subject.takes_value else old[:1]))
    got = call(module, query, *new, state=grown, weights=True)
    close(got.output, want.output, subject.fine, "output with a state that grew from `begin`")


@law("a state is a value: going on from it leaves it as it was, so one may go on from it twice")
def states_are_values(subject: Subject) -> None:
    module, inputs = subject.module(), subject.inputs(queries=3, keys=4)
    with torch.no_grad():
        states: list[tuple[Any, Callable[..., Attended]]] = []
        if subject.traits.keeps_state:
            grown = call(module, *inputs, state=True).state
            states.append((grown, partial(call, module, *inputs)))
        if isinstance(module, Mechanism) and not subject.traits.self_only:
            states.append((module.fix(*inputs[1:]), partial(call, module, inputs[0])))
        if not states:
            raise Unchecked("the module declares no state")
        for state, go_on in states:
            before = _pytree.tree_map_only(Tensor, torch.clone, state)
            first = go_on(state=state).output
            (old, was), (new, now) = _pytree.tree_flatten(before), _pytree.tree_flatten(state)
            same = was == now and all(
                torch.equal(*pair) for pair in zip(old, new) if isinstance(pair[0], Tensor)
            )
            assert same, "a call changed the state that it was given"
            close(go_on(state=state).output, first, 0.0, "going on twice from one state")
