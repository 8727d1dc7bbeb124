"""For each law of blocks, a block that breaks it on purpose."""

from dataclasses import replace

import torch
from torch import nn

from regard.blocks import (
    BlockOutput,
    ConcatProjection,
    CrossBlock,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    PreNorm,
    Residual,
)
from regard.blocks.sets import LearnedQueries, Pooling
from regard.errors import DtypeError
from regard.mechanisms import MultiHead


class Encoder(EncoderBlock):
    def __init__(self):
        super().__init__(
            PreNorm(16, MultiHead(16, 4, dropout=0.5), join=Residual(0.5)),
            PreNorm(16, FeedForward(16)),
        )


class Decoder(DecoderBlock):
    def __init__(self):
        super().__init__(
            PreNorm(16, MultiHead(16, 4)),
            PreNorm(16, MultiHead(16, 4), join=ConcatProjection(16)),
            PreNorm(16, FeedForward(16)),
        )


def changed(blocked, change):
    """The same with other weights returned."""
    attentions = {
        name: replace(a, weights=None if a.weights is None else change(a.weights))
        for name, a in blocked.attentions.items()
    }
    return replace(blocked, attentions=attentions)


class NoHeadAxis(Encoder):
    def forward(self, *inputs, **options):
        return changed(super().forward(*inputs, **options), lambda weights: weights[:, 0])


class WeightsOfAnotherMatrix(Encoder):
    def forward(self, *inputs, **options):
        return changed(super().forward(*inputs, **options), lambda weights: weights.flip(-1))


class WeightsAfterDropout(Encoder):
    def forward(self, *inputs, **options):
        def drop(weights):
            return nn.functional.dropout(weights, 0.5, self.training)

        return changed(super().forward(*inputs, **options), drop)


class DetachedWeights(Encoder):
    def forward(self, *inputs, **options):
        return changed(super().forward(*inputs, **options), torch.Tensor.detach)


class SpreadsOverNothing(Encoder):
    """What a softmax over a row of finfo.min gives."""

    def forward(self, *inputs, **options):
        def spread(weights):
            return weights.where(weights.sum(-1, keepdim=True) > 0, 1 / weights.shape[-1])

        return changed(super().forward(*inputs, **options), spread)


class SlowPathWhenAsked(Encoder):
    def forward(self, *inputs, weights=False, **options):
        blocked = super().forward(*inputs, weights=weights, **options)
        return replace(blocked, output=blocked.output * (1 + 1e-6)) if weights else blocked


class AlwaysFloat32(Encoder):
    def forward(self, *inputs, **options):
        blocked = super().forward(*inputs, **options)
        return replace(blocked, output=blocked.output.float())


class IgnoresMask(Encoder):
    """The mask argument that is accepted and never applied."""

    def forward(self, *inputs, mask=None, **options):
        return super().forward(*inputs, **options)


class IgnoresContextMask(Decoder):
    def forward(self, *inputs, context_mask=None, **options):
        return super().forward(*inputs, **options)


class CarriesPaddingOn(Encoder):
    """Leaves padding to the attention; norm and residual see its NaN."""

    def forward(self, x, *, mask=None, causal=None, state=None, weights=False):
        x, attended = self.self_attention(x, mask=mask, causal=bool(causal), weights=weights)
        x, _ = self.feed_forward(x)
        return BlockOutput(x.nan_to_num(), {"self": attended})


class LooksAtAllContext(Decoder):
    def forward(self, x, context=None, **options):
        blocked = super().forward(x, context, **options)
        return replace(blocked, output=blocked.output + 0.0 * context.mean())


class IgnoresCausal(Encoder):
    def forward(self, *inputs, causal=None, **options):
        return super().forward(*inputs, **options)


class TakesCausalAsHint(Encoder):
    def forward(self, *inputs, mask=None, causal=None, **options):
        return super().forward(*inputs, mask=mask, causal=causal and mask is None, **options)


class NeedsSomePositions(Encoder):
    def forward(self, x, *inputs, **options):
        x.amax(1)
        return super().forward(x, *inputs, **options)


class ForgetsThePast(Encoder):
    def forward(self, *inputs, state=None, mask=None, **options):
        return super().forward(*inputs, state=True if state else None, **options)


