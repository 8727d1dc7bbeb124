"""Ways to keep one map of weights in a page; each takes the map strip by strip.

| form | what is kept | a weight of a pair |
|---|---|---|
| dense | every weight, float32 | exact |
| codes | every weight, 14 bits | within peak / 8191 |
| factors | queries, keys, each row's normaliser: the page multiplies them | within `FAR` |
| largest | the largest of each row, and which pairs are 0 | within peak / 2047, or not stored |

Codes are on a scale of square roots: code c of n stands for peak · (c / n)², so that small weights
are told apart.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.recipe import Dot, Recipe
from regard.types import Block
from regard.viewer.chunks import Chunks, ScaledRows, deflated

FAR = 1e-3  # error above which no number is shown as a weight
_FEATURE_BITS = 12  # of queries and keys whose features are shown, to two digits
LARGEST = 8  # weights of each row that are kept as 32-bit numbers beside factors
_WHOLE, _LISTED, _COARSE = 8191, 2047, 255  # codes of maps, of largest weights, of means
_FINEST = 32767  # codes of weights that exceed 1
_LOOKED_AT = 64  # rows of a mask at a time
_RUNS = 4  # of pairs that are not 0 in a row, up to which they are kept as such

Map = Float[Tensor, "query key"]
Strip = Float[Tensor, "row key"]


class Form(ABC):
    """A way to keep one map: takes its strips, each of other rows, and says what is kept."""

    @abstractmethod
    def take(self, rows: slice, strip: Strip) -> None:
        """Some rows of the map, each once; what lies behind the last column of a strip is 0."""

    @abstractmethod
    def packed(self, peak: float, chunks: Chunks) -> dict[str, Any] | None:
        """The manifest of the map, whose largest absolute weight is `peak`; None where it would be
        farther than `FAR` from the exact weights."""


class Whole(Form):
    """Every weight: as a 32-bit number, or as a code of 16 bits."""

    def __init__(self, queries: int, keys: int, exact: bool) -> None:
        self._exact = exact
        self._weights = torch.zeros(queries, keys)

    def take(self, rows: slice, strip: Strip) -> None:
        self._weights[rows, : strip.shape[1]] = strip

    def packed(self, peak: float, chunks: Chunks) -> dict[str, Any]:
        if self._exact:
            return noted({"kind": "dense", "weights": chunks.add(self._weights), "error": 0.0})
        levels = _levels(peak, _WHOLE)
        form = coded(self._weights, peak, levels, chunks)
        return noted({"kind": "codes", **form, "error": peak / levels})


class Largest(Form):
    """The largest weights of each row, and what is known of the others: which are 0, and the means
    of blocks of `side` × `side`."""

    def __init__(self, queries: int, keys: int, most: int, side: int, signed: bool) -> None:
        self._side, self._signed = side, signed
        self.most = min(most, keys)  #: of each row that are held until their number is known
        self._places = torch.zeros(self.most, queries, dtype=torch.int32)
        self._values = torch.zeros(self.most, queries)
        self._means = torch.zeros(-(-queries // side), -(-keys // side))
        self._received = torch.zeros(keys)
        self._runs = Runs(queries, keys)
        self._lock = threading.Lock()
        self._peak = 1.0
        self._manifest: dict[str, Any] = {}

    def take(self, rows: slice, strip: Strip) -> None:
        keys, seen = len(self._received), strip.shape[1]
        self._runs.take(rows, strip != 0)
        strip = F.pad(strip, (0, max(0, self.most - seen)))
        values, places = (strip.abs() if self._signed else strip).topk(self.most, dim=1)
        self._values[:, rows] = (strip.gather(1, places) if self._signed else values).t()
        self._places[:, rows] = places.t().int()
        first = rows.start // self._side
        lines = torch.stack([block[:, :seen].mean(0) for block in strip.split(self._side)])
        lines = F.pad(lines, (0, keys - seen))
        means = F.avg_pool1d(lines, self._side, ceil_mode=True)
        self._means[first : first + len(means)] = means
        received = strip[:, :seen].sum(0)
        with self._lock:
            self._received[:seen] += received

    def packed(self, peak: float, chunks: Chunks) -> dict[str, Any]:
        """What is kept; `finish` adds the largest weights, once their number is known."""
        self._peak = peak
        means, received = self._means, self._received / max(1, self._places.shape[1])
        self._manifest |= {
            "kind": "largest",
            "runs": self._runs.packed(chunks),
            "means": coded(means, float(means.abs().max()), _COARSE, chunks),
            "received": coded(received, float(received.abs().max()), _WHOLE, chunks),
            "side": self._side,
            "signed": self._signed,
        }
        return self._manifest

    def nbytes(self, rank: int) -> int:
        """Bytes of the weights of one rank: 0 for the largest of each row."""
        return len(deflated(self._codes(slice(rank, rank + 1)))) + len(
            deflated(self._numbers(slice(rank, rank + 1)))
        )

    def finish(self, count: int, chunks: Chunks) -> None:
        """Keep so many weights of each row."""
        ranks = slice(0, min(count, self.most))
        self._manifest |= {
            "count": ranks.stop,
            "places": chunks.add(self._numbers(ranks)),
            "weights": chunks.add(self._codes(ranks)),
            "unit": self._peak,
            "levels": _levels(self._peak, _LISTED),
            "error": self._peak / _levels(self._peak, _LISTED),
        }
        noted(self._manifest)

    def _codes(self, ranks: slice) -> Tensor:
        return root_codes(self._values[ranks], self._peak, _levels(self._peak, _LISTED))

    def _numbers(self, ranks: slice) -> Tensor:
        return self._places[ranks].to(
            torch.uint16 if self._received.numel() <= 1 << 16 else torch.int32
        )


class Runs:
    """Which pairs are not 0, as runs of keys in each row; one run where there are too many."""

    def __init__(self, queries: int, keys: int) -> None:
        self._shape = (queries, keys)
        self.exact = True  #: whether what lies in no run is 0, and nothing else
        self._strips: dict[int, tuple[Tensor, Tensor]] = {}

    def take(self, rows: slice, some: Bool[Tensor, "row key"]) -> None:
        """Which pairs of some rows are not 0."""
        ends, counts = _run_ends(some)
        if len(ends) > 2 * _RUNS * len(counts):  # from the first of a row to its last
            self.exact = False
            last = counts.cumsum(0)[counts > 0]
            outer = torch.stack([last - counts[counts > 0], last - 1], 1).flatten()
            ends, counts = ends[outer], counts.clamp_max(2)
        self._strips[rows.start] = counts // 2, ends

    def packed(self, chunks: Chunks) -> dict[str, Any] | None:
        """How many runs each row has, then their ends; None where nothing is 0."""
        queries, keys = self._shape
        counts, ends = torch.zeros(queries, dtype=torch.int32), []
        for start, (numbers, edges) in sorted(self._strips.items()):
            counts[start : start + len(numbers)] = numbers.int()
            ends.append(edges)
        whole = torch.cat(ends) if ends else torch.zeros(0)
        if bool((counts == 1).all()) and whole.equal(torch.tensor([0, keys]).repeat(queries)):
            return None
        return chunks.add_once(torch.cat([counts, whole.int()]))


class Factors:
    """Queries and keys of one example whose products are the scores, rounded to `bits`.

    Weights are exp(scale · query · key − normaliser). The normaliser of a row is the one that makes
    its largest weight exact, so that what rounding does to a whole row goes away.
    """

    def __init__(
        self,
        query: Float[Tensor, "head query width"],
        key: Float[Tensor, "group key width"],
        scale: float,
    ) -> None:
        self.query, self.key, self.scale = query, key, scale
        self._keys: dict[tuple[int, int], tuple[Tensor, dict[str, Any]]] = {}  # heads share them

    @staticmethod
    def numbers(recipe: Recipe) -> int:
        """How many numbers of 16 bits an example takes; 0 where weights are no plain products."""
        if not isinstance(recipe, Dot) or not recipe.is_softmax or not recipe.is_plain_product:
            return 0
        query, key = recipe.query[0], recipe.key[0]
        return query.numel() + key.numel() + 4 * query[..., 0].numel()

    @classmethod
    def of(cls, recipe: Recipe, example: int) -> Factors | None:
        """The factors of a plain dot product; None of another recipe, where they are no numbers, or
        where its mask is scattered."""
        if not isinstance(recipe, Dot) or cls.numbers(recipe) == 0:
            return None
        query, key = (part[example].detach().cpu().float() for part in (recipe.query, recipe.key))
        if not bool(query.isfinite().all()) or not bool(key.isfinite().all()):
            return None
        return cls(query, key, recipe.scale) if _has_few_runs(recipe, example) else None

    @property
    def count(self) -> int:
        """How many numbers of 16 bits are kept."""
        return self.query.numel() + self.key.numel() + 4 * self.query[..., 0].numel()

    def head(self, head: int, bits: int, exact: int, chunks: Chunks) -> FactorForm:
        """The form of one head; `exact` weights of each row come as 32-bit numbers."""
        group = head // (self.query.shape[0] // self.key.shape[0])
        if (group, bits) not in self._keys:
            rows = ScaledRows.of(self.key[group], bits)
            self._keys[group, bits] = rows.decoded(), chunks.add_rows(rows)
        query = ScaledRows.of(self.query[head], bits)
        return FactorForm(self, query, *self._keys[group, bits], bits, exact)


class FactorForm(Form):
    """One head as queries and keys."""

    def __init__(
        self,
        factors: Factors,
        query: ScaledRows,
        key: Float[Tensor, "key width"],
        key_chunk: dict[str, Any],
        bits: int,
        exact: int,
    ) -> None:
        self._factors, self._query, self._bits = factors, query, bits
        self._decoded, self._key, self._key_chunk = query.decoded() * factors.scale, key, key_chunk
        queries, keys = len(self._decoded), len(key)
        self._normaliser = torch.zeros(queries)
        self._exact = min(exact, keys)
        self._places = torch.zeros(queries, self._exact, dtype=torch.int64)
        self._values = torch.zeros(queries, self._exact)
        self._runs = Runs(queries, keys)
        self._errors: list[float] = [0.0]

    def take(self, rows: slice, strip: Strip) -> None:
        """Find the normalisers of some rows, and the largest error that is left."""
        nothing = strip == 0
        self._runs.take(rows, ~nothing)
        scores = self._decoded[rows] @ self._key[: strip.shape[1]].t()
        peak, position = strip.max(1, keepdim=True)
        at_peak = scores.gather(1, position) - peak.log()
        normaliser = torch.where(peak > 0, at_peak, 0.0)
        self._normaliser[rows] = normaliser[:, 0]
        difference = scores.sub_(normaliser).exp_().sub_(strip).abs_().masked_fill_(nothing, 0.0)
        if self._exact:
            values, places = strip.topk(self._exact, dim=1, sorted=False)
            self._values[rows], self._places[rows] = values, places
            difference.scatter_(1, places, 0.0)
        self._errors.append(float(difference.max()))

    def packed(self, peak: float, chunks: Chunks) -> dict[str, Any] | None:
        error = max(self._errors)
        if not error <= FAR or not self._runs.exact:
            return None
        top = None
        if self._exact:
            numbers = self._places.to(torch.uint16 if len(self._key) <= 1 << 16 else torch.int32)
            top = {"places": chunks.add(numbers), "values": chunks.add(self._values)}
        form = {
            "kind": "factors",
            "bits": self._bits,
            "scale": self._factors.scale,
            "query": chunks.add_rows(self._query),
            "key": self._key_chunk,
            "lse": chunks.add(self._normaliser),
            "runs": self._runs.packed(chunks),
            "top": top,
            "count": self._exact,
            "error": error,
        }
        return noted(form)


def features_of(recipe: Recipe, example: int, chunks: Chunks) -> dict[str, Any] | None:
    """Queries and keys beside weights that are kept as they are: their products, feature by
    feature, make the scores. None of a recipe whose scores are something else."""
    if not isinstance(recipe, Dot) or not recipe.is_plain_product:
        return None
    query, key = (part[example].detach().cpu().float() for part in (recipe.query, recipe.key))
    if not bool(query.isfinite().all()) or not bool(key.isfinite().all()):
        return None
    rows = [ScaledRows.of(part.flatten(0, 1), _FEATURE_BITS) for part in (query, key)]
    return {
        "scale": recipe.scale,
        "query": chunks.add_rows(rows[0]),
        "key": chunks.add_rows(rows[1]),
        "groups": len(key),
    }


def noted(form: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a map with a note that says what it holds."""
    form["note"] = words(form)
    return form


