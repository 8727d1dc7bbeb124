"""Which head to read: the one nearest to gold links, or the pair that agrees most.

The choice without gold is that of two models, one of each direction: of all pairs of their heads
the one whose links, seen from both sides, are most alike (after Chen et al., 2020, who choose
layers so). Two heads that see nothing but places could agree too; look at what was chosen.
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
    """A head of a site of attention; `index` None is the mean of the site's heads."""

    site: str
    index: int | None

    def __str__(self) -> str:
        return f"{self.site}, " + ("mean of heads" if self.index is None else f"head {self.index}")

    @property
    def name(self) -> str:
        """The head as commands have it: `3.cross:5`, or `3.cross` for the mean of all."""
        return self.site if self.index is None else f"{self.site}:{self.index}"

    def of(
        self, weights: Mapping[str, Float[Tensor, "_ target source"]]
    ) -> Float[Tensor, "target source"]:
        """This head's part of a model's weights."""
        if self.site not in weights:
            raise RegardError(f"there is no site {self.site!r}; there are {', '.join(weights)}")
        heads = weights[self.site]
        if self.index is None:
            return heads.mean(0)
        if not 0 <= self.index < len(heads):
            raise RegardError(f"head {self.index} of {self.site!r}, expected 0 to {len(heads) - 1}")
        return heads[self.index]


def heads_of(sites: Mapping[str, int]) -> list[Head]:
    """All heads of a model's `sites`, and behind those of a site their mean if they are several.

    >>> [str(head) for head in heads_of({"0.cross": 2, "1.cross": 1})]
    ['0.cross, head 0', '0.cross, head 1', '0.cross, mean of heads', '1.cross, head 0']
    """
    found = []
    for site, count in sites.items():
        found += [Head(site, index) for index in range(count)]
        found += [Head(site, None)] if count > 1 else []
    return found


def head_named(text: str, heads: Sequence[Head], option: str = "head") -> Head:
    """The head of this name, such as `3.cross:5`; the only head of a site by the site's too.

    Args:
        text: the name.
        heads: those of a model, as `heads_of` gives them.
        option: what is wrong if there is none, for the error.
    """
    known = {head.name: head for head in heads}
    if text not in known and f"{text}:0" in known and f"{text}:1" not in known:
        return known[f"{text}:0"]
    if text not in known:
        raise RegardError(f"{option} {text}, expected one of {', '.join(known)}")
    return known[text]


@dataclass(frozen=True, eq=False)
class AllHeads:
    """Sentences as every head sees them: `matrices` have weights (head, target, source)."""

    heads: list[Head]
    matrices: list[Matrix]

    def of(self, head: Head) -> list[Matrix]:
        """The sentences as one head sees them."""
        place = self._place(head)
        return [Matrix(one.weights[place], one.source, one.target) for one in self.matrices]

    def only(self, head: Head) -> AllHeads:
        """The same with no other head."""
        place = slice(self._place(head), self._place(head) + 1)
        made = [Matrix(one.weights[place], one.source, one.target) for one in self.matrices]
        return AllHeads([head], made)

    def links(self, head: Head, rule: Rule = strongest) -> list[Links]:
        """The links of each sentence, by one head."""
        place = self._place(head)
        return [links_of(rule(one.weights[place])) for one in self.matrices]

    def _place(self, head: Head) -> int:
        if head not in self.heads:
            raise RegardError(f"there is no {head}; there are {'; '.join(map(str, self.heads))}")
        return self.heads.index(head)


class ByError(NamedTuple):
    """A head and how far its links are from gold."""

    head: Head
    error: ErrorRate


def by_error(seen: AllHeads, gold: Sequence[Gold], rule: Rule = strongest) -> list[ByError]:
    """All heads, the one with the least alignment error first.

    An error rate on the very sentences that chose the head flatters it a little: choose on some,
    report on others.

    Args:
        seen: what the heads of one model attended to.
        gold: the links that people drew.
        rule: how weights become links.
    """
    found = [ByError(head, error_rate(seen.links(head, rule), gold)) for head in seen.heads]
    return sorted(found, key=lambda one: one.error.error)


class ByAgreement(NamedTuple):
    """Two heads, one of each direction, and the share of their links that both have."""

    forward: Head
    backward: Head
    agreement: float


def by_agreement(
    forward: AllHeads, backward: AllHeads, rule: Rule = strongest
) -> list[ByAgreement]:
    """All pairs of heads of two models, those that agree most first.

    Agreement is 2 |A ∩ B| / (|A| + |B|) over all sentences, with B the links of the other
    direction, flipped.

    Args:
        forward: what the heads of the model from source to target attended to.
        backward: what those of the model from target to source did, on the same sentences.
        rule: how weights become links.
    """
    if len(forward.matrices) != len(backward.matrices):
        raise RegardError(
            f"forward has {len(forward.matrices)} sentences, backward {len(backward.matrices)}; "
            "expected the same ones"
        )
    met = torch.zeros(len(forward.heads), len(backward.heads), dtype=torch.float64)
    total = torch.zeros_like(met)
    for one, other in zip(forward.matrices, backward.matrices):
        there, back = rule(one.weights).double(), rule(other.weights).double().transpose(1, 2)
        met += torch.einsum("fts,bts->fb", there, back)
        total += there.sum((1, 2))[:, None] + back.sum((1, 2))
    shares = 2 * met / total.clamp(min=1)
    found = [
        ByAgreement(first, second, float(shares[i, j]))
        for i, first in enumerate(forward.heads)
        for j, second in enumerate(backward.heads)
    ]
    return sorted(found, key=lambda one: -one.agreement)