class HidesItsState(Encoder):
    """A state in an object that nobody can look into."""

    class Hidden:
        def __init__(self, state):
            self.state = state

    def forward(self, *inputs, state=None, **options):
        state = state.state if isinstance(state, self.Hidden) else state
        blocked = super().forward(*inputs, state=state, **options)
        return replace(blocked, state=self.Hidden(blocked.state) if blocked.state else None)


class HidesAParameter(Encoder):
    def __init__(self):
        super().__init__()
        self.hidden = [torch.randn(16, dtype=torch.float64)]

    def forward(self, x, *inputs, **options):
        return super().forward(x * self.hidden[0].to(x.dtype), *inputs, **options)


class CannotBePickled(Encoder):
    def __init__(self):
        super().__init__()
        self.helper = lambda tensor: tensor


class DrawsRandomNumbers(Encoder):
    def forward(self, *inputs, **options):
        torch.rand(1)
        return super().forward(*inputs, **options)


class InsistsOnItsDtype(Encoder):
    def forward(self, x, *inputs, **options):
        dtype = self.feed_forward.part.widen.weight.dtype
        if x.is_floating_point() and x.dtype != dtype:
            raise DtypeError(f"x is {x.dtype}, expected {dtype}")
        return super().forward(x, *inputs, **options)


class ForgetsGradientsCompiled(Encoder):
    """The same numbers in a graph, but the first attention learns nothing there."""

    def forward(self, x, *inputs, **options):
        blocked = super().forward(x, *inputs, **options)
        if not torch.compiler.is_compiling():
            return blocked
        return changed(blocked, torch.Tensor.detach)


class LooksAtNumbers(Encoder):
    """A branch on data cannot be compiled or exported."""

    def forward(self, x, *inputs, **options):
        if float(x.sum()) > 1e9:
            x = x * 2
        return super().forward(x, *inputs, **options)


class FreezesLengths(Encoder):
    def forward(self, x, *inputs, **options):
        return super().forward(x + torch.zeros(5, 1), *inputs, **options)


class BareErrors(Decoder):
    def forward(self, *inputs, **options):
        try:
            return super().forward(*inputs, **options)
        except Exception:
            raise ValueError("invalid input") from None


class ReducesAnotherMatrix(Encoder):
    def forward(self, *inputs, **options):
        blocked = super().forward(*inputs, **options)
        attentions = {
            name: replace(a, reductions=tuple(answer.flip(-1) for answer in a.reductions))
            for name, a in blocked.attentions.items()
        }
        return replace(blocked, attentions=attentions)


class PoolsTheFirst(Pooling):
    """A set whose first member is more than the others."""

    def __init__(self):
        attention, feed_forward = PreNorm(16, MultiHead(16, 4)), PreNorm(16, FeedForward(16))
        super().__init__(LearnedQueries(3, 16), CrossBlock(attention, feed_forward))

    def forward(self, x, **options):
        blocked = super().forward(x, **options)
        return replace(blocked, output=blocked.output + x[:, :1])


BROKEN = {
    "reductions": ReducesAnotherMatrix,
    "permutation": PoolsTheFirst,
    "shapes": NoHeadAxis,
    "asking_changes_nothing": SlowPathWhenAsked,
    "weights_of_the_output": WeightsOfAnotherMatrix,
    "weights_before_dropout": WeightsAfterDropout,
    "dtypes": AlwaysFloat32,
    "autocast": InsistsOnItsDtype,
    "mask_is_applied": IgnoresMask,
    "context_mask_is_applied": IgnoresContextMask,
    "padding": CarriesPaddingOn,
    "context_padding": LooksAtAllContext,
    "causality": IgnoresCausal,
    "causal_and_mask": TakesCausalAsHint,
    "masked_rows": SpreadsOverNothing,
    "empty": NeedsSomePositions,
    "step_by_step": ForgetsThePast,
    "state_is_a_pytree": HidesItsState,
    "gradients": DetachedWeights,
    "state_dict": HidesAParameter,
    "copies": CannotBePickled,
    "leaves_no_trace": DrawsRandomNumbers,
    "wrong_shapes": BareErrors,
    "wrong_masks": BareErrors,
    "wrong_dtypes": BareErrors,
    "wrong_context": BareErrors,
    "wrong_state": BareErrors,
    "compiles": LooksAtNumbers,
    "exports": FreezesLengths,
}
