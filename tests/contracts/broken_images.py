"""For each law of attention over images, a module that breaks it on purpose."""

from dataclasses import replace

import torch
from torch import nn

from regard.contract import Attended
from regard.vision import (
    CBAM,
    ChannelGate,
    Gate,
    LocalSelfAttention,
    MultiHeadConvolutional,
    SpatialGate,
    SqueezeExcitation,
)


class Channels(SqueezeExcitation):
    def __init__(self):
        super().__init__(8, reduction=2)


def changed(attended, change):
    """The same with other weights returned."""
    return replace(attended, weights=None if attended.weights is None else change(attended.weights))


class NoHeadAxis(Channels):
    def forward(self, image, **options):
        return changed(super().forward(image, **options), lambda weights: weights[:, 0])


class KeepsItsRecipe(Channels):
    """A recipe that nobody asked for keeps the factors alive."""

    def forward(self, image, **options):
        attended = super().forward(image, **options)
        recipe = super().forward(image, weights=True).recipe
        return attended if options else replace(attended, recipe=recipe)


class SquareOnly(SpatialGate):
    """Rows and columns change places, which a square image does not show."""

    def factors(self, image):
        return super().factors(image).mT.reshape(image.shape[0], 1, *image.shape[2:])

    def attend(self, image):
        output, recipe = super().attend(image)
        grid = (image.shape[3], image.shape[2])
        return output, lambda: replace(recipe(), grid=grid)


class AboveOne(Channels):
    """The factor 2σ that some networks have is no gate between 0 and 1."""

    def factors(self, image):
        return 2 * super().factors(image)


class BelowZero(Channels):
    def __init__(self):
        super().__init__()
        self.gate = nn.Tanh()


class Unbounded(Channels):
    """Factors that stay below 1 while the image is tame, and grow with it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.ReLU()


class UnboundedMap(SpatialGate):
    def __init__(self):
        super().__init__(gate=nn.Softplus())


class RecipeOfAnotherKind(Channels):
    def attend(self, image):
        output, recipe = super().attend(image)
        return output, lambda: replace(recipe(), of="partial")


class NoDistribution(nn.Module):
    """Positions that attend to each other, with weights that sum to 1.1."""

    kind = "distribution"

    def forward(self, image, *, weights=False):
        x = image.flatten(2).mT
        matrix = 1.1 * (x @ x.mT).softmax(-1)
        output = (matrix @ x).mT.reshape(image.shape)
        return Attended(output, matrix[:, None] if weights else None)


class AddsTheImage(Channels):
    """A residual connection inside: the output is the image times one more than the gate."""

    def attend(self, image):
        output, recipe = super().attend(image)
        return output + image, recipe


class HidesAGate(CBAM):
    """Two gates, of which one is returned."""

    def __init__(self):
        super().__init__(8, channel=ChannelGate(8, reduction=2))

    def forward(self, image, **options):
        blocked = super().forward(image, **options)
        return replace(blocked, attentions={"channel": blocked.attentions["channel"]})


class SlowPathWhenAsked(Channels):
    def forward(self, image, *, weights=False, **options):
        attended = super().forward(image, weights=weights, **options)
        return replace(attended, output=attended.output * (1 + 1e-6)) if weights else attended


class AnswersAnother(MultiHeadConvolutional):
    """Answers in another order than asked."""

    def __init__(self):
        super().__init__(8)

    def forward(self, image, *, reduce=(), **options):
        attended = super().forward(image, reduce=reduce, **options)
        return replace(attended, reductions=attended.reductions[::-1])


class MixesImages(Channels):
    """Statistics of the batch, in eval mode too."""

    def factors(self, image):
        return super().factors(image - image.mean(0, keepdim=True))


class AlwaysFloat32(Channels):
    def forward(self, image, **options):
        attended = super().forward(image, **options)
        return replace(attended, output=attended.output.float())


class RefusesMixedDtypes(Channels):
    def factors(self, image):
        factors = super().factors(image)
        if factors.dtype != image.dtype:
            raise TypeError(f"{factors.dtype} times {image.dtype}")
        return factors


class NeedsSomeImages(Channels):
    def factors(self, image):
        image.amax()
        return super().factors(image)


class DetachedGate(Channels):
    """Weights come back outside the graph."""

    def forward(self, image, **options):
        return changed(super().forward(image, **options), torch.Tensor.detach)


class ForgetsALayer(Channels):
    """A layer that nothing uses gets no gradient, and stops distributed training."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)


