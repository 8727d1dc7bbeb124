"""How the weights of each site are kept, so that a page stays within a number of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.recipe import Dot
from regard.types import Shape
from regard.viewer.chunks import Chunks
from regard.viewer.forms import LARGEST, Factors, Form, Largest, Whole
from regard.viewer.scene import Scene
from regard.viewer.walk import THUMBNAIL

TEXT = 4 / 3  # bytes of base64 for one of data
_MAPS = (1 << 18, 1 << 22)  # cells that are set aside for a map over all layers, and the most
_EXACT = 1_200_000  # weights up to which all are kept
_FLOAT = 0.9 * 4 * TEXT  # bytes in the file for one weight kept as it is,
_CODE = 0.78 * 2 * TEXT  # as a code,
_FEATURE = 1.75 * TEXT  # for a number of a query or key beside weights,
_TOP = 0.75 * 6 * TEXT  # for one of the largest weights as a 32-bit number, with its place,
_LISTED = 0.75 * 4 * TEXT  # the same as a code,
_LEAST_LISTED = 1.5 * TEXT  # and where it is deflated well
_BITS = (14, 13, 12)  # of queries and keys, the most that fit,
_FINE = 16  # and of those of a head that needs more, where all would fit with so many
_SIDES = (4, 8, 16, 32, 64)  # of blocks whose means are kept
_MEANS = 0.12  # share of what is left that they may take
_MOST = 256  # largest weights of a row
OF_STACKS = 16  # largest weights of each row of a map over all layers


@dataclass
class Plan:
    """All weights exactly; or factors where there are some, codes or the largest of others."""

    exact: bool
    features: bool  #: whether queries and keys are kept beside exact weights
    factors: dict[int, Factors]  #: by number of the site
    bits: int = _BITS[0]  #: of factors
    fine: bool = False  #: whether a head may have more bits
    top: int = 0  #: weights of each row that are exact beside factors
    coded: bool = True  #: whether sites without factors are kept as codes
    most: int = 1  #: largest weights of each row that may fit, of a site without codes
    side: int = _SIDES[-1]  #: of the blocks whose means go with them
    map_cells: int = _MAPS[1]  #: how many cells a map over all layers may have

    @classmethod
    def of(cls, scene: Scene, budget: int) -> Plan:
        """A plan for a number of bytes."""
        shapes = [site.record.shape for site in scene.sites]
        exact = sum(map(_weights, shapes))
        if exact <= min(_EXACT, budget * 0.8 / _FLOAT):
            left = budget * 0.8 - exact * _FLOAT
            return cls(True, _feature_bytes(scene) <= left, {})
        aside = min(_MAPS[0], int(0.04 * budget / (_CODE * len(scene.parts))))
        left = budget * 0.97 - _overhead(scene, aside)
        factors, bits = _factors(scene, left)
        left -= sum(each.count for each in factors.values()) * bits / 8 * TEXT
        rows = sum(shapes[number].heads * shapes[number].queries for number in factors)
        top = LARGEST if rows * LARGEST * _TOP <= left else 0
        left -= rows * top * _TOP
        finer = sum(each.count for each in factors.values()) * (_FINE - bits) / 8 * TEXT
        fine = finer <= left
        others = [shape for number, shape in enumerate(shapes) if number not in factors]
        cost = sum(map(_weights, others)) * _CODE
        if cost <= left:
            cells = min(_MAPS[1], aside + int((left - cost) / (4 * len(scene.parts) * _CODE)))
            return cls(False, False, factors, bits, fine, top, map_cells=cells)
        side = _side(others, left)
        left -= _mean_bytes(others, side)
        rows = sum(shape.heads * shape.queries for shape in others)
        most = min(_MOST, max(1, int(left / (rows * _LEAST_LISTED))))
        return cls(False, False, factors, bits, False, top, False, most, side, aside)

    def is_exact(self, number: int) -> bool:
        """Whether some weights of a site are kept as the very numbers of the record."""
        return self.exact or (number in self.factors and self.top > 0)

    def forms(self, scene: Scene, number: int, head: int, chunks: Chunks) -> Iterator[Form]:
        """How a head is kept; each next one where that turns out to be too far from its weights."""
        record = scene.sites[number].record
        if number in self.factors:
            for bits in (self.bits, _FINE) if self.fine else (self.bits,):
                yield self.factors[number].head(head, bits, self.top, chunks)
            yield self._instead(scene, number)
        elif self.exact or self.coded:
            yield Whole(*record.shape[2:], self.exact)
        else:
            yield Largest(*record.shape[2:], self.most, self.side, record.kind == "signed")

    def _instead(self, scene: Scene, number: int) -> Largest:
        """The largest weights of each row within the bytes that factors would take."""
        record = scene.sites[number].record
        alone = record.shape._replace(heads=1)
        left = self.factors[number].count * self.bits / 8 * TEXT / record.shape.heads
        left += alone.queries * self.top * _TOP
        side = _side([alone], left)
        count = int((left - _mean_bytes([alone], side)) / (alone.queries * _LISTED))
        most = min(_MOST, max(1, count))
        return Largest(*alone[2:], most, side, record.kind == "signed")

    def of_stack(self, queries: int, keys: int, signed: bool) -> Form:
        """How a map over all layers is kept."""
        if self.exact or queries * keys <= self.map_cells:
            return Whole(queries, keys, self.exact)
        shape = Shape(1, 1, queries, keys)
        side = next(s for s in _SIDES if s == _SIDES[-1] or _cells(shape, s) <= _MAPS[0] // 4)
        return Largest(queries, keys, OF_STACKS, side, signed)


def _factors(scene: Scene, left: float) -> tuple[dict[int, Factors], int]:
    """Queries and keys of all sites that have them, if they fit, and how many bits they get."""
    recipes = {number: site.record.recipe.plain() for number, site in enumerate(scene.sites)}
    numbers = {number: Factors.numbers(recipe) for number, recipe in recipes.items()}
    few = [
        number
        for number, count in numbers.items()
        if count and count * 2 * TEXT < _weights(scene.sites[number].record.shape) * _CODE
    ]
    cost = sum(numbers[number] for number in few) / 8 * TEXT  # for each bit
    bits = next((bits for bits in _BITS if cost * bits <= left), 0)
    if not bits:
        return {}, _BITS[0]
    every = {number: Factors.of(recipes[number], scene.example) for number in few}
    return {number: factors for number, factors in every.items() if factors is not None}, bits


def _feature_bytes(scene: Scene) -> float:
    """Bytes of queries and keys beside exact weights."""
    recipes = [site.record.recipe.plain() for site in scene.sites]
    dots = [r for r in recipes if isinstance(r, Dot) and r.is_plain_product]
    parts = [part[0] for r in dots for part in (r.query, r.key)]
    return sum(part.numel() + 2 * part[..., 0].numel() for part in parts) * _FEATURE


def _weights(shape: Shape) -> int:
    return shape.heads * shape.queries * shape.keys


def _cells(shape: Shape, side: int) -> int:
    """Blocks of a site."""
    return shape.heads * -(-shape.queries // side) * -(-shape.keys // side)


def _mean_bytes(shapes: Sequence[Shape], side: int) -> float:
    """Bytes of the means of blocks, and of the mean that each key receives."""
    means = sum(_cells(shape, side) for shape in shapes) * 0.6 * TEXT
    return means + sum(shape.heads * shape.keys for shape in shapes) * 1.5 * TEXT


def _side(shapes: Sequence[Shape], left: float) -> int:
    """The smallest blocks whose means take a small share of the bytes that are left."""
    fitting = (side for side in _SIDES if _mean_bytes(shapes, side) <= _MEANS * left)
    return next(fitting, _SIDES[-1])


def _overhead(scene: Scene, cells: int) -> float:
    """Bytes of the maps over all layers, and of small pictures."""
    firsts = [scene.sites[part.sites[0]].record.shape for part in scene.parts]
    whole = sum(min(cells, shape.queries * shape.keys) for shape in firsts) * _CODE
    listed = sum(shape.queries for shape in firsts) * OF_STACKS * _LISTED
    heads = sum(site.record.shape.heads for site in scene.sites)
    return 4 * (whole + listed) + heads * THUMBNAIL**2 * 0.6 * TEXT
