"""Heads of a model, and which one to read: by gold links, by a second direction, or by default.

Without gold links, the pair of heads of two models (one per direction) is chosen whose links agree
most (after Chen et al., 2020, who choose layers in this way). Two heads that attend by position
alone may agree too, so look at what was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.translate.alignment.links import (
    ErrorRate,
    Gold,
    Links,
    Rule,
    error_rate,
    flipped,
    links_of,
    mutual,
)
from regard.translate.alignment.matrix import Matrix, Reading
from regard.translate.checkpoint import add_extra
from regard.translate.models.contract import TranslationModel


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
        self, weights: Mapping[str, Float[Tensor, "_ *batch target source"]]
    ) -> Float[Tensor, "*batch target source"]:
        """The weights of this head, of a sentence or of a batch."""
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

    def links(self, head: Head, rule: Rule = mutual) -> list[Links]:
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


def by_error(heads: AllHeads, gold: Sequence[Gold], rule: Rule = mutual) -> list[HeadError]:
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


def by_agreement(forward: AllHeads, backward: AllHeads, rule: Rule = mutual) -> list[HeadAgreement]:
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


class Choice(NamedTuple):
    """The heads of both directions, and what they were chosen by."""

    forward: Head
    backward: Head | None
    why: str


def choose(
    forward: AllHeads,
    backward: AllHeads | None = None,
    gold: Sequence[Gold] | None = None,
    rule: Rule = mutual,
) -> Choice:
    """Choose heads by the lowest alignment error, else by agreement, else the usual head.

    Args:
        forward: attention of the model from source to target.
        backward: attention of the model from target to source, if there is one.
        gold: gold links, if there are any.
        rule: how weights become links.
    """
    for heads in (forward, backward):
        if heads is not None and not heads.heads:
            raise RegardError("choose: there are no sentences, so there is no head to choose")
    if gold is not None:
        forward_head = by_error(forward, gold, rule)[0].head
        if backward is None:
            return Choice(forward_head, None, "least alignment error")
        backward_head = by_error(backward, _flipped_gold(gold), rule)[0].head
        return Choice(forward_head, backward_head, "least alignment error")
    if backward is not None:
        best = by_agreement(forward, backward, rule)[0]
        why = f"most agreement of both directions, {100 * best.agreement:.1f} %"
        return Choice(best.forward, best.backward, why)
    why = "the usual one, with neither gold links nor the other direction to choose by"
    return Choice(usual_head(forward.heads), None, why)


def best_readings(
    forward: Mapping[Reading, AllHeads],
    backward: Mapping[Reading, AllHeads] | None = None,
    gold: Sequence[Gold] | None = None,
    rule: Rule = mutual,
) -> tuple[Reading, Reading | None]:
    """The readings whose best heads have the lowest error, else agree most, else the first.

    Args:
        forward: attention of the model from source to target, by reading; the default first.
        backward: the same of the model from target to source, if there is one.
        gold: gold links, if there are any.
        rule: how weights become links.
    """
    others = {} if backward is None else backward
    if gold is not None:
        links = list(gold)
        forward_reading = min(
            forward, key=lambda reading: _least_error(forward[reading], links, rule)
        )
        flipped_gold = _flipped_gold(links)
        return forward_reading, min(
            others,
            key=lambda reading: _least_error(others[reading], flipped_gold, rule),
            default=None,
        )
    if others:
        return max(
            product(forward, others),
            key=lambda pair: by_agreement(forward[pair[0]], others[pair[1]], rule)[0].agreement,
        )
    return next(iter(forward)), None


def _least_error(heads: AllHeads, gold: Sequence[Gold], rule: Rule) -> float:
    return by_error(heads, gold, rule)[0].error.error


def _flipped_gold(gold: Sequence[Gold]) -> list[Gold]:
    return [Gold(flipped(sentence.sure), flipped(sentence.possible)) for sentence in gold]


def usual_head(heads: Sequence[Head]) -> Head:
    """The head to read by default.

    With several layers it is the mean of the last but one: the last layer of a Transformer attends
    to what comes next (Garg et al., 2019; Chen et al., 2020).

    >>> print(usual_head([Head("0.cross", 0), Head("1.cross", 0), Head("2.cross", 0)]))
    1.cross, head 0
    """
    if not heads:
        raise RegardError("usual_head: there are no heads, expected at least one")
    sites = list(dict.fromkeys(head.site for head in heads))
    site = sites[-2] if len(sites) > 1 else sites[-1]
    return [head for head in heads if head.site == site][-1]


class PreferredHead(NamedTuple):
    """A head, and the reading it was chosen with; the model's own reading when None."""

    head: Head
    reading: Reading | None


def save_preferred_head(path: str | Path, head: Head, reading: Reading) -> None:
    """Store in a checkpoint which head and reading to use; the rest of the file is unchanged.

    Args:
        path: the checkpoint.
        head: the head to read.
        reading: which row belongs to a word.
    """
    preferred = {"site": head.site, "index": head.index, "reading": reading}
    add_extra(Path(path), {"head": preferred})


def preferred_head(extra: dict[str, Any]) -> PreferredHead | None:
    """The preferred head in a checkpoint's `extra`; None if there is none."""
    entry = extra.get("head")
    if entry is None:
        return None
    if not (
        isinstance(entry, dict)
        and isinstance(entry.get("site"), str)
        and type(entry.get("index", "missing")) in (int, type(None))
    ):
        raise RegardError(
            f"the checkpoint names the head {entry!r:.80}, expected its site and index"
        )
    return PreferredHead(Head(entry["site"], entry["index"]), entry.get("reading"))


def shown_head(model: TranslationModel, extra: dict[str, Any]) -> tuple[Head | None, Reading]:
    """The head that a translator shows unless it is told another, and its reading.

    The preferred one of the checkpoint's `extra`, else the usual one; None without attention to the
    source.
    """
    preferred = preferred_head(extra) if model.sites else None
    if preferred is not None:
        return preferred.head, preferred.reading or model.reading
    return usual_head(heads_of(model.sites)) if model.sites else None, model.reading