class DividesByTheMaximum(SpatialGate):
    """0/0 for an image of zeros."""

    def factors(self, image):
        return super().factors(image / image.amax((1, 2, 3), keepdim=True))


class HidesAParameter(Channels):
    """A scale that no state dict carries."""

    def __init__(self):
        super().__init__()
        self.scale = torch.rand(1, dtype=torch.float64)

    def factors(self, image):
        return super().factors(image * self.scale.to(image))


class CannotBePickled(Channels):
    def __init__(self):
        super().__init__()
        self.helper = lambda tensor: tensor


class WritesIntoTheImage(Channels):
    def attend(self, image):
        output, recipe = super().attend(image)
        image.data.mul_(0.5)
        return output, recipe


class CountsCalls(Channels):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, image, **options):
        self.calls += 1
        return super().forward(image, **options)


class BareErrors(Channels):
    def forward(self, image, **options):
        try:
            return super().forward(image, **options)
        except Exception:
            raise ValueError("invalid input") from None


class LooksAtNumbers(Channels):
    """A branch on data cannot be compiled."""

    def factors(self, image):
        return super().factors(image * 2 if float(image.sum()) > 1e9 else image)


class FreezesSizes(Gate):
    """Factors of one size, made when it is built."""

    def __init__(self):
        super().__init__()
        self.map = nn.Parameter(torch.rand(1, 1, 6, 5))

    def factors(self, image):
        height, width = (int(size) for size in image.shape[2:])
        padded = nn.functional.pad(self.map, (0, width - 5, 0, height - 6))
        return padded.sigmoid().expand(image.shape[0], -1, -1, -1)


class Local(LocalSelfAttention):
    def __init__(self):
        super().__init__(8, 2, size=3)


class SwapsHeads(Local):
    """The weights of each head are returned as those of the other."""

    def forward(self, image, **options):
        return changed(super().forward(image, **options), lambda weights: weights.flip(1))


class TellsAnother(Local):
    """Weights and recipe fit each other; the output was mixed with other weights."""

    def attend(self, image):
        _, recipe = super().attend(image)
        return super().attend(2 * image)[0], recipe


BROKEN = {
    "shapes": NoHeadAxis,
    "sizes": SquareOnly,
    "declared_kind": AboveOne,
    "gates_multiply": AddsTheImage,
    "mixes": SwapsHeads,
    "output_of_mixed": TellsAnother,
    "asking_changes_nothing": SlowPathWhenAsked,
    "reductions": AnswersAnother,
    "examples_apart": MixesImages,
    "dtypes": AlwaysFloat32,
    "autocast": RefusesMixedDtypes,
    "empty": NeedsSomeImages,
    "gradients": DetachedGate,
    "training": ForgetsALayer,
    "state_dict": HidesAParameter,
    "copies": CannotBePickled,
    "leaves_no_trace": WritesIntoTheImage,
    "wrong_images": BareErrors,
    "compiles": LooksAtNumbers,
    "exports": FreezesSizes,
}

#: Others that break a law in another way: (law, build).
BROKEN_OTHERWISE = [
    ("shapes", KeepsItsRecipe),
    ("declared_kind", BelowZero),
    ("declared_kind", Unbounded),
    ("declared_kind", UnboundedMap),
    ("declared_kind", RecipeOfAnotherKind),
    ("declared_kind", NoDistribution),
    ("gates_multiply", HidesAGate),
    ("training", DividesByTheMaximum),
    ("leaves_no_trace", CountsCalls),
]
