"""Attention flow: how much can pass from a position of the last layer down to each input.

The layers are a network of pipes, as wide as Ã = s·I + (1 − s)·A, and the flow to an input is the
most that fits through all of them together (Abnar and Zuidema, 2020). Unlike a rollout it never
multiplies: what is wide in every layer stays wide, however many layers there are.

>>> import torch, regard
>>> low = torch.tensor([[0.8, 0.2], [0.4, 0.6]])[None, None]
>>> high = torch.tensor([[0.5, 0.5], [0.1, 0.9]])[None, None]
>>> regard.attention_flow([low, high])
tensor([[[0.9500, 0.3500],
         [0.2500, 0.8500]]])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.aggregate.combine_heads import Fusion, check_weighting
from regard.aggregate.layers.rollout import mixed_map
from regard.aggregate.sources import outside_graph_and_autocast, single, stack_of, token_positions
from regard.errors import MissingExtraError, RegardError
from regard.progress import progress

_UNIT = 2**30  # the library counts in whole numbers: widths in half of 2⁻³⁰ look the same to it
_LONG = 1 << 24  # pipes times questions from which a bar is worth while: some seconds


@outside_graph_and_autocast
def attention_flow(
    attention: Any,
    token: int | Sequence[int] | None = None,
    *,
    residual: float = 0.5,
    heads: Fusion = "mean",
    inputs: int | Sequence[int] | None = None,
    part: str | None = None,
    axes: str | None = None,
) -> Tensor:
    """The maximum flow from `token` in the last layer to each input position.

    Needs the extra `flow` (scipy). Every layer's map is made, and each pair of an output and an
    input is a maximum flow of its own through all of them, so ask for one token, or keep the
    sequence short: the time grows with about the fourth power of its length when all are asked.

    Args:
        attention: a Trace, or a list of tensors (batch, head, query, key), lowest layer first.
        token: position or positions of the last layer; -1 is the last one, None means all.
        residual: share of the residual stream, from 0 to below 1.
        heads: how heads are joined: "mean", "max", "min", a number, or a weighting.
        inputs: positions whose flow together is asked, as the pieces of one word; every input by
            itself when None. It is at most the sum of their single flows, and often less.
        part: of an encoder–decoder model, "encoder" or "decoder".
        axes: the order of a tensor's axes, as "layer batch head query key".

    Returns:
        (batch, key) for one token, (batch, token, key) for several, (batch, query, key) for all;
        without the last axis when `inputs` are given. From 0 to 1, right to about 1e-9; rows do
        not sum to 1.
    """
    if not 0.0 <= residual < 1.0:
        raise RegardError(f"flow: residual={residual}, expected from 0 to below 1")
    if heads == "concat":
        raise RegardError("flow: heads='concat' gives no single map; expected 'mean' or another")
    layers = stack_of(attention, part=part, axes=axes)
    length = layers[0].recipe.shape.queries
    outputs = token_positions(token, length)
    outputs = list(range(length)) if outputs is None else outputs
    together = None if inputs is None else _together(inputs, length)
    check_weighting(heads, len(layers))
    widths = [mixed_map(layer, residual, heads, number) for number, layer in enumerate(layers)]
    flows = _flows(widths, outputs, together).to(widths[0])  # (batch, token, target)
    flows = flows[:, 0] if single(token) else flows
    return flows if together is None else flows[..., 0]


def _together(inputs: int | Sequence[int], length: int) -> list[int]:
    """The inputs whose flow is asked as one, from 0, each once."""
    positions = [inputs] if isinstance(inputs, int) else list(inputs)
    if not positions:
        raise RegardError("flow: inputs=[] asks for nothing")
    for position in positions:
        if not isinstance(position, int) or not -length <= position < length:
            raise RegardError(
                f"flow: inputs has {position!r}, expected whole numbers from {-length} to "
                f"{length - 1}"
            )
    return sorted({position % length for position in positions})


def _flows(widths: list[Tensor], outputs: list[int], together: list[int] | None) -> Tensor:
    """Maximum flows, (batch, token, target): to each input, or to some of them as one target."""
    batch, length, _ = widths[0].shape
    targets = length if together is None else 1
    flows = torch.zeros(batch, len(outputs), targets, dtype=torch.float64)
    jobs = [(example, row) for example in range(batch) for row in range(len(outputs))]
    network: _Network | None = None
    short = len(widths) * length * length * len(jobs) * targets < _LONG
    with progress("attention flow", len(jobs), False if short else None) as step:
        for example, row in jobs:
            if network is None or network.example != example:
                network = _Network([width[example] for width in widths], together, example)
            for target in range(targets):
                flows[example, row, target] = network.flow(outputs[row], target)
            step()
    return flows


class _Network:
    """The pipes of one example: position j after layer l is node l · length + j."""

    def __init__(self, widths: list[Tensor], together: list[int] | None, example: int) -> None:
        try:
            from scipy.sparse import csr_array
        except ImportError as error:
            raise MissingExtraError("scipy", "flow") from error
        self.example = example
        length, depth = widths[0].shape[0], len(widths)
        self.top, drain = depth * length, (depth + 1) * length
        self.first = 0 if together is None else drain  # the node of the first target
        ends, sizes = [], []
        for level, width in enumerate(widths):
            width = width.to("cpu", torch.float64)
            upper, lower = width.nonzero().unbind(1)
            ends.append(torch.stack([upper + (level + 1) * length, lower + level * length], 1))
            sizes.append(width[upper, lower])
        if together is not None:  # no output gives more than 1: a drain of 2 holds nothing back
            inputs = torch.tensor(together)
            ends.append(torch.stack([inputs, torch.full_like(inputs, drain)], 1))
            sizes.append(torch.full([len(together)], 2.0, dtype=torch.float64))
        self.sizes = torch.cat(sizes)
        self.upper, self.lower = torch.cat(ends).unbind(1)
        pipes = self.sizes.mul(_UNIT).round().clamp_max(2**31 - 1).to(torch.int32)
        indices = (self.upper.numpy(), self.lower.numpy())
        self.graph = csr_array((pipes.numpy(), indices), shape=(drain + 1, drain + 1))

    def flow(self, output: int, target: int) -> float:
        """The most that passes from an output to a target: the widths of the narrowest cut.

        The library finds the cut in whole numbers; its widths are then added up as they are.
        """
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        source = self.top + output
        left = self.graph - maximum_flow(self.graph, source, self.first + target).flow
        left.data = (left.data > 0).astype("int8")
        left.eliminate_zeros()
        above = torch.zeros(left.shape[0], dtype=torch.bool)
        above[
            torch.from_numpy(breadth_first_order(left, source, return_predecessors=False)).long()
        ] = True
        return float(self.sizes[above[self.upper] & ~above[self.lower]].sum())
