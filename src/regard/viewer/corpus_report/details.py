"""What the page tells of one head: its entropy, distances, types, texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.statistics.head_types import HeadTypes
from regard.corpus import (
    Binned,
    CategoryWeights,
    Collection,
    Example,
    HeadFigures,
    HeadSharpness,
    Profile,
    Strong,
)
from regard.viewer.chunks import Chunks
from regard.viewer.corpus_report.quantities import quantities_of

_MOST_BINS = 64  # bars that a chart has room for
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_KEPT_BITS = 12  # of a fraction, of numbers that are drawn: four digits
_NO_TYPE = 255
_ALIKE = 1e-3  # of the largest share, within which profiles are drawn as one


class Details:
    """The details of a collection as a manifest and chunks."""

    def __init__(self, collection: Collection, chunks: Chunks) -> None:
        self.collection, self.chunks = collection, chunks
        self.examples: dict[int, int] = {}  #: the place of each example in `documents`
        self.documents: list[Example] = []
        self.not_shown: dict[str, None] = {}  #: statistics that the page has no picture for

    def site(self, site: str) -> dict[str, Any]:
        """Those of one attention."""
        found: dict[str, Any] = {"types": None, "profile": None}
        found |= {"bins": [], "between": [], "strongest": []}
        for name in self.collection:
            result = self.collection[name][site]
            label = name.replace("_", " ")
            if isinstance(result, HeadFigures) and found["types"] is None:
                found["types"] = self._drawn(
                    result.type_counts / result.type_counts.sum(1, keepdim=True)
                )
                found["profile"] = self._profile(result.profile)
            elif isinstance(result, HeadSharpness):
                found["bins"].append({"label": "entropy", **self._binned(result.entropies)})
            elif isinstance(result, Binned):
                found["bins"].append({"label": label, **self._binned(result)})
            elif isinstance(result, CategoryWeights):
                found["between"].append({"label": label, **self._between(result)})
            elif _are_strongest(result):
                found["strongest"].append({"label": label, "heads": self._strongest(result)})
            elif next(quantities_of(name, result), None) is None:
                self.not_shown[name] = None
        return found

    def texts(self) -> dict[str, Any]:
        """The documents that were shown, once each; after all sites."""
        shown = [{"number": e.number, "text": e.text, "tokens": e.tokens} for e in self.documents]
        return json_chunk(self.chunks, shown)

    def types(self, sites: Mapping[str, int]) -> dict[str, Any]:
        """The type of each head, and whether a sink was set aside for it; 255 where none is known.

        Args:
            sites: how many heads each attention has.
        """
        numbers, with_sink = [], []
        for site, heads in sites.items():
            results = (self.collection[name].get(site) for name in self.collection)
            collected = [result.types for result in results if isinstance(result, HeadFigures)]
            nothing = HeadTypes(torch.full((heads,), _NO_TYPE), torch.zeros(heads))
            types = collected[0] if collected else nothing
            numbers.append(types.numbers)
            with_sink.append(types.with_sink)
        return {
            "types": self.chunks.add(torch.cat(numbers).to(torch.uint8)),
            "with_sink": self.chunks.add(torch.cat(with_sink).to(torch.uint8)),
        }

    def _profile(self, profile: Profile) -> dict[str, Any]:
        even = profile.even
        if bool(((even - even[:1]).abs() <= _ALIKE * even.max()).all()):
            even = even[:1]
        return {
            "offset": profile.offset.tolist(),
            "width": profile.width.tolist(),
            "share": self._drawn(profile.share),
            "even": self._drawn(even),
        }

    def _binned(self, binned: Binned) -> dict[str, Any]:
        """Shares of bins, as few as a chart has room for; quantiles are those of all bins."""
        used = binned.counts.sum(0).nonzero()[:, 0]
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
        first = 0 if binned.low == 0.0 else first
        joined = -(-(last - first) // _MOST_BINS)
        last += (first - last) % joined
        counts = torch.nn.functional.pad(binned.counts, (0, max(0, last - binned.counts.shape[1])))[
            :, first:last
        ]
        counts = counts.unflatten(1, (-1, joined)).sum(2)
        return {
            "low": binned.low + first * binned.width,
            "width": binned.width * joined,
            "shares": self._drawn(counts / binned.number[:, None].clamp_min(1)),
            "at": list(_QUANTILES),
            "error": binned.width,
            "quantiles": self.chunks.add(binned.quantiles(*_QUANTILES).float()),
        }

    def _between(self, weights: CategoryWeights) -> dict[str, Any]:
        return {
            "categories": weights.categories,
            "mean": self._drawn(weights.between.mean),
            "error": self._drawn(weights.between.error),
            "number": self._drawn(weights.between.number[:, :, 0]),
        }

    def _strongest(self, heads: Sequence[Sequence[Strong]]) -> dict[str, Any]:
        """Document, query and key of each example, and its score, as far as there are any."""
        most = max(map(len, heads), default=0)
        places, scores = [], []
        for head in heads:
            rows = [[self._place(each.example), each.query, each.key] for each in head]
            places.append(rows + [[-1, -1, -1]] * (most - len(rows)))
            scores.append([each.score for each in head] + [torch.nan] * (most - len(head)))
        return {
            "places": self.chunks.add(torch.tensor(places, dtype=torch.int32).view(-1, most, 3)),
            "scores": self.chunks.add(torch.tensor(scores).float().view(-1, most)),
        }

    def _place(self, example: Example) -> int:
        if example.number not in self.examples:
            self.examples[example.number] = len(self.documents)
            self.documents.append(example)
        return self.examples[example.number]

    def _drawn(self, values: Float[Tensor, "*shape"]) -> dict[str, Any]:
        """Numbers with the digits that can be seen, which takes half the bytes."""
        bits = values.float().contiguous().view(torch.int32)
        lost = 23 - _KEPT_BITS
        rounded = (bits + (1 << (lost - 1))) & -(1 << lost)
        return self.chunks.add(torch.where(values.isfinite(), rounded, bits).view(torch.float32))


def json_chunk(chunks: Chunks, data: Any) -> dict[str, Any]:
    """Data of any form as a chunk."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    return chunks.add(torch.frombuffer(bytearray(text), dtype=torch.uint8))


def strongest_of(collection: Collection) -> Iterator[tuple[str, int, int, Strong]]:
    """Site, head, rank and example; the first of every head before the second of any."""
    ranked = [
        (rank, site, head, strong)
        for name in collection
        for site, result in collection[name].items()
        if _are_strongest(result)
        for head, examples in enumerate(result)
        for rank, strong in enumerate(examples)
    ]
    for rank, site, head, strong in sorted(ranked, key=lambda each: each[0]):
        yield site, head, rank, strong


def _are_strongest(result: Any) -> bool:
    return isinstance(result, list) and all(
        isinstance(head, list) and all(isinstance(each, Strong) for each in head) for head in result
    )
