"""The contract of attention over images: what goes in, and what every one of them returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_axes, check_features, check_module_dtype, refuse_nested
from regard.contract import Attended
from regard.errors import ShapeError
from regard.kernel.reduce import reduce as reduce_recipe
from regard.kernel.reducers.base import Reducer
from regard.recipe import Recipe
from regard.types import Kind

_AXES = ("batch", "channel", "height", "width")


class ImageMechanism(nn.Module, ABC):
    """Attention over an image, (batch, channel, height, width).

    A subclass has one method, `attend`, which gives the output and says how to make the recipe of
    the weights. Checks, weights and reductions are the same for all. Positions of an image are
    counted row by row: position `row * width + column`.

    What `kind` promises here: the rows of a `distribution` sum to 1; a `gate` lies between 0 and 1
    and its output is the image times it, each query being one row of factors: for each channel
    (batch, 1, 1, channel), each position (batch, 1, 1, height · width), or each position of each
    channel (batch, channel, 1, height · width).
    """

    kind: Kind = "distribution"
    channels: int | None = None  #: channels that fit; any where None
    smallest: tuple[int, int] = (1, 1)  #: height and width below which an image is refused

    @abstractmethod
    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        """The output of a checked image, and a function that makes the recipe of its weights.

        The function is called only where weights or reductions were asked, so that nobody pays for
        what nobody reads. The recipe's `grid` is the image's (height, width) where its keys are
        positions.
        """

    def forward(
        self,
        image: Tensor,
        *,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> Attended:
        """Attend.

        Args:
            image: (batch, channel, height, width).
            weights: also return the weights, (batch, head, query, key), positions row by row.
            reduce: reducers whose results come back in `Attended.reductions`.
        """
        self._check(image)
        output, recipe_of = self.attend(image)
        if not weights and not reduce:
            return Attended(output)
        recipe = recipe_of()
        answers = reduce_recipe(recipe, reduce) if reduce else ()
        matrix = recipe.weights() if weights else None
        return Attended(output, matrix, recipe=recipe, reductions=answers)

    def _check(self, image: Tensor) -> None:
        """Raise where an image does not fit; names class, axis, size and expectation."""
        name = type(self).__name__
        refuse_nested(name, image=image)
        check_features(f"{name}: image", image, dict.fromkeys(_AXES))
        check_module_dtype(f"{name}: image", image, self)
        check_axes(f"{name}: image", image, {**dict.fromkeys(_AXES), "channel": self.channels})
        for axis, size, least in zip(_AXES[1:], image.shape[1:], (1, *self.smallest)):
            if size < least:
                raise ShapeError(
                    f"{name}: image: axis {axis} has size {size}, expected at least {least}"
                )
