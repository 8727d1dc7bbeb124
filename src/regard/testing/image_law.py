"""The list of laws of attention over images, and what the laws share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.contract import Attended, BlockOutput
from regard.testing.law import Law, law
from regard.testing.subject import Sizes, Subject

IMAGE_LAWS: dict[str, Law] = {}
_enter = partial(law, into=IMAGE_LAWS)


@dataclass(frozen=True)
class ImageSubject(Subject):
    """A module under check that takes images of this size."""

    height: int = 6
    width: int = 5

    def image(
        self,
        dtype: torch.dtype = torch.float64,
        *,
        height: int | None = None,
        width: int | None = None,
        batch: int | None = None,
        seed: int = 1,
    ) -> Tensor:
        """An image of random numbers, (batch, channel, height, width)."""
        size = (
            self.sizes.batch if batch is None else batch,
            self.sizes.width,
            self.height if height is None else height,
            self.width if width is None else width,
        )
        random = torch.Generator().manual_seed(seed)
        return torch.randn(size, generator=random, dtype=torch.float64).to(dtype)


def image_subject(
    build: Callable[[], nn.Module], channels: int, height: int, width: int, batch: int
) -> ImageSubject:
    """A subject for images of these sizes."""
    return ImageSubject(build, Sizes(channels, batch=batch), height, width)


def image_law(
    sentence: str, *, compiles: bool = False
) -> Callable[[Callable[[ImageSubject], None]], Callable[[ImageSubject], None]]:
    """Enter a check function into the list under its own name."""
    enter: Any = _enter(sentence, compiles=compiles)
    return enter  # type: ignore[no-any-return]


def run(module: nn.Module, image: Tensor, **options: Any) -> Attended | BlockOutput:
    """Call a module and make sure that it returned an `Attended`, or a `BlockOutput` of several."""
    result = module(image, **options)
    assert isinstance(result, Attended | BlockOutput), (
        f"forward returned {type(result).__name__}, expected regard.Attended, or regard.blocks."
        "BlockOutput of several"
    )
    return result


def attentions(result: Attended | BlockOutput) -> dict[str, Attended]:
    """The attentions of a result by name; one alone is named `weights`."""
    return {"weights": result} if isinstance(result, Attended) else result.attentions


def all_weights(result: Attended | BlockOutput) -> dict[str, Tensor]:
    """The weights by name, which must be there because they were asked for."""
    found = {}
    for name, attended in attentions(result).items():
        assert attended.weights is not None, f"weights=True was asked and {name} is None"
        found[name] = attended.weights
    assert found, "a BlockOutput without attentions"
    return found
