"""The steps of a GRU whose previous state looks by additive attention, with gradient by hand.

One function for the whole loop: the state's products (gates and query) are one product a step, the
gradients of all matrices are one product each when the loop is done, and tanh(query + key) is made
again in the backward pass instead of being kept for every step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, autocast
from torch.autograd.function import once_differentiable

from regard.mechanisms import Additive
from regard.translate.models.contract import EncoderOutput
from regard.translate.models.decoders import DecoderStep, PreviousState
from regard.translate.models.gru_steps import Steps
from regard.translate.models.observed import is_observed


class AdditiveSteps(torch.autograd.Function):
    """Outputs, contexts and weights, (step, row, …) each, of a whole target.

    | argument | shape                        | meaning                                        |
    |----------|------------------------------|------------------------------------------------|
    | `gates`  | (step, row, 3 × hidden)      | the inputs' share of the gates                 |
    | `state`  | (3 × hidden + width, hidden) | the state's products: gates, then query Wₐ     |
    | `bias`   | (3 × hidden + width,)        | of these products                              |
    | `mixed`  | (3 × hidden, context)        | the context's share of the gates               |
    | `vector` | (width,)                     | vₐ                                             |
    | `keys`   | (row, source, width)         | Uₐ h                                           |
    | `values` | (row, source, context)       | h                                              |
    | `mask`   | (row, source)                | True at tokens                                 |
    | `first`  | (row, hidden)                | the first state                                |
    """

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        state: Tensor,
        bias: Tensor,
        mixed: Tensor,
        vector: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        first: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = Steps.room(gates)
        length, rows, wide = gates.shape
        contexts = values.new_empty(length, rows, values.shape[-1])
        weights = values.new_empty(length, rows, values.shape[1])
        queries = keys.new_empty(length, rows, keys.shape[-1])
        somewhere = mask.any(-1, keepdim=True)  # a row without a token attends to nothing
        before, padding = first, somewhere & ~mask
        own = gates.new_empty(rows, state.shape[0])
        entry, tanhs = torch.empty_like(gates[0]), torch.empty_like(keys)
        of_state, of_context = state.mT.contiguous(), mixed.mT.contiguous()  # faster for few rows
        with autocast(gates.device.type, enabled=False):
            for i, now in enumerate(gates.unbind()):
                torch.addmm(bias, before, of_state, out=own)
                queries[i] = own[:, wide:]
                torch.add(keys, queries[i][:, None], out=tanhs).tanh_()
                scores = (tanhs @ vector).masked_fill_(padding, -torch.inf)
                torch.softmax(scores, -1, out=weights[i]).mul_(somewhere)
                torch.bmm(weights[i][:, None], values, out=contexts[i][:, None])
                torch.addmm(now, contexts[i], of_context, out=entry)
                before = steps.forward(i, entry, own[:, :wide], before)
        ctx.save_for_backward(
            state, mixed, vector, keys, values, first, contexts, weights, queries, *steps
        )
        return steps.outputs, contexts, weights

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grads: Tensor, context_grads: Tensor, weight_grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        state, mixed, vector, keys, values, first, contexts, weights, queries, *saved = (
            ctx.saved_tensors
        )
        steps = Steps(*saved)
        wide = mixed.shape[0]
        gates = grads.new_empty(*grads.shape[:2], wide)
        own = grads.new_empty(*grads.shape[:2], state.shape[0])
        to_contexts = torch.empty_like(contexts)
        key_grad, vector_grad = torch.zeros_like(keys), torch.zeros_like(vector)
        grad, tanhs = torch.zeros_like(first), torch.empty_like(keys)
        with autocast(grads.device.type, enabled=False):
            for i in reversed(range(len(grads))):
                before = steps.outputs[i - 1] if i else first
                grad += grads[i]
                steps.backward(i, grad, before, gates[i], own[i][:, :wide])
                torch.addmm(context_grads[i], gates[i], mixed, out=to_contexts[i])
                to_weights = torch.bmm(values, to_contexts[i][..., None])[..., 0] + weight_grads[i]
                to_weights -= (weights[i] * to_weights).sum(-1, keepdim=True)
                to_scores = to_weights.mul_(weights[i])  # (row, source)
                torch.add(keys, queries[i][:, None], out=tanhs).tanh_()
                vector_grad.addmv_(tanhs.flatten(0, 1).mT, to_scores.flatten())
                tanhs.square_().neg_().add_(1).mul_(to_scores[..., None])
                key_grad += tanhs
                torch.mul(tanhs.sum(1), vector, out=own[i][:, wide:])
                grad.addmm_(own[i], state)
            key_grad *= vector
            befores = torch.cat([first[None], steps.outputs[:-1]]).flatten(0, 1)
            shares, entries = own.flatten(0, 1), gates.flatten(0, 1)
            value_grad = torch.bmm(weights.permute(1, 2, 0), to_contexts.transpose(0, 1))
            return (
                gates,
                shares.mT @ befores,
                shares.sum(0),
                entries.mT @ contexts.flatten(0, 1),
                vector_grad,
                key_grad,
                value_grad,
                None,
                grad,
            )


class AdditiveGRU(PreviousState):
    """`PreviousState` for additive attention and GRU cells, wired as Bahdanau's: the same numbers,
    with all steps of the layer that looks in one function.

    If a module of that layer is observed (hooks, a capture, a graft), it goes step by step, so that
    every call is seen.
    """

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        cell, additive, fixed = self.cells.layers[0], self.look.mechanism, encoded.memory["look"]
        if any(map(is_observed, (*cell.modules(), *self.look.modules()))):
            return super().over(encoded, embedded, weights=weights)
        assert isinstance(additive, Additive)
        of_embedded, of_context = cell.from_input.weight.split(
            [embedded.shape[-1], self.look.width], -1
        )
        gates = F.linear(embedded, of_embedded, cell.from_input.bias)
        of_state = torch.cat([cell.from_state.weight, additive.to_query.weight])
        bias = F.pad(cell.from_state.bias, (0, len(additive.vector)))
        dtype = of_state.dtype  # autocast makes some of these half
        results = AdditiveSteps.apply(  # type: ignore[no-untyped-call]
            gates.to(dtype).transpose(0, 1),
            of_state,
            bias,
            of_context,
            additive.vector,
            fixed.key[:, 0].to(dtype),
            fixed.value[:, 0].to(dtype),
            encoded.mask,
            encoded.memory["start"][0][0].to(dtype),
        )
        looked, contexts, matrix = (tensor.transpose(0, 1) for tensor in results)
        output = self.cells.over(looked, encoded.memory["start"], start=1)
        features = self.readout(*self.wiring.parts(output, embedded, contexts))
        return DecoderStep(features, None, matrix[:, None] if weights else None)
