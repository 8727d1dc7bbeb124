"""Links between words, and rules that make them from a matrix of weights.

A link is (source word, target word), both counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import RegardError

Links = frozenset[tuple[int, int]]
Rule = Callable[[Tensor], Tensor]  #: weights (*rest, target, source) to the chosen pairs

Weights = Float[Tensor, "*rest target source"]
Chosen = Bool[Tensor, "*rest target source"]


def strongest(weights: Weights) -> Chosen:
    """For each target word the source word with the largest weight, the first if equal.

    A word without any weight (all of it is on the end of the sentence) gets no link.
    """
    if not weights.shape[-1]:
        return weights > 0
    return _peak(weights, -1) & (weights > 0)


def mutual(weights: Weights) -> Chosen:
    """The pairs whose weight is the largest of both its row and its column."""
    if not weights.shape[-2]:
        return weights > 0
    return strongest(weights) & _peak(weights, -2)


def above(threshold: float) -> Rule:
    """A rule: all pairs with at least this weight, so that a word may have several links."""
    if not 0.0 < threshold <= 1.0:
        raise RegardError(f"threshold={threshold}, expected above 0 and at most 1")

    def chosen(weights: Weights) -> Chosen:
        return weights >= threshold

    return chosen


RULES: Mapping[str, Rule] = MappingProxyType({"strongest": strongest, "mutual": mutual})


def rule_named(rule: Rule | str | float) -> Rule:
    """A rule by its name, or `above` for a number; a function is returned as it is.

    >>> rule_named("0.3")(torch.tensor([[0.2, 0.8], [0.4, 0.6]])).int()
    tensor([[0, 1],
            [1, 1]], dtype=torch.int32)
    """
    if callable(rule):
        return rule
    if rule in RULES:
        return RULES[str(rule)]
    try:
        return above(float(rule))
    except ValueError as error:
        raise RegardError(
            f"rule {rule!r}, expected {', '.join(map(repr, RULES))} or a number"
        ) from error


def links_of(chosen: Bool[Tensor, "target source"]) -> Links:
    """Chosen pairs of one sentence, as links.

    >>> sorted(links_of(strongest(torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]]))))
    [(0, 0), (0, 2), (1, 1)]
    """
    return frozenset((source, target) for target, source in chosen.nonzero().tolist())


def flipped(links: Iterable[tuple[int, int]]) -> Links:
    """Links with source and target swapped, as needed for a model of the other direction.

    >>> sorted(flipped({(0, 2), (1, 1)}))
    [(1, 1), (2, 0)]
    """
    return frozenset((target, source) for source, target in links)


def _peak(weights: Weights, axis: int) -> Chosen:
    places = weights.argmax(axis, keepdim=True)
    return torch.zeros_like(weights, dtype=torch.bool).scatter_(axis, places, True)
