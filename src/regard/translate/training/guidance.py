"""Guided alignment (Chen et al., 2016): one head learns to look where a statistical aligner links.

The links are made of the training examples themselves, token by token, by
`alignment.statistical`. The loss of a target token with links is the cross-entropy between an equal
share for each of them and the head's row; a token without a link belongs to the end of the source.
The row is that of the head's reading (Garg et al., 2019, supervise the row in which the token is
predicted; here it may also be the one in which the token is the input, where the model knows it).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.translate.alignment.heads import Head, head_named, heads_of, usual_head
from regard.translate.alignment.matrix import Reading
from regard.translate.alignment.statistical import statistical_links
from regard.translate.config import GuidanceConfig
from regard.translate.data import Batch, Examples
from regard.translate.models.contract import TranslationModel
from regard.translate.models.decoders import ALIGN

_LEAST = 1e-9  # of a weight, so that its logarithm is finite


@dataclass(frozen=True, eq=False)
class Guidance:
    """What one head is taught.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `weight`  | how much its loss counts beside the cross-entropy of the tokens             |
    | `head`    | the head                                                                    |
    | `reading` | which of its rows belongs to a token                                        |
    | `links`   | for each example source and target position of each link, in turn           |
    """

    weight: float
    head: Head
    reading: Reading
    links: Sequence[Sequence[int]]

    def loss(
        self, weights: Float[Tensor, "batch head target source"], batch: Batch
    ) -> Float[Tensor, ""]:
        """Its loss, summed over target tokens, times `weight`."""
        rows = self.head.of({self.head.site: weights.transpose(0, 1)})  # (batch, target, source)
        taught = self._taught(batch).to(rows)
        if self.reading == "input":  # row t + 1 belongs to token t
            rows, taught = rows[:, 1:], taught[:, :-1]
        return -self.weight * (taught * rows.clamp_min(_LEAST).log()).sum()

    def _taught(self, batch: Batch) -> Float[Tensor, "batch target source"]:
        """What each token's row should be; zeros for the end of the target and for padding."""
        size = (len(batch), batch.target_in.shape[1], batch.source.shape[1])
        taught = torch.zeros(size)
        examples: list[int] = []
        sources: list[int] = []
        targets: list[int] = []
        for example, number in enumerate(batch.numbers.tolist()):
            links = self.links[number]
            examples += [example] * (len(links) // 2)
            sources += links[0::2]
            targets += links[1::2]
        taught[examples, targets, sources] = 1.0
        ends = batch.source_mask.sum(1).cpu() - 1
        tokens = batch.target_mask.sum(1, keepdim=True).cpu() - 1  # without the end
        unlinked = (taught.sum(2) == 0) & (torch.arange(size[1]) < tokens)
        row, position = unlinked.nonzero(as_tuple=True)
        taught[row, position, ends[row]] = 1.0
        return taught / taught.sum(2, keepdim=True).clamp_min(1.0)


def guided_head(config: GuidanceConfig, model: TranslationModel) -> tuple[Head, Reading]:
    """The head that a configuration guides, and its reading."""
    if not model.sites:
        raise RegardError(
            f"training.guidance.weight is {config.weight}, but the model has no attention from "
            "target to source to guide"
        )
    heads = heads_of(model.sites)
    if config.head:
        head = head_named(config.head, heads, "training.guidance.head")
    else:
        site = ALIGN if ALIGN in model.sites else usual_head(heads).site
        head = Head(site, 0)
    if config.reading != "usual":
        return head, config.reading
    return head, "input" if head.site == ALIGN else model.reading


def new_guidance(config: GuidanceConfig, model: TranslationModel, examples: Examples) -> Guidance:
    """Align the examples, and say what is taught to which head."""
    head, reading = guided_head(config, model)
    sources, targets = (
        [tokens[:-1] for tokens in side] for side in (examples.source, examples.target)
    )
    links = [
        array("H", [position for link in sorted(pair_links) for position in link])
        for pair_links in statistical_links(sources, targets, show=None)
    ]
    return Guidance(config.weight, head, reading, links)


def head_entry(config: GuidanceConfig, model: TranslationModel) -> dict[str, Any]:
    """What a checkpoint's `extra` remembers of a guided head; empty without guidance."""
    if not config.weight:
        return {}
    head, reading = guided_head(config, model)
    return {"head": {"site": head.site, "index": head.index, "reading": reading}}
