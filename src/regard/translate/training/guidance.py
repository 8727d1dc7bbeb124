"""Guided alignment (Chen et al., 2016): one head learns to look where a statistical aligner links.

The links are made of the training examples themselves, token by token, by
`alignment.statistical`. The loss of a target token with links is the cross-entropy between an equal
share for each of them and the head's row; a token without a link belongs to the end of the source.
The row is that of the head's reading (Garg et al., 2019, supervise the row in which the token is
predicted; here it may also be the one in which the token is the input, where the model knows it).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        """Its loss, summed over target tokens, times `weight`.

        Only weights at links are read: no other tensor is as large as `weights`.
        """
        rows = self.head.of({self.head.site: weights.transpose(0, 1)})  # (batch, target, source)
        examples, targets, sources, shares = self._taught(batch)
        following = int(self.reading == "input")  # row t + 1 belongs to token t
        taught = rows[examples, [target + following for target in targets], sources]  # (link)
        return -self.weight * (taught.new_tensor(shares) * taught.clamp_min(_LEAST).log()).sum()

    def _taught(self, batch: Batch) -> tuple[list[int], list[int], list[int], list[float]]:
        """Example, target and source position of each link, and its share of its token's row.

        A token without links is linked to the end of the source.
        """
        examples: list[int] = []
        targets: list[int] = []
        sources: list[int] = []
        shares: list[float] = []
        sizes = [mask.sum(1).tolist() for mask in (batch.source_mask, batch.target_mask)]
        for example, (number, length, said) in enumerate(zip(batch.numbers.tolist(), *sizes)):
            links = self.links[number]
            linked = Counter(links[1::2])
            ends = [target for target in range(said - 1) if target not in linked]
            examples += [example] * (len(links) // 2 + len(ends))
            targets += [*links[1::2], *ends]
            sources += [*links[0::2], *[length - 1] * len(ends)]
            shares += [1 / linked[target] for target in links[1::2]] + [1.0] * len(ends)
        return examples, targets, sources, shares


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
