"""What statistics add up: a few tensors of fixed size, which merge in any order.

A part takes the shape of what is first added to it. `arrays` are all that it knows, so that it can
be saved and loaded as they are.

>>> import torch
>>> first, second = Ratio(), Ratio()
>>> first.add(torch.tensor([[2.0], [4.0]]), torch.tensor([[1.0], [2.0]]))  # two examples, one head
>>> second.add(torch.tensor([[9.0]]), torch.tensor([[3.0]]))
>>> first.merge(second)
>>> first.result().mean, first.result().examples
(tensor([2.5000], dtype=torch.float64), tensor([3]))
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from regard.corpus.estimates import Binned, Estimate, Example, Strong
from regard.errors import RegardError

Arrays = dict[str, Tensor]
_GRAIN = 2.0**20  # scores are told apart in steps of one part in it: noise of float32 is no rank


class Part(ABC):
    """Tensors that add up over a corpus."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}  #: empty as long as nothing was added

    @abstractmethod
    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        """The arrays of two corpora together."""

    @abstractmethod
    def result(self) -> Any:
        """The answer."""

    def merge(self, other: Part) -> None:
        """Add what another copy of this part saw."""
        self.take(other.arrays)

    def take(self, arrays: Arrays) -> None:
        """Add the arrays of another copy."""
        if not arrays:
            return
        if not self.arrays:
            self.arrays = dict(arrays)
            return
        for name in self.sized:
            mine, theirs = self.arrays[name].shape, arrays[name].shape
            if mine != theirs:
                raise RegardError(
                    f"{type(self).__name__}: {tuple(theirs)}, expected {tuple(mine)} as before: "
                    "what is added up has one size for all texts"
                )
        self.arrays = self.joined(self.arrays, arrays)

    #: arrays whose sizes must agree
    sized: tuple[str, ...] = ()


class Total(Part):
    """A sum of numbers, in float64."""

    sized = ("total",)

    def add(self, values: Num[Tensor, "*shape"]) -> None:
        """Add a tensor, already summed over examples."""
        self.take({"total": _double(values)})

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        return {"total": mine["total"] + theirs["total"]}

    def result(self) -> Float[Tensor, "*shape"]:
        return self.arrays["total"]


class Count(Part):
    """A sum of whole numbers, exact."""

    sized = ("count",)

    def add(self, numbers: Int[Tensor, "*shape"]) -> None:
        """Add a tensor, already summed over examples."""
        self.take({"count": numbers.detach().cpu().long()})

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        return {"count": mine["count"] + theirs["count"]}

    def result(self) -> Int[Tensor, "*shape"]:
        return self.arrays["count"]


class Largest(Part):
    """The largest of each number."""

    sized = ("largest",)

    def add(self, values: Num[Tensor, "*shape"]) -> None:
        """Add a tensor, already the largest over examples."""
        self.take({"largest": _double(values)})

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        return {"largest": torch.maximum(mine["largest"], theirs["largest"])}

    def result(self) -> Float[Tensor, "*shape"]:
        return self.arrays["largest"]


