"""Which head to read: by gold links, by a model of the other direction, or by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from regard.errors import RegardError
from regard.translate.alignment.heads import AllHeads, Head, by_agreement, by_error
from regard.translate.alignment.links import Rule, flipped, strongest
from regard.translate.alignment.matrix import Reading
from regard.translate.alignment.pharaoh import Gold


class Choice(NamedTuple):
    """The heads of both directions, and what they were chosen by."""

    forward: Head
    backward: Head | None
    why: str


def choose(
    forward: AllHeads,
    backward: AllHeads | None = None,
    gold: Sequence[Gold] | None = None,
    rule: Rule = strongest,
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
    rule: Rule = strongest,
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
