"""Laws of recurrent states: a memory of one size, and no key axis."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree

from regard.contract import RecurrentState
from regard.testing.law import law
from regard.testing.subject import Subject, Unchecked, call


@law("states are recurrent just where traits say so: of one size whatever the length, not in half")
def recurrent_states(subject: Subject) -> None:
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
                assert not half, f"a memory is added up in {leaf.dtype}, expected float32 or finer"
        assert sizes[1] == sizes[2] == sizes[5], f"the state grows with the length: {sizes}"
