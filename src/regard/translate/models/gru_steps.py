"""The steps of a GRU with their gradient by hand, for the loops that cost the most.

Autograd would add up the gradient of the recurrent matrix at every step. Here it is one product
over all steps when the loop is done, and the loop itself writes into memory that is there already.
`Cell.over` and `PreviousState` step by step are the truth that these are compared with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, autocast
from torch.autograd.function import once_differentiable


class Steps(NamedTuple):
    """What the backward pass needs of every step: all (step, row, …)."""

    switches: Tensor  #: reset and update gates, 2 × hidden
    candidates: Tensor  #: n, hidden
    candidate_shares: Tensor  #: Uₙ h + b, hidden
    outputs: Tensor  #: h', hidden

    @classmethod
    def room(cls, gates: Tensor) -> Steps:
        """Room for steps whose gates are (step, row, 3 × hidden)."""
        steps, rows, wide = gates.shape
        sizes = (2 * wide // 3, wide // 3, wide // 3, wide // 3)
        return cls(*(gates.new_empty(steps, rows, size) for size in sizes))

    def forward(self, step: int, gates: Tensor, own: Tensor, before: Tensor) -> Tensor:
        """One step into its room: gates and the state's share of them, (row, 3 × hidden)."""
        middle = self.switches.shape[-1]
        switches = torch.add(gates[:, :middle], own[:, :middle], out=self.switches[step]).sigmoid_()
        share = self.candidate_shares[step].copy_(own[:, middle:])
        reset, update = switches.chunk(2, -1)
        new = torch.addcmul(gates[:, middle:], reset, share, out=self.candidates[step]).tanh_()
        return torch.lerp(new, before, update, out=self.outputs[step])

    def backward(self, step: int, grad: Tensor, before: Tensor, gates: Tensor, own: Tensor) -> None:
        """From the gradient of an output to those of its gates and shares, into their room; `grad`
        becomes what reaches the state before directly."""
        hidden = before.shape[-1]
        switches, new = self.switches[step], self.candidates[step]
        reset, update = switches.chunk(2, -1)
        fresh = torch.addcmul(grad, grad, update, value=-1)  # (1 − z) ∘ grad
        fresh.addcmul_(fresh * new, new, value=-1)  # … ∘ (1 − n²)
        gates[:, 2 * hidden :] = fresh
        torch.mul(fresh, reset, out=own[:, 2 * hidden :])
        torch.mul(fresh, self.candidate_shares[step], out=gates[:, :hidden])
        torch.mul(grad, before - new, out=gates[:, hidden : 2 * hidden])
        slope = torch.addcmul(switches, switches, switches, value=-1)  # σ (1 − σ)
        gates[:, : 2 * hidden].mul_(slope)
        own[:, : 2 * hidden] = gates[:, : 2 * hidden]
        grad.mul_(update)


class GRUSteps(torch.autograd.Function):
    """Outputs (step, row, hidden) of gates (step, row, 3 × hidden) and a first state."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
        steps = Steps.room(gates)
        before, own = first, torch.empty_like(gates[0])
        turned = weight.mT.contiguous()  # products of few rows are faster with it
        with autocast(gates.device.type, enabled=False):
            for i, now in enumerate(gates.unbind()):
                torch.addmm(bias, before, turned, out=own)
                before = steps.forward(i, now, own, before)
        ctx.save_for_backward(weight, first, *steps)
        return steps.outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, ...]:
        weight, first, *saved = ctx.saved_tensors
        steps = Steps(*saved)
        gates = grads.new_empty(*grads.shape[:2], weight.shape[0])
        own = torch.empty_like(gates)
        grad = torch.zeros_like(first)
        with autocast(gates.device.type, enabled=False):
            for i in reversed(range(len(grads))):
                before = steps.outputs[i - 1] if i else first
                grad += grads[i]
                steps.backward(i, grad, before, gates[i], own[i])
                grad.addmm_(own[i], weight)
            befores = torch.cat([first[None], steps.outputs[:-1]]).flatten(0, 1)
            shares = own.flatten(0, 1)
            return gates, shares.mT @ befores, shares.sum(0), grad
