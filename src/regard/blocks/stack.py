"""A stack of blocks, each used once or shared by several layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.blocks.attention_block import AttentionBlock
from regard.blocks.inputs import default_causal, refuse_context
from regard.contract import BlockOutput
from regard.errors import RegardError, StateError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask


class Stack(AttentionBlock):
    """Blocks one after another; a block itself.

    Every layer has its own state and its own attentions, `0.self`, `0.cross`, `1.self` …, also
    where several layers share one block and its parameters (Dehghani et al. 2018; groups of layers:
    Lan et al. 2019). All layers attend to the same context, and all are causal by default where one
    of the blocks is.

    Args:
        blocks: the blocks, each once.
        order: which block each layer is; every block once in turn when None. `[0] * 6` is one block
            six times, `[0, 0, 1, 1]` two groups of two layers.
        norm: a module on the output, as pre-norm blocks need; none by default.

    >>> import torch
    >>> from regard.blocks import EncoderBlock, FeedForward, PreNorm, Stack
    >>> from regard.mechanisms import MultiHead
    >>> block = EncoderBlock(PreNorm(16, MultiHead(16, 4)), PreNorm(16, FeedForward(16)))
    >>> stack = Stack([block], order=[0, 0, 0])
    >>> list(stack(torch.randn(2, 5, 16)).attentions)
    ['0.self', '1.self', '2.self']
    """

    def __init__(
        self,
        blocks: Sequence[AttentionBlock],
        *,
        order: Sequence[int] | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        for index, block in enumerate(blocks):
            if not isinstance(block, AttentionBlock):
                raise RegardError(
                    f"Stack: blocks[{index}] is {type(block).__name__}, expected an AttentionBlock"
                )
        if len({id(block) for block in blocks}) < len(blocks):
            raise RegardError(
                "Stack: a block is listed twice; list it once and share it by "
                f"order=, as Stack([block], order=[0] * {len(blocks)})"
            )
        self.order = tuple(range(len(blocks)) if order is None else order)
        if set(self.order) != set(range(len(blocks))) or not blocks:
            raise RegardError(
                f"Stack: order={list(self.order)}, expected numbers of {len(blocks)} blocks, each "
                "at least once"
            )
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity() if norm is None else norm
        self.causal = any(block.causal for block in blocks)
        self.needs_context = any(block.needs_context for block in blocks)
        self.attends_itself = any(block.attends_itself for block in blocks)

    @property
    def layers(self) -> list[AttentionBlock]:
        """The block of each layer."""
        return [self.blocks[index] for index in self.order]  # type: ignore[misc]

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        causal: bool | None = None,
        state: Any = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """Attentions of all layers by number and name; see `AttentionBlock.forward`."""
        if not self.needs_context:
            refuse_context(self, context, context_mask)
        causal = default_causal(self, causal, state)
        attentions, states = {}, []
        for layer, (block, past) in enumerate(zip(self.layers, self._states(state))):
            cross = {"context": context, "context_mask": context_mask}
            blocked = block(
                x,
                **(cross if block.needs_context else {}),
                mask=mask,
                causal=causal,
                state=past,
                weights=weights,
                reduce=reduce,
            )
            x = blocked.output
            states.append(blocked.state)
            attentions.update({f"{layer}.{name}": a for name, a in blocked.attentions.items()})
        after = None if state is None or state is False else tuple(states)
        return BlockOutput(self.norm(x), attentions, after)

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"order={list(self.order)}"

    def _states(self, state: Any) -> Sequence[Any]:
        """The state of each layer."""
        if state is None or isinstance(state, bool):
            return [state] * len(self.order)
        if not isinstance(state, tuple) or len(state) != len(self.order):
            size = f" of {len(state)}" if isinstance(state, tuple) else ""
            raise StateError(
                f"Stack: state is {type(state).__name__}{size}, expected the .state of this "
                f"stack's last call, a tuple of {len(self.order)}, or True to start one"
            )
        return state
