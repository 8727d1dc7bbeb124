"""Links of two directions made into one set (Och & Ney, 2003; Koehn, Och & Marcu, 2003).

A model links each target word; a model of the other direction links each source word. Their
intersection is precise, their union is complete, and the *grow* family lies between: it starts with
the intersection and adds neighbouring links of the union.

Both sets are links (source, target), those of the other direction already `flipped`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from regard.errors import RegardError
from regard.translate.alignment.links import Links

Symmetriser = Callable[[Links, Links], Links]
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, backward: Links) -> Links:
    """Links of both directions."""
    return forward & backward


def union(forward: Links, backward: Links) -> Links:
    """Links of either direction."""
    return forward | backward


def grow_diag(forward: Links, backward: Links) -> Links:
    """The intersection, grown by links of the union beside it.

    A horizontal, vertical or diagonal neighbour is added if one of its two words has no link yet.
    Links are visited by source word, then target word, until nothing is added; an added link counts
    at once.
    """
    grown = _GrowingLinks(forward & backward)
    either = forward | backward
    while grown.spread(either):
        pass
    return grown.links


def grow_diag_final(forward: Links, backward: Links) -> Links:
    """`grow_diag`, then the links of one direction and the other *one* of whose words has none."""
    grown = _GrowingLinks(grow_diag(forward, backward))
    for links in (forward, backward):
        grown.add(links, grown.lacks_one)
    return grown.links


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """`grow_diag`, then the links of one direction and the other whose *two* words have none."""
    grown = _GrowingLinks(grow_diag(forward, backward))
    for links in (forward, backward):
        grown.add(links, grown.lacks_both)
    return grown.links


SYMMETRISERS: Mapping[str, Symmetriser] = MappingProxyType(
    {
        "intersection": intersection,
        "union": union,
        "grow-diag": grow_diag,
        "grow-diag-final": grow_diag_final,
        "grow-diag-final-and": grow_diag_final_and,
    }
)


def symmetrise(forward: Links, backward: Links, how: str = "grow-diag") -> Links:
    """Links of two directions as one set, by name.

    >>> sorted(symmetrise(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (2, 1)}), "intersection"))
    [(0, 0)]

    Args:
        forward: links of the model from source to target.
        backward: links of the model from target to source, `flipped`.
        how: "intersection", "union", "grow-diag", "grow-diag-final" or "grow-diag-final-and".
    """
    check_symmetriser(how)
    return SYMMETRISERS[how](forward, backward)


def check_symmetriser(how: str) -> None:
    """Refuse an unknown symmetriser."""
    if how not in SYMMETRISERS:
        raise RegardError(f"symmetrise: {how!r}, expected one of {', '.join(SYMMETRISERS)}")


class _GrowingLinks:
    """A set of links that grows, and the words that have one."""

    def __init__(self, links: Links) -> None:
        self._links = set(links)
        self._sources = {source for source, _ in links}
        self._targets = {target for _, target in links}

    @property
    def links(self) -> Links:
        return frozenset(self._links)

    def lacks_one(self, link: tuple[int, int]) -> bool:
        return link[0] not in self._sources or link[1] not in self._targets

    def lacks_both(self, link: tuple[int, int]) -> bool:
        return link[0] not in self._sources and link[1] not in self._targets

    def add(
        self, links: Iterable[tuple[int, int]], wanted: Callable[[tuple[int, int]], bool]
    ) -> bool:
        """Add, in order, those that are wanted when their turn comes; whether there were any."""
        before = len(self._links)
        for link in sorted(links):
            if wanted(link):
                self._put(link)
        return len(self._links) > before

    def spread(self, either: Links) -> bool:
        """Add neighbours of the links, in one walk; whether there were any."""
        before = len(self._links)
        for source, target in sorted(either):
            if (source, target) not in self._links:
                continue
            for down, right in _NEIGHBOURS:
                link = (source + down, target + right)
                if link in either and self.lacks_one(link):
                    self._put(link)
        return len(self._links) > before

    def _put(self, link: tuple[int, int]) -> None:
        self._links.add(link)
        self._sources.add(link[0])
        self._targets.add(link[1])
