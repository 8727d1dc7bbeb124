"""Heads of a model, ranked by alignment error or by agreement of two directions.

Without gold links, the pair of heads of two models (one per direction) is chosen whose links agree
most (after Chen et al., 2020, who choose layers in this way). Two heads that attend by position
alone may agree too, so look at what was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.translate.alignment.error_rate import ErrorRate, error_rate
from regard.translate.alignment.links import Links, Rule, links_of, strongest
from regard.translate.alignment.matrix import Matrix
from regard.translate.alignment.pharaoh import Gold


@dataclass(frozen=True)
class Head:
    """A head of an attention site; `index` None is the mean of its heads."""

    site: str
    index: int | None

    def __str__(self) -> str:
        return f"{self.site}, " + ("mean of heads" if self.index is None else f"head {self.index}")

    @property
    def name(self) -> str:
        """The name in commands: `3.cross:5`, or `3.cross` for the mean of all heads."""
        return self.site if self.index is None else f"{self.site}:{self.index}"

    def of(
        self, weights: Mapping[str, Float[Tensor, "_ target source"]]
    ) -> Float[Tensor, "target source"]:
        """The weights of this head."""
        if self.site not in weights:
            raise RegardError(f"there is no site {self.site!r}; there are {', '.join(weights)}")
        heads = weights[self.site]
        if self.index is None:
            return heads.mean(0)
        if not 0 <= self.index < len(heads):
            raise RegardError(f"head {self.index} of {self.site!r}, expected 0 to {len(heads) - 1}")
        return heads[self.index]


def heads_of(sites: Mapping[str, int]) -> list[Head]:
    """All heads of a model's `sites`; after several heads of a site, their mean.

    >>> [str(head) for head in heads_of({"0.cross": 2, "1.cross": 1})]
    ['0.cross, head 0', '0.cross, head 1', '0.cross, mean of heads', '1.cross, head 0']
    """
    heads = []
    for site, count in sites.items():
        heads += [Head(site, index) for index in range(count)]
        heads += [Head(site, None)] if count > 1 else []
    return heads


def head_named(text: str, heads: Sequence[Head], option: str = "head") -> Head:
    """The head of a name such as `3.cross:5`; a site's only head also by the name of the site.

    Args:
        text: the name.
        heads: the heads of a model, from `heads_of`.
        option: how errors call the argument.
    """
    by_name = {head.name: head for head in heads}
    if text not in by_name and f"{text}:0" in by_name and f"{text}:1" not in by_name:
        return by_name[f"{text}:0"]
    if text not in by_name:
        raise RegardError(f"{option} {text}, expected one of {', '.join(by_name)}")
    return by_name[text]


@dataclass(frozen=True, eq=False)
class AllHeads:
    """Attention of every head over sentences: `matrices` have weights (head, target, source)."""

    heads: list[Head]
    matrices: list[Matrix]

    def of(self, head: Head) -> list[Matrix]:
        """The matrices of one head."""
        index = self._index(head)
        return [
            Matrix(matrix.weights[index], matrix.source, matrix.target) for matrix in self.matrices
        ]

    def only(self, head: Head) -> AllHeads:
        """This head alone."""
        index = slice(self._index(head), self._index(head) + 1)
        matrices = [
            Matrix(matrix.weights[index], matrix.source, matrix.target) for matrix in self.matrices
        ]
        return AllHeads([head], matrices)

    def links(self, head: Head, rule: Rule = strongest) -> list[Links]:
        """The links of each sentence, by one head."""
        index = self._index(head)
        return [links_of(rule(matrix.weights[index])) for matrix in self.matrices]

    def _index(self, head: Head) -> int:
        if head not in self.heads:
            raise RegardError(f"there is no {head}; there are {'; '.join(map(str, self.heads))}")
        return self.heads.index(head)


class HeadError(NamedTuple):
    """A head and its alignment error."""

    head: Head
    error: ErrorRate


def by_error(heads: AllHeads, gold: Sequence[Gold], rule: Rule = strongest) -> list[HeadError]:
    """All heads, the lowest alignment error first.

    The error rate on the sentences that chose the head is optimistic: choose on some sentences,
    report on others.

    Args:
        heads: attention of one model.
        gold: gold links.
        rule: how weights become links.
    """
    errors = [HeadError(head, error_rate(heads.links(head, rule), gold)) for head in heads.heads]
    return sorted(errors, key=lambda entry: entry.error.error)


class HeadAgreement(NamedTuple):
    """Two heads, one of each direction, and the share of their links that both have."""

    forward: Head
    backward: Head
    agreement: float


def by_agreement(
    forward: AllHeads, backward: AllHeads, rule: Rule = strongest
) -> list[HeadAgreement]:
    """All pairs of heads of two models, the highest agreement first.

    Agreement is 2 |A ∩ B| / (|A| + |B|) over all sentences, with B the links of the other
    direction, flipped.

    Args:
        forward: attention of the model from source to target.
        backward: attention of the model from target to source, on the same sentences.
        rule: how weights become links.
    """
    if len(forward.matrices) != len(backward.matrices):
        raise RegardError(
            f"forward has {len(forward.matrices)} sentences, backward {len(backward.matrices)}; "
            "expected the same ones"
        )
    common = torch.zeros(len(forward.heads), len(backward.heads), dtype=torch.float64)
    total = torch.zeros_like(common)
    for forward_matrix, backward_matrix in zip(forward.matrices, backward.matrices):
        forward_links = rule(forward_matrix.weights).double()
        backward_links = rule(backward_matrix.weights).double().transpose(1, 2)
        common += torch.einsum("fts,bts->fb", forward_links, backward_links)
        total += forward_links.sum((1, 2))[:, None] + backward_links.sum((1, 2))
    shares = 2 * common / total.clamp(min=1)
    agreements = [
        HeadAgreement(head, backward_head, float(shares[i, j]))
        for i, head in enumerate(forward.heads)
        for j, backward_head in enumerate(backward.heads)
    ]
    return sorted(agreements, key=lambda entry: -entry.agreement)
