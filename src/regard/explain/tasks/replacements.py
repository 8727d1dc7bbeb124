"""Ways to remove positions from an input. The choice matters: try more than one.

A replacement is any function of `Inputs` and of the positions to remove, (example, position), that
returns other `Inputs`. It must not change its arguments in place.

>>> import torch
>>> from regard import explain
>>> inputs = explain.Inputs.of({"input_ids": torch.tensor([[5, 6, 7]])})
>>> explain.MaskToken(103)(inputs, torch.tensor([[False, True, False]])).ids
tensor([[  5, 103,   7]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.editing import allow
from regard.errors import RegardError, UnavailableError
from regard.explain.tasks.inputs import MASKS, Inputs, Removed
from regard.masks import pairs

#: A way to remove positions; tables show its `name`, if it has one.
Replacement = Callable[[Inputs, Tensor], Inputs]


@dataclass(frozen=True)
class MaskToken:
    """Another token in the place of each removed one.

    For a model that was not trained with it, it is out of distribution.

    Args:
        number: the token, as `tokenizer.mask_token_id`.
    """

    number: int
    name: ClassVar[str] = "mask token"

    def __call__(self, inputs: Inputs, removed: Removed) -> Inputs:
        return inputs.with_ids(inputs.ids.masked_fill(removed, self.number))


@dataclass(frozen=True)
class AttentionMask:
    """Removed positions are kept out of attention, like padding; the others keep their places.

    Needs an `attention_mask`, or torch's `src_key_padding_mask`, among the inputs. A model that
    pools with the mask leaves them out of the pool too.
    """

    name: ClassVar[str] = "out of attention"

    def __call__(self, inputs: Inputs, removed: Removed) -> Inputs:
        mask_name = inputs.mask_name
        if mask_name is None:
            raise UnavailableError(
                f"AttentionMask: the inputs {list(inputs.named)} have no mask (example, position) "
                f"named {' or '.join(MASKS)}; give one that lets all through"
            )
        mask: Tensor = inputs.named[mask_name]
        masked = 0 if MASKS[mask_name] else 1
        return inputs.with_tensor(mask_name, mask.masked_fill(removed, masked))


@dataclass(frozen=True)
class Forbid:
    """No other position may attend to a removed one, in any model (`regard.edit`): a causal test.

    The input stays as it is, and so does what a removed position makes of itself: only what others
    take from it through attention is gone.

    Args:
        where: which attentions, as in `regard.capture`; all when None.
    """

    where: Any = None
    name: ClassVar[str] = "forbidden"

    def __call__(self, inputs: Inputs, removed: Removed) -> Inputs:
        own = torch.eye(removed.shape[1], dtype=torch.bool, device=removed.device)
        allowed = ~removed[:, None, None, :] | own  # (example, 1, query, key)
        return inputs.with_changes(allow(pairs(allowed), where=self.where))


@dataclass(frozen=True)
class MeanEmbedding:
    """The mean embedding in the place of each removed one.

    Args:
        vector: the embedding, (width,); the mean over all removable positions of the data when
            None.
    """

    vector: Tensor | None = None
    name: ClassVar[str] = "mean embedding"

    def __call__(self, inputs: Inputs, removed: Removed) -> Inputs:
        embeddings = inputs.need_embeddings()
        mean = inputs.mean if self.vector is None else self.vector
        if mean is None:
            raise RegardError("MeanEmbedding: the inputs know no mean; give vector=, (width,)")
        return inputs.with_embeddings(
            torch.where(spread(removed, embeddings), mean.to(embeddings), embeddings)
        )


@dataclass(frozen=True)
class ZeroEmbedding:
    """Zeros in the place of each removed embedding."""

    name: ClassVar[str] = "zero embedding"

    def __call__(self, inputs: Inputs, removed: Removed) -> Inputs:
        embeddings = inputs.need_embeddings()
        return inputs.with_embeddings(embeddings.masked_fill(spread(removed, embeddings), 0.0))


@dataclass(frozen=True)
class Deletion:
    """Removed positions are deleted: the input gets shorter.

    Later positions move. Where examples end up with different lengths, their ends are masked, which
    needs a mask among the inputs. `position_ids` are renumbered.

    Args:
        padding: the token that fills the ends.
    """

    padding: int = 0
    name: ClassVar[str] = "deletion"

    def __call__(self, inputs: Inputs, removed: Removed) -> Inputs:
        if inputs.swapped or (inputs.is_features and not inputs.direct):
            raise UnavailableError("Deletion needs ids or features that the model takes directly")
        attended = inputs.attended()
        kept = ~removed if attended is None else ~removed & attended
        lengths = kept.sum(1)
        longest = int(lengths.max())
        if not int(lengths.min()):
            raise RegardError("Deletion: an example would be left with no position at all")
        if attended is None and int(lengths.min()) < longest:
            raise UnavailableError(
                "Deletion: examples are left with different lengths; give an attention_mask of "
                "ones, so that the ends can be masked"
            )
        order = (~kept).to(torch.uint8).sort(dim=1, stable=True).indices[:, :longest]
        beyond = torch.arange(longest, device=kept.device) >= lengths[:, None]
        return replace(inputs, **self._shortened(inputs, order, beyond))

    def _shortened(self, inputs: Inputs, order: Tensor, beyond: Tensor) -> dict[str, Any]:
        size = inputs.named[inputs.main].shape[:2]
        named = dict(inputs.named)
        for name, value in inputs.named.items():
            if not isinstance(value, Tensor) or value.shape[:2] != size:
                continue
            if name == "position_ids":
                named[name] = value[:, : order.shape[1]]
                continue
            index = order.reshape(*order.shape, *[1] * (value.dim() - 2))
            kept = value.gather(1, index.expand(-1, -1, *value.shape[2:]))
            fill = self.padding if name == inputs.main else 0
            if name in MASKS:
                fill = 0 if MASKS[name] else 1
            named[name] = kept.masked_fill(spread(beyond, kept), fill)
        return {"named": named, "embeddings": named[inputs.main] if inputs.direct else None}


def spread(removed: Removed, values: Tensor) -> Tensor:
    """(example, position), broadcast to the axes of `values`."""
    return removed.reshape(*removed.shape, *[1] * (values.dim() - 2))


def usual_replacement(inputs: Inputs, removable: Removed) -> Replacement:
    """Out of attention, where something is left to attend to; else the mean embedding."""
    attended = inputs.attended()
    if attended is not None and bool((attended & ~removable).any(1).all()):
        return AttentionMask()
    return MeanEmbedding()


def name_of(replacement: Replacement) -> str:
    """What a table calls a replacement."""
    name = getattr(replacement, "name", None) or getattr(replacement, "__name__", None)
    return str(name or type(replacement).__name__)
