"""A scene as a manifest and chunks, within a number of bytes.

Small traces keep every weight. Larger ones keep queries and keys, which grow with the length and
not with its square, and the page multiplies them. Of weights made in another way, or where queries
and keys are too many, every one is kept as 16 bits, or the largest of each row, as many as fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from regard.aggregate.sources import check_drawable, layer_of
from regard.errors import RegardError
from regard.progress import progress
from regard.recipe.base import per_head
from regard.record import Record
from regard.viewer.chunks import Chunks
from regard.viewer.forms import Largest, features_of, words
from regard.viewer.plan import TEXT, Plan
from regard.viewer.scene import Line, Part, Scene
from regard.viewer.stack import Stack
from regard.viewer.walk import HeadWalk, Overview, judged

BUDGET = 25_000_000  # bytes of a file, unless said otherwise
LEAST = 100_000  # bytes that the data of a scene need
_FILLED = 0.97  # share of the budget that data may take
_SAMPLED = 32  # heads by which the bytes of the largest weights are estimated


class PackedScene(NamedTuple):
    """A scene as JSON, and its data."""

    manifest: dict[str, Any]
    chunks: list[bytes]


def packed(
    scene: Scene, budget: int = BUDGET, show_progress: bool = False, thumbnails: bool = True
) -> PackedScene:
    """Everything a page needs to show a scene; the budget is that of its data in the file.

    A page can make `thumbnails` itself where every weight is kept, and does not ask a server for
    all of them where it has thumbnails.
    """
    if budget < LEAST:
        raise RegardError(f"data of a page: budget={budget}, expected at least {LEAST} bytes")
    for site in scene.sites:
        check_drawable(layer_of(site.record))
    plan = Plan.of(scene, budget)
    heads = sum(site.record.shape.heads for site in scene.sites)
    show = None if show_progress and not plan.exact else False
    with torch.no_grad(), Chunks() as chunks, progress("heads", heads, show) as advance:
        packing = _Packing(scene, plan, chunks, advance, thumbnails or not plan.exact)
        for part in scene.parts:
            packing.add(part)
        packing.finish(budget)
        manifest = manifest_of(scene, packing.sites, packing.parts, packing.note())
        return PackedScene(manifest, chunks.bytes())


class _Packing:
    """Sites and maps over all layers as manifests, out of one walk over each head."""

    def __init__(
        self,
        scene: Scene,
        plan: Plan,
        chunks: Chunks,
        advance: Callable[..., None],
        thumbnails: bool,
    ) -> None:
        self._scene, self._plan, self._chunks, self._advance = scene, plan, chunks, advance
        self._thumbnails = thumbnails
        self._listed: list[Largest] = []  # of heads, until it is known how many weights fit
        self.sites: list[dict[str, Any]] = []
        self.parts: list[dict[str, Any]] = []

    def add(self, part: Part) -> None:
        """A stack of layers, and its maps over all layers."""
        stack = Stack(self._scene, part)
        self.sites += [self._site(number, stack) for number in part.sites]
        signed = self._scene.sites[part.sites[0]].record.kind == "signed"
        maps: dict[str, Any] = {}
        for name, values in stack.maps().items():
            form = self._plan.of_stack(values.shape[0], values.shape[1], signed)
            form.take(slice(0, len(values)), values)
            maps[name] = form.packed(float(values.abs().max()), self._chunks)
            if isinstance(form, Largest):
                form.finish(form.most, self._chunks)
        parts = {"name": part.name, "label": part.label, "sites": part.sites, "maps": maps}
        self.parts.append(parts)

    def finish(self, budget: int) -> None:
        """Keep as many of the largest weights of each row as fit."""
        if not self._listed:
            return
        manifest = json.dumps([self.sites, self.parts, *map(line_of, self._scene.lines)])
        left = (_FILLED * budget - len(manifest)) / TEXT - self._chunks.nbytes
        sample = self._listed[:: -(-len(self._listed) // _SAMPLED)]
        share = len(self._listed) / len(sample)
        count = 0
        for rank in range(max(form.most for form in sample)):
            left -= share * sum(form.nbytes(rank) for form in sample if rank < form.most)
            if left < 0:
                break
            count += 1
        for form in self._listed:
            form.finish(count, self._chunks)

    def note(self) -> str:
        """What is kept, in words: most heads in one way, maybe some in others."""
        heads = [
            (site, head, form) for site in self.sites for head, form in enumerate(site["maps"])
        ]
        groups: dict[str, list[tuple[dict[str, Any], int, dict[str, Any]]]] = {}
        for site, head, form in heads:
            groups.setdefault(words({**form, "error": 0.0}), []).append((site, head, form))
        *others, most = sorted(groups.values(), key=len)
        sentences = [
            f"{_places(group)}: {_words(form for _, _, form in group)}" for group in others
        ]
        sentences.append(f"{'all other heads: ' if others else ''}{_words(f for _, _, f in most)}")
        stacks = [form for part in self.parts for form in part["maps"].values()]
        if not self._plan.exact:
            sentences.append(f"maps over all layers: {_words(stacks)}")
        return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)

    def _site(self, number: int, stack: Stack) -> dict[str, Any]:
        record = self._scene.sites[number].record
        walk = HeadWalk(record, self._scene.example, self._plan.is_exact(number))
        maps, pictures, peaks, rows = [], [], [], []
        for head in range(record.shape.heads):
            overview = Overview(*record.shape[2:])
            forms = self._plan.forms(self._scene, number, head, self._chunks)
            form = next(forms)
            rows.append(walk.show(head, [overview, stack, form]))
            peaks.append(overview.peak(f"{record.name}, head {head}"))
            if self._thumbnails:
                pictures.append(overview.picture())
            while (manifest := form.packed(peaks[-1], self._chunks)) is None:  # too far off
                form = next(forms)
                walk.show(head, [form])
            if isinstance(form, Largest):
                self._listed.append(form)
            maps.append(manifest)
            self._advance()
        stack.close(record)
        return {
            **about(self._scene, number),
            **judged(rows),
            "norms": _value_norms(record, self._scene.example, self._chunks),
            "features": self._features(record),
            "peak": peaks,
            "maps": maps,
            "thumbnails": self._chunks.add(torch.stack(pictures)) if pictures else None,
        }

    def _features(self, record: Record) -> dict[str, Any] | None:
        """What the scores of pairs are made of, where forms of heads do not have it."""
        if not self._plan.features:
            return None
        return features_of(record.recipe.plain(), self._scene.example, self._chunks)


def _value_norms(record: Record, example: int, chunks: Chunks) -> dict[str, Any] | None:
    """How long the value of each key is, (head, key); None where none were captured."""
    recipe = record.recipe.plain()
    if recipe.value is None or recipe.kind not in ("distribution", "partial"):
        return None
    heads = per_head(recipe.value[example : example + 1].detach(), recipe.shape.heads)
    return chunks.add(heads[0].float().norm(dim=-1))


def _words(forms: Iterable[dict[str, Any]]) -> str:
    """What forms have in common, with the largest of their errors."""
    members = list(forms)
    return words({**members[0], "error": max(form["error"] for form in members)})


def _places(group: Sequence[tuple[dict[str, Any], int, dict[str, Any]]]) -> str:
    """Heads by layer."""
    heads: dict[str, list[str]] = {}
    for site, head, _ in group:
        name = site["label"] or f"layer {site['layer']}"
        heads.setdefault(name, []).append(str(head))
    return "; ".join(
        f"{name} head{'s' * (len(each) > 1)} {', '.join(each)}" for name, each in heads.items()
    )


def manifest_of(
    scene: Scene, sites: list[dict[str, Any]], parts: list[dict[str, Any]], note: str
) -> dict[str, Any]:
    """A scene as JSON, once it is known how its weights are kept."""
    grows = None if scene.prompt is None else {"prompt": scene.prompt, "sequence": scene.grows}
    return {
        "id": None,
        "title": scene.title,
        "sequences": [line_of(line) for line in scene.lines],
        "sites": sites,
        "parts": parts,
        "steps": grows,
        "image": image_of(scene),
        "start": scene.start,
        "note": note,
    }


def about(scene: Scene, number: int) -> dict[str, Any]:
    """What is known of a site without its weights."""
    site = scene.sites[number]
    record = site.record
    return {
        "name": record.name,
        "layer": site.layer,
        "label": site.label,
        "attends": record.attends,
        "heads": record.shape.heads,
        "queries": record.shape.queries,
        "keys": record.shape.keys,
        "query_sequence": site.queries,
        "key_sequence": site.keys,
        "kind": record.kind,
    }


def line_of(line: Line) -> dict[str, Any]:
    """A sequence, for the manifest."""
    words = line.words
    return {
        "name": line.name,
        "tokens": line.tokens,
        "words": None if words is None else {"names": words.names, "pieces": words.pieces},
        "special": line.special,
    }


def image_of(scene: Scene) -> dict[str, Any] | None:
    """The picture of a scene, for the manifest."""
    picture = scene.picture
    if picture is None:
        return None
    named = ("source", "width", "height", "rows", "columns", "first")
    grids = [
        {"sequence": line, "rows": rows, "columns": columns, "first": 0}
        for line, (rows, columns) in picture.grids.items()
    ]
    return {
        **{name: getattr(picture, name) for name in named},
        "sequence": picture.line,
        "grids": grids,
    }
