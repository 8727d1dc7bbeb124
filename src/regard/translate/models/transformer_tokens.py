"""A Transformer's encoder over tokens alone: what is done at every position is not done at padding.

Of a batch of sentences of 8 to 20 tokens, three positions in ten are padding (`Translator` sorts
sentences by length, so that its batches have less). Only the attentions themselves need each
sentence in a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from regard.blocks import (
    ConcatProjection,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    PostNorm,
    PreNorm,
    Residual,
    Stack,
    Sublayer,
)
from regard.contract import State
from regard.kernel.attend import attend
from regard.mechanisms import MultiHead
from regard.translate.models.dropout import Dropout
from regard.translate.models.observed import is_observed
from regard.translate.models.prepared import PreparedLinear
from regard.translate.models.transformer_step import plain_attention, queries_of

_WORTH_IT = 0.1  # the share of padding from which it is tried
#: Modules of an encoder that, attention itself apart, answer each position by itself.
_APART = {
    *(Stack, nn.ModuleList, EncoderBlock, PreNorm, PostNorm, Residual, ConcatProjection),
    *(MultiHead, FeedForward, nn.Linear, PreparedLinear, nn.LayerNorm, nn.RMSNorm, nn.Identity),
    *(nn.Dropout, Dropout, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh),
}


class Packing:
    """The tokens of a batch one behind another, and their way back.

    At padding comes the first token of the same sentence: something finite that nobody looks at,
    and no other sentence's.

    Args:
        mask: (sentence, source), True at tokens.
    """

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        flat = mask.flatten()
        self.places = flat.nonzero()[:, 0]
        numbers = (flat.cumsum(0) - 1).view_as(mask)  # of the tokens, one behind another
        self.numbers = numbers.where(mask, numbers[:, :1]).flatten()
        self.begins_with_padding = not bool(mask[:, :1].all())  # where a sentence does

    @property
    def worth_it(self) -> bool:
        """There is so much padding that it pays, and every sentence begins with a token."""
        padding = self.shape.numel() - len(self.places)
        return not self.begins_with_padding and padding >= _WORTH_IT * self.shape.numel() > 0

    def pack(self, x: Tensor) -> Tensor:
        """(sentence, source, width) to (1, token, width)."""
        return x.flatten(0, 1).index_select(0, self.places)[None]

    def unpack_heads(self, x: Tensor) -> Tensor:
        """(1, head, token, width) to (sentence, head, source, width)."""
        together = x[0].transpose(0, 1).index_select(0, self.numbers)  # (position, head, width)
        return together.view(*self.shape, *together.shape[1:]).transpose(1, 2)


def packs(encoder: Stack, across: Sequence[Sublayer]) -> bool:
    """Plain multi-head attention is all that there is between the positions of a source.

    Every module is one of ours or torch's that answers each position by itself, is not trained, and
    is not observed: hooks, captures and grafts see a batch as it is.

    Args:
        encoder: what reads the source.
        across: the attentions that look at what it answers.
    """
    modules = [
        *encoder.modules(),
        *(module for sublayer in across for module in sublayer.part.modules()),
    ]
    own = [
        module
        for module in modules
        if isinstance(module, Sublayer) and isinstance(module.part, MultiHead)
    ]
    plain = all(plain_attention(sublayer) is not None for sublayer in (*own, *across))
    return plain and all(
        type(module) in _APART and not module.training and not is_observed(module)
        for module in modules
    )


def encode_packed(
    blocks: Sequence[EncoderBlock], x: Tensor, hidden: Tensor, packing: Packing
) -> Tensor:
    """The blocks' answer to (sentence, source, width), as (1, token, width).

    `hidden` is added to the scores: -inf at padding.
    """
    x = packing.pack(x)
    for block in blocks:
        sublayer, attention = block.self_attention, plain_attention(block.self_attention)
        assert attention is not None
        entered = sublayer.enter(x)
        key, value = map(packing.unpack_heads, attention.prepare(entered, entered))
        queries = packing.unpack_heads(queries_of(attention, entered))
        mixed = attend(queries, key, value, bias=hidden).output  # (sentence, head, source, width)
        answer = attention.to_output(packing.pack(mixed.transpose(1, 2).flatten(2)))
        x, _ = block.feed_forward(sublayer.leave(x, answer))
    return x


def memory_of(blocks: Sequence[DecoderBlock], x: Tensor, packing: Packing) -> tuple[State, ...]:
    """Keys and values of every cross-attention, of the packed answer of the encoder."""
    fixed = [block.cross_attention.mechanism.fix(x) for block in blocks]
    return tuple(
        State(packing.unpack_heads(state.key), packing.unpack_heads(state.value), growing=False)
        for state in fixed
    )