class Ratio(Part):
    """One sum over another, as the share of a whole, and how sure it is.

    Values of one example depend on each other, so that examples are what is drawn at random: the
    error comes from how much the ratio differs between them (Cochran, Sampling Techniques, 3rd
    edition, section 6.4). Second moments are about the mean, and merged as Chan, Golub and LeVeque
    (1979) do.
    """

    sized = ("total",)

    def add(
        self, total: Num[Tensor, " batch *shape"], number: Num[Tensor, " batch *#shape"]
    ) -> None:
        """Add both sums of each example; examples with a number of 0 do not count."""
        self.take(self.of(_double(total), _double(number)))

    @staticmethod
    def of(
        total: Float[Tensor, " batch *shape"], number: Float[Tensor, " batch *#shape"]
    ) -> Arrays:
        """The arrays of a batch."""
        total, number = torch.broadcast_tensors(total, number)
        counted = number > 0
        examples = counted.sum(0)
        sums = torch.where(counted, total, 0.0).sum(0), number.sum(0)
        total_rest, number_rest = (
            torch.where(counted, value - mean / examples, 0.0)
            for value, mean in zip((total, number), sums)
        )
        return {
            "examples": examples,
            "total": sums[0],
            "number": sums[1],
            "total_total": total_rest.square().sum(0),
            "total_number": (total_rest * number_rest).sum(0),
            "number_number": number_rest.square().sum(0),
        }

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        sums = {name: mine[name] + theirs[name] for name in mine}
        first, second = mine["examples"], theirs["examples"]
        both = (first > 0) & (second > 0)
        share = first.double() * second / sums["examples"]

        def apart(name: str) -> Tensor:
            return torch.where(both, theirs[name] / second - mine[name] / first, 0.0)

        total, number = apart("total"), apart("number")
        share = torch.where(both, share, 0.0)
        sums["total_total"] += share * total.square()
        sums["total_number"] += share * total * number
        sums["number_number"] += share * number.square()
        return sums

    def result(self) -> Estimate:
        arrays = self.arrays
        mean = arrays["total"] / arrays["number"]
        squares = (
            arrays["total_total"]
            - 2 * mean * arrays["total_number"]
            + mean.square() * arrays["number_number"]
        ).clamp_min(0.0)
        examples = arrays["examples"]
        spread = (squares * examples / (examples - 1)).sqrt()  # NaN of a single example
        return Estimate(
            mean=mean,
            error=torch.where(examples > 1, spread / arrays["number"], torch.nan),
            number=arrays["number"],
            examples=examples,
        )


class Mean(Ratio):
    """The mean of values over the rows of a corpus, their variance, and how sure the mean is."""

    def add(
        self,
        values: Num[Tensor, "batch head query *more"],
        where: Bool[Tensor, " batch #head query"],
    ) -> None:
        """Add a value for each row, of those in `where`, as `Attention.rows`."""
        values, where = _double(values), where.detach().cpu()
        where = where.view(*where.shape, *[1] * (values.dim() - 3)).expand(values.shape)
        values = torch.where(where, values, 0.0)
        arrays = self.of(values.sum(2), where.sum(2).double())
        mean = (arrays["total"] / arrays["number"]).nan_to_num(0.0)
        rest = torch.where(where, values - mean[:, None], 0.0)
        self.take(arrays | {"squares": rest.square().sum((0, 2))})

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        sums = super().joined(mine, theirs)
        both = (mine["number"] > 0) & (theirs["number"] > 0)
        apart = theirs["total"] / theirs["number"] - mine["total"] / mine["number"]
        share = mine["number"] * theirs["number"] / sums["number"]
        sums["squares"] += torch.where(both, share * apart.square(), 0.0)
        return sums

    def result(self) -> Estimate:
        number = self.arrays["number"]
        variance = torch.where(number > 1, self.arrays["squares"] / (number - 1), torch.nan)
        return super().result()._replace(variance=variance)


class Bins(Part):
    """How values are spread: counts in equal bins, the least value and the largest one.

    Args:
        low: lower end of the first bin.
        high: upper end of the last bin; values beyond an end fall into the bin there.
        bins: how many.
    """

    sized = ("counts",)

    def __init__(self, low: float, high: float, bins: int) -> None:
        super().__init__()
        if bins < 1 or low >= high:
            raise RegardError(f"Bins: {bins} bins from {low} to {high}, expected low < high")
        self.low, self.high, self.bins = low, high, bins

    def add(
        self, values: Num[Tensor, "batch head query"], where: Bool[Tensor, " batch #head query"]
    ) -> None:
        """Add a value for each row, of those in `where`, as `Attention.rows`."""
        values, where = _double(values), where.detach().cpu().expand(values.shape)
        heads = values.shape[1]
        index = (values - self.low) * (self.bins / (self.high - self.low))
        index = index.floor().clamp(0, self.bins - 1).nan_to_num(0.0).long()
        index += torch.arange(heads)[:, None] * self.bins
        counts = torch.bincount(index[where], minlength=heads * self.bins)
        self.take(
            {
                "counts": counts.view(heads, self.bins),
                "least": values.masked_fill(~where, torch.inf).amin((0, 2)),
                "largest": values.masked_fill(~where, -torch.inf).amax((0, 2)),
            }
        )

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        return {
            "counts": mine["counts"] + theirs["counts"],
            "least": torch.minimum(mine["least"], theirs["least"]),
            "largest": torch.maximum(mine["largest"], theirs["largest"]),
        }

    def result(self) -> Binned:
        return Binned(**self.arrays, low=self.low, width=(self.high - self.low) / self.bins)


