"""What heads are coloured and sorted by: every number of theirs that a collection has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from regard.corpus import CategoryWeights, Collection, Estimate, HeadFigures
from regard.corpus.collection import estimates_of

#: What the figures of heads mean, and whether they are shares.
_FIGURES = {
    "entropy": ("entropy of a row, in nats", False),
    "evenness": ("entropy of a row over that of even attention to all keys in sight", True),
    "effective": ("how many keys a row rests on", False),
    "distance": ("how many tokens away what is attended to lies", False),
    "spread": ("standard deviation of that distance", False),
    "itself": ("weight of a token on itself", True),
    "previous": ("weight on the token just before", True),
    "next": ("weight on the token just after", True),
    "sink": ("weight on the first token", True),
    "special": ("weight on special tokens, such as [CLS]", True),
    "local": ("weight within the window, four tokens to either side unless set", True),
    "peak": ("the largest share of all attention in a text that one token receives", True),
    "induction": ("weight on what followed earlier copies of the token", True),
    "duplicate": ("weight on earlier copies of the token", True),
    "positional": ("share of the pattern that distance explains", True),
    "aside": ("weight on special tokens and on tokens that receive 40 % of all attention", True),
}
_TITLES = {"sink": "first token", "aside": "set aside"}
_STABILITY = "share of texts in which the head has its type"


class Quantity(NamedTuple):
    """A number of each head."""

    key: str  #: tells it from others: "figures.entropy"
    group: str  #: the statistic it is from
    label: str
    meaning: str
    share: bool = False  #: whether it is one of a whole

    def as_dict(self) -> dict[str, Any]:
        """As the page reads it."""
        return self._asdict()


def quantities_of(statistic: str, result: Any) -> Iterator[tuple[Quantity, Estimate]]:
    """The numbers of the heads of one attention."""
    group = statistic.replace("_", " ")
    if isinstance(result, HeadFigures):
        for name, estimate in result.figures.items():
            meaning, share = _FIGURES[name]
            title = _TITLES.get(name, name)
            if name == "evenness":  # a ratio of two entropies: its own number is in nats
                estimate = estimate._replace(number=result.figures["entropy"].number)
            yield Quantity(f"{statistic}.{name}", group, title, meaning, share), estimate
        key = f"{statistic}.stability"
        yield Quantity(key, group, "stability of the type", _STABILITY, True), _stability(result)
    elif isinstance(result, CategoryWeights):
        for number, category in enumerate(result.categories):
            estimate = Estimate(*(values[:, number] for values in result.received[:4]))
            meaning = f"weight that tokens of category “{category}” receive"
            label = f"on {category}"
            yield Quantity(f"{statistic}.{category}", group, label, meaning, True), estimate
    else:
        for name, estimate in estimates_of(result, ""):
            if "[" not in name:
                key, label = f"{statistic}.{name}".rstrip("."), name.replace("_", " ") or group
                yield (
                    Quantity(key, group, label, f"{group}: {label}", _are_shares(estimate)),
                    estimate,
                )


def _stability(figures: HeadFigures) -> Estimate:
    """In how many texts a head is of the type that it has over all of them."""
    number = figures.type_counts.sum(1)
    own = figures.type_counts.gather(1, figures.types.numbers[:, None])[:, 0]
    share = own.double() / number
    error = (share * (1 - share) / (number - 1)).sqrt()
    return Estimate(share, torch.where(number > 1, error, math.nan), number.double(), number)


def _are_shares(estimate: Estimate) -> bool:
    mean = estimate.mean[estimate.mean.isfinite()]
    return bool(((mean >= 0) & (mean <= 1)).all())


def all_quantities(collection: Collection) -> dict[Quantity, dict[str, Estimate]]:
    """The numbers of all heads, by attention."""
    by_quantity: dict[Quantity, dict[str, Estimate]] = {}
    meanings: dict[str, Quantity] = {}
    for statistic in collection:
        for site, result in collection[statistic].items():
            for quantity, estimate in quantities_of(statistic, result):
                first = meanings.setdefault(quantity.key, quantity)
                by_quantity.setdefault(first, {})[site] = estimate
    return by_quantity
