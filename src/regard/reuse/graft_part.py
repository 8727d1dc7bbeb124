"""What can be grafted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.masks import Mask
from regard.reuse.graft_sites import Place

Call = Callable[..., Any]


class GraftWarning(UserWarning):
    """Something a graft was told is likely not what was meant."""


class Part(nn.Module, ABC):
    """Something that can be grafted: it reads at one place and changes the output of another.

    | attribute | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `reads`   | the place that is read                                                      |
    | `into`    | the place whose output is changed                                           |
    | `mask`    | the model's input that tells padding, "~" before it where True is padding   |
    """

    reads: str
    into: str
    mask: str | None = None
    reads_states = True  #: whether what is read must be (batch, position, width)
    takes_images = False  #: whether what is changed is (batch, channel, height, width)

    @abstractmethod
    def watch(
        self, place: Place, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Run what is read, and return its output and what was seen; nothing is computed here."""

    def watched(self, model: nn.Module) -> str:
        """The path of the module that is watched."""
        return Place.of("reads", self.reads).path

    def check_widths(self, reads: int | None, into: int | None) -> None:
        """Raise where the features of the two places, as far as they are known, do not fit."""

    @abstractmethod
    def forward(self, state: Tensor, seen: Any, mask: Mask | None) -> Tensor:
        """The output of `into` with this part, given its output without."""


def check_names(part: str, reads: Any, into: Any, mask: Any) -> None:
    """Raise where a part was given something else than names."""
    for argument, given in (("reads", reads), ("into", into)):
        Place.of(f"{part}: {argument}", given)
    if mask is not None and not isinstance(mask, str):
        shown = f"a tensor {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise RegardError(
            f"{part}: mask is {shown}, expected the name of the model's input that tells padding, "
            "as 'attention_mask'"
        )


def same_kind(part: nn.Module, model: nn.Module) -> None:
    """Move a part to the device and dtype of a model."""
    reference = next((one for one in model.parameters() if one.is_floating_point()), None)
    if reference is not None:
        part.to(reference.device, reference.dtype)


def dtype_of(module: nn.Module, default: torch.dtype) -> torch.dtype:
    """What a module computes in."""
    return next((one.dtype for one in module.parameters() if one.is_floating_point()), default)
