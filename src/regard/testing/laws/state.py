"""Laws of state: fixed, growing and recurrent; one step after another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from regard import masks
from regard.contract import Attended, Mechanism, RecurrentState
from regard.testing.assertions import Unchecked, close, refuses
from regard.testing.law import law
from regard.testing.subject import (
    BlockSubject,
    MechanismSubject,
    all_weights,
    attentions,
    call,
    last_name,
    over_the_text,
    weights_of,
)


@law("step by step with a growing state equals one causal pass", "mechanism")
def step_by_step(subject: MechanismSubject) -> None:
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
            later = full.output.shape[-1] - step.output.shape[-1]  # a pointer's keys still to come
            outputs.append(nn.functional.pad(step.output, (0, later)))
        what = f"in steps of {size}"
        close(torch.cat(outputs, 1), full.output, subject.fine, f"output {what}")
        last = over_the_text(weights_of(step), state)[:, :, -1]
        keys = piece.shape[1] if subject.traits.recurrent else x.shape[1]  # earlier ones are gone
        want = weights_of(full)[:, :, -1, -keys:]
        close(last, want, subject.fine, f"weights of the last step, {what}")


@law(
    "step by step with a state equals one causal pass, masks and weights included",
    "block",
    name="step_by_step",
)
def block_step_by_step(subject: BlockSubject) -> None:
    subject.takes("state")
    for masked in (False, True):
        for size in (1, 2):
            _check_steps(subject, torch.float64, size, masked, subject.fine)
    _check_steps(subject, torch.float32, 1, True, 1e-5)


def _check_steps(
    subject: BlockSubject, dtype: torch.dtype, size: int, masked: bool, tolerance: float
) -> None:
    inputs, module = subject.sides(dtype), subject.module(dtype)
    length = inputs[0].shape[1]
    run = partial(subject.run, module, causal=True, weights=True)
    full = run(*inputs, **_masks(inputs, masked, length))
    state: Any = True
    outputs = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        context = inputs[1:] if state is True else ()
        options = _masks(inputs, masked, stop)
        step = run(inputs[0][:, start:stop], *context, state=state, **options)
        state = step.state
        assert state is not None, "a state was asked for and none came back"
        outputs.append(step.output)
    what = f"in steps of {size}{', with masks' if masked else ''}"
    close(torch.cat(outputs, 1), full.output, tolerance, f"output {what}")
    wanted = all_weights(full)
    mechanisms = [child for child in module.modules() if isinstance(child, Mechanism)]
    recurrent = any(mechanism.traits.recurrent for mechanism in mechanisms)
    for label, attended in attentions(step).items():
        weights = over_the_text(weights_of(attended, label), attended.state)
        last = wanted[label][:, :, -1]
        if recurrent and last_name(label) == "self":  # of this call's keys, the others are gone
            last = last[..., -step.output.shape[1] :]
        close(weights[:, :, -1], last, tolerance, f"last {label} {what}")


def _masks(inputs: tuple[Tensor, ...], masked: bool, stop: int) -> dict[str, Any]:
    """A mask of x up to a position, and one of the whole context."""
    keeps = [torch.ones(features.shape[:2], dtype=torch.bool) for features in inputs]
    for keep in keeps:
        keep[0, 1] = False
    paddings = map(masks.padding, (keeps[0][:, :stop], *keeps[1:]))
    return dict(zip(("mask", "context_mask"), paddings)) if masked else {}


@law("a fixed state equals passing the keys, and `begin` one that grows from them", "mechanism")
def fixed_state(subject: MechanismSubject) -> None:
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
        outputs = []
        for row in query.split(1, 1):
            step = call(module, row, state=state)
            assert step.state is not None, "a fixed state was given and none came back"
            state = step.state
            outputs.append(step.output)
        close(torch.cat(outputs, 1), want.output, subject.fine, "one query at a time")
    if not subject.traits.keeps_state:
        return
    half = key.shape[1] // 2
    old, new = (key[:, :half], value[:, :half]), (key[:, half:], value[:, half:])
    grown = module.begin(*(old if subject.takes_value else old[:1]))
    got = call(module, query, *new, state=grown, weights=True)
    close(got.output, want.output, subject.fine, "output with a state that grew from `begin`")


@law(
    "a state is a value: a call leaves it unchanged, so one may continue from it twice", "mechanism"
)
def states_are_values(subject: MechanismSubject) -> None:
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
            close(go_on(state=state).output, first, 0.0, "continuing twice from one state")


@law(
    "states are recurrent just where traits say so: of one size whatever the length, not in half",
    "mechanism",
)
def recurrent_states(subject: MechanismSubject) -> None:
    if not subject.traits.keeps_state:
        raise Unchecked("the module declares no growing state")
    recurrent = subject.traits.recurrent
    for dtype in (torch.float64, torch.bfloat16):
        module, sizes = subject.module(dtype), {}
        for length in (1, 2, 5):
            inputs = subject.inputs(dtype, queries=length, keys=length)
            with torch.no_grad():
                state = call(module, *inputs, state=True).state
            assert isinstance(state, RecurrentState) == recurrent, (
                f"traits.recurrent is {recurrent}, and the state is a {type(state).__name__}"
            )
            if not recurrent:
                return
            leaves = [leaf for leaf in _pytree.tree_leaves(state) if isinstance(leaf, Tensor)]
            sizes[length] = [tuple(leaf.shape) for leaf in leaves]
            for leaf in leaves:
                half = leaf.is_floating_point() and leaf.element_size() < 4
                assert not half, f"a memory is summed in {leaf.dtype}, expected float32 or finer"
        assert sizes[1] == sizes[2] == sizes[5], f"the state grows with the length: {sizes}"


@law("a state is a pytree of tensors, and a value: a call leaves it unchanged", "block")
def state_is_a_pytree(subject: BlockSubject) -> None:
    subject.takes("state")
    inputs, module = subject.sides(), subject.module()
    x, size = inputs[0], inputs[0].shape[0]
    state = subject.run(module, x[:, :2], *inputs[1:], state=True).state
    leaves = _pytree.tree_leaves(state)
    strange = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)}
    assert leaves and not strange, f"the leaves of a state are {strange or 'none'}, not tensors"
    want = subject.run(module, x[:, 2:], state=state).output
    again = subject.run(module, x[:, 2:], state=state).output
    close(again, want, 0.0, "continuing a second time")
    order = torch.arange(size).flip(0)
    reordered = _pytree.tree_map(lambda leaf: leaf[order], state)
    got = subject.run(module, x[order, 2:], state=reordered).output
    close(got, want[order], subject.fine, "output after the examples of a state were reordered")
    assert subject.run(module, *inputs).state is None, "a state came although none was asked"
