"""How the weights of each site are kept, so that a page stays within a number of bytes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from regard.types import Shape
from regard.viewer.forms import LARGEST, STEP, Factors
from regard.viewer.scene import Scene

THUMBNAIL = 64  # positions of a side of a small picture
_MAPS = (1 << 18, 1 << 22)  # cells that are set aside for a map over all layers, and the most
_EXACT = 1_200_000  # weights up to which all are kept
_TEXT = 4 / 3  # bytes of base64 for one of data
_FLOAT = 0.9 * 4 * _TEXT  # bytes in the file for one weight kept as it is,
_CODE = 0.75 * _TEXT  # as a code,
_HALF = 0.87 * 2 * _TEXT  # for a number of queries and keys,
_LARGE = 0.75 * 6 * _TEXT  # and for one of the largest weights, with its place
_WIDEST = 64  # side of a block


@dataclass
class Plan:
    """All weights exactly; or factors where there are some, and codes of blocks for the rest."""

    exact: bool
    factors: dict[int, Factors]  #: by number of the site
    pool: int = 1  #: side of the blocks that codes are of
    largest: int = 0  #: how many weights of each row are exact
    map_cells: int = _MAPS[1]  #: how many cells a map over all layers may have
    coded: bool = False  #: whether any site was kept as codes, so far
    far: set[int] = field(default_factory=set)  #: sites whose factors turned out to be far off
    error: float = 0.0  #: the largest difference between factors and exact weights, so far

    @classmethod
    def of(cls, scene: Scene, budget: int, refused: Collection[int] = ()) -> Plan:
        """A plan for a number of bytes; sites that are refused are not kept as factors."""
        shapes = [site.record.shape for site in scene.sites]
        if sum(map(_weights, shapes)) <= min(_EXACT, budget * 0.8 / _FLOAT):
            return cls(True, {})
        aside = min(_MAPS[0], int(0.04 * budget / (_CODE * len(scene.parts))))
        left = budget * 0.98 - _overhead(scene, aside)
        factors = _factors(scene, refused)
        cost = sum(site.numbers * _HALF for site in factors.values())
        if cost > left:
            factors, cost = {}, 0.0
        left -= cost
        coded = sum(_weights(s) for number, s in enumerate(shapes) if number not in factors) * _CODE
        pool = 1
        while coded / pool**2 > left * 0.7 and pool < _WIDEST:
            pool *= 2
        left -= coded / pool**2
        rows = sum(shape.heads * shape.queries for shape in shapes)
        if fits := rows * LARGEST * _LARGE <= left:
            left -= rows * LARGEST * _LARGE
        cells = aside + int(max(0, left) / (4 * len(scene.parts) * _CODE))
        return cls(False, factors, pool, LARGEST if fits else 0, min(_MAPS[1], cells))

    def note(self) -> str:
        """In one sentence, how weights are kept."""
        if self.exact:
            return "Every weight is kept exactly, as a 32-bit number."
        notes = []
        if self.factors:
            notes.append(
                "weights are multiplied from queries and keys of 16 bits, and are within "
                f"{_up(self.error)} of the exact ones"
            )
        if self.coded:
            others = "other weights" if self.factors else "weights"
            blocks = f", of blocks of {self.pool} × {self.pool}" if self.pool > 1 else ""
            notes.append(
                f"{others} are bytes on a logarithmic scale, within {50 * STEP:.1f} %{blocks}"
            )
        if self.largest:
            notes.append(f"the {self.largest} largest of each row are exact")
        notes.append(
            f"maps over all layers are bytes within {50 * STEP:.1f} %, their largest exact"
        )
        text = "; ".join(notes)
        return f"{text[0].upper()}{text[1:]}."


def _up(error: float) -> str:
    """Two digits of a bound, which must not be rounded down."""
    if not error:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(error)) - 1)
    return f"{math.ceil(error / unit) * unit:.2g}"


def _factors(scene: Scene, refused: Collection[int]) -> dict[int, Factors]:
    """Queries and keys of the sites where they are fewer than codes would be."""
    chosen = {}
    for number, site in enumerate(scene.sites):
        if number in refused:
            continue
        factors = Factors.of(site.record.recipe.plain(), scene.example)
        if factors is not None and factors.numbers * _HALF < _weights(site.record.shape) * _CODE:
            chosen[number] = factors
    return chosen


def _weights(shape: Shape) -> int:
    return shape.heads * shape.queries * shape.keys


def _overhead(scene: Scene, cells: int) -> float:
    """Bytes of the maps over all layers, and of small pictures."""
    firsts = [scene.sites[part.sites[0]].record.shape for part in scene.parts]
    cells = sum(min(cells, shape.queries * shape.keys) for shape in firsts)
    rows = sum(shape.queries for shape in firsts)
    heads = sum(site.record.shape.heads for site in scene.sites)
    return 4 * (cells * _CODE + rows * LARGEST * _LARGE) + heads * THUMBNAIL**2 * 0.6 * _TEXT
