"""Every block, built in each of its forms. A class without an entry here fails the suite."""

import warnings

from torch import nn

from regard.blocks import (
    ConcatProjection,
    CrossBlock,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    NearIdentityWarning,
    ParallelBlock,
    PostNorm,
    PreNorm,
    Residual,
    Stack,
    sas_block,
    sas_p_block,
)
from regard.blocks.sets import InducedBlock, LearnedQueries, Perceiver, Pooling
from regard.mechanisms import (
    Additive,
    Alibi,
    DeltaRule,
    DotProduct,
    GatedDecay,
    GeneralScore,
    Heads,
    LinearAttention,
    Luong,
    MultiHead,
    Rotary,
    Scoring,
)


def feed_forward(wrap):
    return wrap(16, FeedForward(16, 24, dropout=0.5), join=Residual(0.5))


def encoder(wrap=PreNorm, attention=None):
    attention = MultiHead(16, 4, dropout=0.5) if attention is None else attention
    return EncoderBlock(wrap(16, attention, join=Residual(0.5)), feed_forward(wrap))


def decoder(wrap=PreNorm, attention=None, cross=None, join=None):
    attention = MultiHead(16, 4, dropout=0.5) if attention is None else attention
    cross = MultiHead(16, 2, dropout=0.5) if cross is None else cross
    join = Residual(0.5) if join is None else join
    return DecoderBlock(wrap(16, attention), wrap(16, cross, join=join), feed_forward(wrap))


def unprojected(build, *parts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NearIdentityWarning)
        return build(PreNorm, *parts)


def additive():
    joined = ConcatProjection(16, 6, activation=nn.Tanh(), dropout=0.5)
    return decoder(PreNorm, None, Additive(16, 6, width=8, dropout=0.5), joined)


def general():
    return decoder(PostNorm, None, Luong(GeneralScore(16, 6)), ConcatProjection(16, 6))


def positions():
    attention = MultiHead(
        *(16, Heads(4, n_groups=2)),
        position=Rotary(),
        window=(3, 3),
        scoring=Scoring(sinks=True),
    )
    return decoder(PreNorm, attention, MultiHead(16, 4, inputs=(6, 6)))


def cross():
    attention = PostNorm(16, MultiHead(16, 2, dropout=0.5), join=Residual(0.5))
    return CrossBlock(attention, feed_forward(PostNorm))


def normed_cross():
    attention = PreNorm(16, MultiHead(16, 1, inputs=(6, 6), dropout=0.5))
    return CrossBlock(attention, feed_forward(PreNorm), context_norm=nn.LayerNorm(6))


def parallel():
    return ParallelBlock(16, MultiHead(16, 4, dropout=0.5), FeedForward(16, 24, dropout=0.5))


def simplified(block=sas_block, **options):
    """With layer norms: of RMS norms under autocast torch warns."""
    return block(16, 4, norm=nn.LayerNorm, **options)


def simplified_stack():
    return Stack([simplified(values=True, dropout=0.5), simplified()])


def pooling():
    return Pooling(LearnedQueries(3, 16), cross(), feed_forward=FeedForward(16))


def induced():
    return InducedBlock(LearnedQueries(3, 16), cross(), cross())


def perceiver():
    return Perceiver(16, 8, 3, n_repeats=3, n_layers=1, n_heads=2, dropout=0.5)


#: name -> (build, sizes)
MEMBERS = {
    "encoder_pre_norm": (encoder, {}),
    "encoder_post_norm": (lambda: encoder(PostNorm), {}),
    "encoder_unprojected": (lambda: unprojected(encoder, DotProduct(dropout=0.5)), {}),
    "encoder_linear": (lambda: encoder(PreNorm, LinearAttention(16, 4)), {}),
    "decoder_delta": (lambda: decoder(PreNorm, DeltaRule(16, 4, decay=GatedDecay(16, 4))), {}),
    "encoder_alibi": (lambda: encoder(PreNorm, MultiHead(16, 4, position=Alibi(4))), {}),
    "decoder_pre_norm": (decoder, {}),
    "decoder_post_norm": (lambda: decoder(PostNorm), {}),
    "decoder_additive_concatenated": (additive, {"context_width": 6}),
    "decoder_general_concatenated": (general, {"context_width": 6}),
    "decoder_unprojected": (lambda: unprojected(decoder, DotProduct(), DotProduct()), {}),
    "decoder_positions": (positions, {"context_width": 6}),
    "stack_shared": (lambda: Stack([encoder()], order=[0] * 2, norm=nn.LayerNorm(16)), {}),
    "stack_groups": (lambda: Stack([decoder(), decoder(PostNorm)], order=[0, 0, 1]), {}),
    "stack_concatenated": (
        lambda: Stack([additive(), additive()]),
        {"context_width": 6},
    ),
    "stack_mixed": (lambda: Stack([encoder(), additive()]), {"context_width": 6}),
    "stack_crossed": (lambda: Stack([normed_cross(), encoder()]), {"context_width": 6}),
    "cross": (normed_cross, {"context_width": 6}),
    "parallel": (parallel, {}),
    "simplified": (simplified_stack, {}),
    "simplified_parallel": (lambda: simplified(sas_p_block, dropout=0.5), {}),
    "pooling": (pooling, {}),
    "induced": (induced, {}),
    "perceiver": (perceiver, {}),
}

_NO_CONTEXT = ("context_mask_is_applied", "context_padding")
_NO_SELF = ("mask_is_applied", "causality", "causal_and_mask")
_NO_STATE = ("step_by_step", "state_is_a_pytree", "wrong_state")
_SET = (*_NO_CONTEXT, *_NO_SELF, *_NO_STATE, "wrong_context")
_ORDER = ("permutation",)

_NO_SCORES = ("mask_is_applied", "masked_rows", "weights_of_the_output")  # a memory instead

#: Laws that cannot be seen on a member. One that becomes visible, or stops being so, fails.
NOT_SEEN = dict.fromkeys(MEMBERS, _ORDER) | {
    "encoder_pre_norm": _ORDER + _NO_CONTEXT,
    "encoder_post_norm": _ORDER + _NO_CONTEXT,
    "encoder_unprojected": _ORDER + _NO_CONTEXT,
    "encoder_linear": _ORDER + _NO_CONTEXT + _NO_SCORES,
    "decoder_delta": _ORDER + _NO_SCORES,
    "encoder_alibi": _ORDER + _NO_CONTEXT,
    "stack_shared": _ORDER + _NO_CONTEXT,
    "parallel": _ORDER + _NO_CONTEXT,
    "simplified": (*_ORDER, *_NO_CONTEXT, "weights_of_the_output"),
    "simplified_parallel": (*_ORDER, *_NO_CONTEXT, "weights_of_the_output"),
    "cross": _ORDER + _NO_SELF,
    "pooling": _SET,
    "induced": _SET,
    "perceiver": _SET,
}
