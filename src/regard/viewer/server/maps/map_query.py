"""Which map a request asks for, parsed from its query parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from regard.viewer.scene import Scene, Site
from regard.viewer.server.limits import Refusal, wrong

Mode = Literal["head", "mean", "max", "rollout", "relevance"]
Unit = Literal["pieces", "words"]
Special = Literal["shown", "folded", "hidden"]
_THROUGH = ("rollout", "relevance")  # modes that go through all layers of a part


class MapQuery(NamedTuple):
    """One map: a head, several heads together, or a whole part."""

    part: int
    layer: int | None  #: place in the part; None for all layers
    mode: Mode
    head: int
    unit: Unit
    special: Special

    @classmethod
    def of(cls, query: Mapping[str, str], scene: Scene) -> MapQuery:
        """Parse query parameters; each has a default."""
        part = number(query, "part", len(scene.parts), "0")
        mode: Any = choice(query, "mode", get_args(Mode))
        sites = scene.parts[part].sites
        layer = None
        if query.get("layer", "0") != "all" and mode not in _THROUGH:
            layer = number(query, "layer", len(sites), "0")
        if layer is None and mode == "head":
            mode = "mean"  # no head is in all layers
        heads = scene.sites[sites[layer or 0]].record.shape.heads
        head = number(query, "head", heads, "0") if mode == "head" else 0
        unit: Any = choice(query, "unit", get_args(Unit))
        special: Any = choice(query, "special", get_args(Special))
        return cls(part, layer, mode, head, unit, special)

    def sites(self, scene: Scene) -> list[Site]:
        """The attentions that this map is made of."""
        numbers = scene.parts[self.part].sites
        chosen = numbers if self.layer is None else [numbers[self.layer]]
        return [scene.sites[number] for number in chosen]

    @property
    def through(self) -> bool:
        """Whether it goes through all layers, so that no row can be made alone."""
        return self.mode in _THROUGH


def choice(query: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of the allowed words; the first by default."""
    value = query.get(name, allowed[0])
    if value not in allowed:
        raise wrong(name, value, f"one of {', '.join(allowed)}")
    return value


def number(query: Mapping[str, str], name: str, size: int, default: str | None = None) -> int:
    """A whole number from 0 to below `size`."""
    value = query.get(name, default)
    if value is None:
        raise Refusal(422, "missing", f"{name} is missing, expected a number below {size}")
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) < size):
        raise wrong(name, value, f"a whole number from 0 to {size - 1}")
    return int(value)