def words(form: dict[str, Any]) -> str:
    """What a map holds of its weights, and how near they are."""
    near = f"within {rounded_up(form['error'])} of the exact ones"
    count = form.get("count", 0)
    largest = f"the {count} largest" if count > 1 else "the largest"
    if form["kind"] == "dense":
        return "every weight is kept exactly, as a 32-bit number"
    if form["kind"] == "codes":
        return f"weights are codes of {form['levels'].bit_length() + 1} bits, {near}"
    if form["kind"] == "factors":
        top = f"; {largest} of each row are kept as 32-bit numbers" if count else ""
        return f"weights are multiplied from queries and keys of {form['bits']} bits, {near}{top}"
    means = f"colours of other pairs are means of {form['side']} × {form['side']}"
    if not count:
        return f"no weight of a pair is stored; {means}"
    return f"{largest} of each row {'are' if count > 1 else 'is'} stored, {near}; {means}"


def coded(values: Tensor, peak: float, levels: int, chunks: Chunks) -> dict[str, Any]:
    """Numbers up to `peak` as codes, and how a page reads them."""
    codes = root_codes(values, peak, levels)
    return {"weights": chunks.add(codes), "unit": peak, "levels": levels}


def _levels(peak: float, least: int) -> int:
    """How many codes there are: more where a weight may exceed 1."""
    return min(_FINEST, max(least, math.ceil(_LISTED * peak)))


