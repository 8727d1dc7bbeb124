"""The head to read, chosen by what is at hand: gold, a model of the other direction, neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.errors import RegardError
from regard.translate.alignment.heads import AllHeads, Head, by_agreement, by_error
from regard.translate.alignment.links import Rule, flipped, strongest
from regard.translate.alignment.pharaoh import Gold


class Choice(NamedTuple):
    """The head of a model and that of the model of the other direction, and why these."""

    forward: Head
    backward: Head | None
    why: str


def choose(
    forward: AllHeads,
    backward: AllHeads | None = None,
    gold: Sequence[Gold] | None = None,
    rule: Rule = strongest,
) -> Choice:
    """Choose heads: by the least alignment error, else by agreement, else as is usual.

    Args:
        forward: what the heads of the model from source to target attended to.
        backward: what those of the model from target to source did, if there is one.
        gold: the links that people drew, if there are some.
        rule: how weights become links.
    """
    for seen in (forward, backward):
        if seen is not None and not seen.heads:
            raise RegardError("choose: there are no sentences, so there is no head to choose")
    if gold is not None:
        there = by_error(forward, gold, rule)[0].head
        if backward is None:
            return Choice(there, None, "least alignment error")
        turned = [Gold(flipped(one.sure), flipped(one.possible)) for one in gold]
        return Choice(there, by_error(backward, turned, rule)[0].head, "least alignment error")
    if backward is not None:
        best = by_agreement(forward, backward, rule)[0]
        why = f"most agreement of both directions, {100 * best.agreement:.1f} %"
        return Choice(best.forward, best.backward, why)
    why = "the usual one, with neither gold links nor the other direction to choose by"
    return Choice(usual_head(forward.heads), None, why)


def usual_head(heads: Sequence[Head]) -> Head:
    """The head to read where there is nothing to choose by.

    Of several layers, that is the mean of the last but one: the last ones of a Transformer turn to
    what is said next (Garg et al., 2019; Chen et al., 2020).

    >>> print(usual_head([Head("0.cross", 0), Head("1.cross", 0), Head("2.cross", 0)]))
    1.cross, head 0
    """
    if not heads:
        raise RegardError("usual_head: there are no heads, expected at least one")
    sites = list(dict.fromkeys(head.site for head in heads))
    site = sites[-2] if len(sites) > 1 else sites[-1]
    return [head for head in heads if head.site == site][-1]
