"""For each law of the contract, a mechanism that breaks it on purpose."""

from dataclasses import fields, replace

import torch
from torch import nn

from regard.contract import Attended, State, Traits
from regard.kernel import dense
from regard.mechanisms import (
    Coverage,
    DotProduct,
    Hard,
    LinearAttention,
    MultiHead,
    MultiHeadLatent,
    Pointer,
)


class NoHeadAxis(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(
            attended, weights=None if attended.weights is None else attended.weights[:, 0]
        )


class NotNormalised(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(attended, weights=attended.weights * 1.1)


class WeightsOfAnotherMatrix(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(attended, weights=attended.weights.flip(-1))


class SlowPathWhenAsked(DotProduct):
    """What torch's own module does: another path, another answer, when weights are asked."""

    def forward(self, query, key=None, value=None, **options):
        attended = super().forward(query, key, value, **options)
        if not options.get("weights"):
            return attended
        output, _ = dense.attention(query.double(), key.double(), value.double())
        return replace(attended, output=output.to(query.dtype))


class ReductionsSwapped(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(attended, reductions=attended.reductions[::-1])


class IgnoresBias(DotProduct):
    def forward(self, *inputs, bias=None, **options):
        return super().forward(*inputs, **options)


class KnowsPlaces(DotProduct):
    def forward(self, query, key=None, value=None, **options):
        ramp = torch.linspace(0, 1, key.shape[1], dtype=key.dtype)[:, None]
        return super().forward(query, key + ramp, value, **options)


class AlwaysFloat32(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*[tensor.float() for tensor in inputs], **options)
        return replace(attended, output=attended.output.float())


class IgnoresMask(DotProduct):
    def forward(self, *inputs, mask=None, **options):
        return super().forward(*inputs, **options)


class TakesCausalAsHint(DotProduct):
    """Causal is dropped when a mask is there, a mistake of several libraries."""

    def forward(self, *inputs, mask=None, causal=False, **options):
        return super().forward(*inputs, mask=mask, causal=causal and mask is None, **options)


class IgnoresCausal(DotProduct):
    def forward(self, *inputs, causal=False, **options):
        return super().forward(*inputs, **options)


class MultipliesPadding(DotProduct):
    """Zeroes by a product, so that NaN stays NaN."""

    def forward(self, query, key=None, value=None, **options):
        attended = super().forward(query, key, value, **options)
        kept = query if value is None else value
        return replace(attended, output=attended.output + 0.0 * kept.mean(1, keepdim=True))


class BiasSpeaksForNobody(MultiHead):
    def _silenced(self, output, recipe):
        return output


class NeedsSomeKeys(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        attended.output.amax(1)
        return attended


class WeightsAfterDropout(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(
            attended, weights=nn.functional.dropout(attended.weights, 0.5, self.training)
        )


class DetachedWeights(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(attended, weights=attended.weights.detach())


class HidesAParameter(MultiHead):
    def __init__(self):
        super().__init__(16, 4)
        self.hidden = [torch.randn(16, 16, dtype=torch.float64)]

    def forward(self, query, *inputs, **options):
        return super().forward(query @ self.hidden[0].to(query.dtype), *inputs, **options)


class CannotBePickled(DotProduct):
    def __init__(self):
        super().__init__()
        self.helper = lambda tensor: tensor


class DrawsRandomNumbers(DotProduct):
    def forward(self, *inputs, **options):
        torch.rand(1)
        return super().forward(*inputs, **options)


class ForgetsOldKeys(DotProduct):
    def forward(self, *inputs, state=None, **options):
        return super().forward(*inputs, state=True if state else None, **options)


class ForgetsToFix(DotProduct):
    def fix(self, key, value=None):
        state = super().fix(key, value)
        return replace(state, key=state.key * 1.01)


class LooksAtNumbers(DotProduct):
    """A branch on data cannot be compiled or exported."""

    def forward(self, query, *inputs, **options):
        if float(query.sum()) > 1e9:
            query = query * 2
        return super().forward(query, *inputs, **options)


class FreezesLengths(DotProduct):
    def forward(self, query, *inputs, **options):
        return super().forward(
            query[:, : int(query.shape[1])] + torch.zeros(5, 1), *inputs, **options
        )


class BareErrors(DotProduct):
    def forward(self, *inputs, **options):
        try:
            return super().forward(*inputs, **options)
        except Exception:
            raise ValueError("invalid input") from None


class WeightsOfAnotherScale(DotProduct):
    """Weights, recipe and reductions agree, but the output was made with another scale."""

    def forward(self, *inputs, **options):
        plain = {name: options[name] for name in options if name not in ("weights", "reduce")}
        output = DotProduct(scale=1.0)(*inputs, **plain).output
        return replace(super().forward(*inputs, **options), output=output)


class ScaledSelfAttention(nn.Module):
    """Attends to itself alone, with another scale than that of the weights it returns."""

    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, query, *, weights=False):
        scores = self.query(query) @ query.mT
        output = (1.5 * scores).softmax(-1) @ self.value(query)
        return Attended(output, scores.softmax(-1)[:, None] if weights else None)


class ScaledLatent(MultiHeadLatent):
    """Values are made from the keys; weights and recipe have another scale than the output."""

    def __init__(self):
        super().__init__(16, 4, latent_width=6)

    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        if attended.recipe is None:
            return attended
        recipe = replace(attended.recipe, scale=1.3 * attended.recipe.scale, lse=None)
        return replace(attended, weights=recipe.weights(), recipe=recipe)


class MixesExamples(DotProduct):
    def forward(self, *inputs, **options):
        attended = super().forward(*inputs, **options)
        return replace(attended, output=attended.output + 0.1 * attended.output.mean(0))


class DecaysInPlace(DotProduct):
    """Old values fade; the state that the caller still holds fades too."""

    def forward(self, *inputs, state=None, **options):
        attended = super().forward(*inputs, state=state, **options)
        if isinstance(state, State):
            state.value.mul_(0.9)
        return attended


class GrowsInPlace(DotProduct):
    """One state object, into which each call writes its keys."""

    def forward(self, *inputs, state=None, **options):
        attended = super().forward(*inputs, state=state, **options)
        if not isinstance(state, State):
            return attended
        for field in fields(State):
            object.__setattr__(state, field.name, getattr(attended.state, field.name))
        return replace(attended, state=state)


class DeclaresAnotherKind(MultiHead):
    """Its rows sum to at most 1, as declared, but those of its recipe to 1."""

    def __init__(self):
        super().__init__(16, 4)
        self.kind = "partial"


class IgnoresValues(DotProduct):
    def forward(self, query, key=None, value=None, **options):
        return super().forward(query, key, **options)


class ForgetsCoverage(Coverage):
    """Every call starts with keys that nobody has attended to."""

    def __init__(self):
        super().__init__(16, 16, width=8)

    def remembered(self, state, recipe):
        return state


class SoftChoice(DotProduct):
    traits = Traits(hard=True)


class DrawsTwice(Hard):
    """Two keys a query in training, where one is declared."""

    def recipe(self, inputs, bias):
        recipe = super().recipe(inputs, bias)
        if not self.training:
            return recipe
        return replace(recipe, matrix=recipe.matrix + super().recipe(inputs, bias).matrix)


class NanWhereNothingIsDrawn(Hard):
    """Finite in eval; in training a row with no permitted key is 0/0."""

    def recipe(self, inputs, bias):
        recipe = super().recipe(inputs, bias)
        if not self.training:
            return recipe
        return replace(recipe, matrix=recipe.matrix / recipe.matrix.sum(-1, keepdim=True))


class PointsElsewhere(Pointer):
    def __init__(self):
        super().__init__(16, 16, width=8)

    def finish(self, mixed, recipe):
        return mixed[:, 0].roll(1, -1)


class MemoryOfEveryKey(LinearAttention):
    """The memory gets a row more with each key."""

    def __init__(self):
        super().__init__(16, 2)

    def forward(self, query, *inputs, **options):
        attended = super().forward(query, *inputs, **options)
        state = attended.state
        if state is None:
            return attended
        memory = nn.functional.pad(state.memory, (0, 0, 0, query.shape[1]))
        return replace(attended, state=replace(state, memory=memory))


class HalfMemory(LinearAttention):
    """The memory is rounded to the dtype of the inputs."""

    def __init__(self):
        super().__init__(16, 2)

    def after(self, inputs, recipe, attended):
        state = super().after(inputs, recipe, attended)
        return replace(state, memory=state.memory.to(inputs.query.dtype))


class CalledRecurrent(DotProduct):
    traits = DotProduct.traits._replace(recurrent=True)


BROKEN = {
    "shapes": NoHeadAxis,
    "row_sums": NotNormalised,
    "weights_times_values": WeightsOfAnotherMatrix,
    "asking_changes_nothing": SlowPathWhenAsked,
    "reductions": ReductionsSwapped,
    "bias": IgnoresBias,
    "key_permutation": KnowsPlaces,
    "dtypes": AlwaysFloat32,
    "mask_is_applied": IgnoresMask,
    "padding": MultipliesPadding,
    "own_padding": MultipliesPadding,
    "causality": IgnoresCausal,
    "causal_and_mask": TakesCausalAsHint,
    "masked_rows": lambda: BiasSpeaksForNobody(16, 4),
    "empty": NeedsSomeKeys,
    "weights_before_dropout": WeightsAfterDropout,
    "gradients": DetachedWeights,
    "state_dict": HidesAParameter,
    "copies": CannotBePickled,
    "leaves_no_trace": DrawsRandomNumbers,
    "step_by_step": ForgetsOldKeys,
    "fixed_state": ForgetsToFix,
    "compiles": LooksAtNumbers,
    "exports": FreezesLengths,
    "wrong_shapes": BareErrors,
    "wrong_masks": BareErrors,
    "wrong_dtypes": BareErrors,
    "weights_of_the_output": WeightsOfAnotherScale,
    "examples_apart": MixesExamples,
    "states_are_values": GrowsInPlace,
    "recurrent_states": MemoryOfEveryKey,
    "declared_kind": DeclaresAnotherKind,
}

#: Others that break a law in another way: (law, build).
BROKEN_OTHERWISE = [
    ("weights_of_the_output", IgnoresValues),
    ("weights_of_the_output", ScaledSelfAttention),
    ("weights_of_the_output", ScaledLatent),
    ("weights_of_the_output", WeightsOfAnotherMatrix),
    ("states_are_values", DecaysInPlace),
    ("fixed_state", ForgetsCoverage),
    ("row_sums", SoftChoice),
    ("weights_before_dropout", DrawsTwice),
    ("masked_rows", NanWhereNothingIsDrawn),
    ("weights_of_the_output", PointsElsewhere),
    ("recurrent_states", HalfMemory),
    ("recurrent_states", CalledRecurrent),
]