def root_codes(values: Tensor, peak: float, levels: int) -> Tensor:
    """Whole numbers from −`levels` to `levels` on a scale of square roots."""
    shares = (values.abs() / (peak or 1.0)).clamp(0.0, 1.0).sqrt_()
    return shares.mul_(levels).round_().copysign_(values).to(torch.int16)


def rounded_up(error: float) -> str:
    """Two digits of a bound, which must not be rounded down."""
    if not error:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(error)) - 1)
    return f"{math.ceil(error / unit - 1e-9) * unit:.2g}"


def _has_few_runs(recipe: Dot, example: int) -> bool:
    """Whether the permitted keys of a row are few runs, by some rows of one head."""
    if recipe.mask is None:
        return True
    _, _, queries, keys = recipe.shape
    mask = recipe.mask.at(example, 0)
    for start in {0, queries // 2, max(0, queries - _LOOKED_AT)}:
        rows = slice(start, min(start + _LOOKED_AT, queries))
        block = Block.of(rows, slice(0, keys), queries, keys)
        allowed = mask.block(block, torch.device("cpu"))
        if not isinstance(allowed, bool):
            every = allowed.expand(1, 1, block.height, keys)[0, 0]
            if len(_run_ends(every)[0]) > 2 * _RUNS * block.height:
                return False
    return True


def _run_ends(some: Bool[Tensor, "row key"]) -> tuple[Int[Tensor, " end"], Int[Tensor, " row"]]:
    """Where runs begin and end, row by row, and how many such ends each row has."""
    rows, keys = some.shape
    edges = torch.zeros(rows, -(-(keys + 1) // 8), 8, dtype=torch.bool)
    flat = edges.view(rows, -1)
    flat[:, 0], flat[:, keys] = some[:, 0], some[:, -1]
    torch.logical_xor(some[:, 1:], some[:, :-1], out=flat[:, 1:keys])
    row, eight = edges.view(torch.int64)[..., 0].nonzero().unbind(1)  # few of many: by eights
    which, place = edges[row, eight].nonzero().unbind(1)
    return 8 * eight[which] + place, torch.bincount(row[which], minlength=rows)
