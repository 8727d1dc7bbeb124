"""Laws of blocks: one step after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from regard import masks
from regard.contract import Mechanism
from regard.testing.block_law import all_weights, block_law, run, sides
from regard.testing.subject import Subject, close, over_the_text


@block_law("step by step with a state equals one causal pass, masks and weights included")
def step_by_step(subject: Subject) -> None:
    subject.takes("state")
    inputs, module = sides(subject, torch.float64), subject.module(torch.float64)
    for masked in (False, True):
        for size in (1, 2):
            _compare(module, inputs, size, masked, 1e-9)
    inputs, module = sides(subject, torch.float32), subject.module(torch.float32)
    _compare(module, inputs, 1, True, 1e-5)


def _compare(
    module: nn.Module, inputs: tuple[Tensor, ...], size: int, masked: bool, tolerance: float
) -> None:
    length = inputs[0].shape[1]
    full = run(
        module, *inputs, causal=True, weights=True, **_masks(inputs, masked, slice(0, length))
    )
    state: Any = True
    outputs = []
    for start in range(0, length, size):
        span = slice(start, min(start + size, length))
        context = inputs[1:] if state is True else ()
        options = _masks(inputs, masked, slice(0, span.stop))
        step = run(
            module,
            inputs[0][:, span],
            *context,
            causal=True,
            state=state,
            weights=True,
            **options,
        )
        state = step.state
        assert state is not None, "a state was asked for and none came back"
        outputs.append(step.output)
    about = f"in steps of {size}{', with masks' if masked else ''}"
    close(torch.cat(outputs, 1), full.output, tolerance, f"output {about}")
    wanted = all_weights(full)
    recurrent = any(
        part.traits.recurrent for part in module.modules() if isinstance(part, Mechanism)
    )
    for name, weights in all_weights(step).items():
        last = wanted[name][:, :, -1]
        weights = over_the_text(weights, step.attentions[name].state)
        if recurrent and name.split(".")[-1] == "self":  # of this call's keys, the others are gone
            last = last[..., -step.output.shape[1] :]
        close(weights[:, :, -1], last, tolerance, f"last weights of {name} {about}")


def _masks(inputs: tuple[Tensor, ...], masked: bool, span: slice) -> dict[str, Any]:
    if not masked:
        return {}
    keeps = [torch.ones(features.shape[:2], dtype=torch.bool) for features in inputs]
    for keep in keeps:
        keep[0, 1] = False
    found = {"mask": masks.padding(keeps[0][:, span])}
    return found if len(keeps) == 1 else {**found, "context_mask": masks.padding(keeps[1])}


@block_law("a state is a pytree of tensors, and a value: going on from it leaves it as it was")
def state_is_a_pytree(subject: Subject) -> None:
    subject.takes("state")
    inputs, module = sides(subject), subject.module()
    x, size = inputs[0], inputs[0].shape[0]
    state = run(module, x[:, :2], *inputs[1:], state=True).state
    leaves = _pytree.tree_leaves(state)
    strange = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, Tensor)}
    assert leaves and not strange, f"the leaves of a state are {strange or 'none'}, not tensors"
    want = run(module, x[:, 2:], state=state).output
    close(run(module, x[:, 2:], state=state).output, want, 0.0, "going on a second time")
    order = torch.arange(size).flip(0)
    turned = _pytree.tree_map(lambda leaf: leaf[order], state)
    got = run(module, x[order, 2:], state=turned).output
    close(got, want[order], 1e-9, "output after the examples of a state were reordered")
    assert run(module, *inputs).state is None, "a state came although none was asked"