class Strongest(Part):
    """The examples with the highest scores of each head, exactly; of equals the first of a corpus.

    Args:
        k: how many for each head.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        if k < 1:
            raise RegardError(f"Strongest: k={k}, expected at least 1")
        self.k = k

    def add(
        self,
        scores: Num[Tensor, "batch head"],
        pairs: Int[Tensor, "batch head 2"],
        examples: Sequence[int],
        shown: Mapping[int, str],
    ) -> None:
        """Add a score for each example and head.

        Args:
            scores: finite where an example may be shown, −∞ elsewhere.
            pairs: the query and the key that are meant.
            examples: the number of each example in the corpus.
            shown: what is shown of an example as JSON, `Batch.shown`, by its number.
        """
        batch, heads = scores.shape
        numbers = torch.tensor(list(examples), dtype=torch.long)
        self.take(
            {
                "scores": torch.round(_double(scores) * _GRAIN).div(_GRAIN).T.contiguous(),
                "examples": numbers.expand(heads, batch),
                "pairs": pairs.detach().cpu().transpose(0, 1).contiguous(),
                **_written({number: shown[number].encode() for number in examples}),
            }
        )

    def take(self, arrays: Arrays) -> None:
        """Add the arrays of another copy."""
        if not arrays:
            return
        nothing = {name: array[:, :0] for name, array in arrays.items() if name in _RANKED}
        self.arrays = self.joined(self.arrays or {**nothing, **_written({})}, arrays)

    def joined(self, mine: Arrays, theirs: Arrays) -> Arrays:
        both = {name: torch.cat([mine[name], theirs[name]], 1) for name in _RANKED}
        order = both["examples"].argsort(dim=1, stable=True)
        scores = both["scores"].gather(1, order)
        order = order.gather(1, scores.argsort(dim=1, descending=True, stable=True))[:, : self.k]
        ranked = {
            "scores": both["scores"].gather(1, order),
            "examples": both["examples"].gather(1, order),
            "pairs": both["pairs"].gather(1, order[..., None].expand(-1, -1, 2)),
        }
        kept = set(ranked["examples"][ranked["scores"] > -torch.inf].tolist())
        shown = {**_read(mine), **_read(theirs)}
        return ranked | _written({number: shown[number] for number in sorted(kept)})

    def result(self) -> list[list[Strong]]:
        """For each head, the strongest first."""
        shown = {n: Example(n, **json.loads(text)) for n, text in _read(self.arrays).items()}
        columns = (self.arrays[name].tolist() for name in _RANKED)
        return [
            [
                Strong(score, shown[number], *pair)
                for score, number, pair in zip(*of_head)
                if score > -torch.inf
            ]
            for of_head in zip(*columns)
        ]


_RANKED = ("scores", "examples", "pairs")


def _written(shown: Mapping[int, bytes]) -> Arrays:
    """Numbered texts as arrays."""
    joined = bytearray(b"".join(shown.values()))
    nothing = torch.zeros(0, dtype=torch.uint8)
    return {
        "shown": torch.tensor(list(shown), dtype=torch.long),
        "lengths": torch.tensor([len(text) for text in shown.values()], dtype=torch.long),
        "utf8": torch.frombuffer(joined, dtype=torch.uint8) if joined else nothing,
    }


def _read(arrays: Arrays) -> dict[int, bytes]:
    text, shown, start = arrays["utf8"].numpy().tobytes(), {}, 0
    for number, length in zip(arrays["shown"].tolist(), arrays["lengths"].tolist()):
        shown[number] = text[start : start + length]
        start += length
    return shown


def _double(values: Tensor) -> Tensor:
    return values.detach().cpu().double()
