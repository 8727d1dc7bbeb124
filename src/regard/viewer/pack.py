"""A scene as a manifest and chunks, within a number of bytes.

Small traces keep every weight. Larger ones keep queries and keys, which grow with the length and
not with its square, and the page multiplies them; weights made in another way, or too many of
them, become codes, if need be of blocks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.aggregate.sources import check_drawable, layer_of
from regard.aggregate.statistics.report import Report
from regard.errors import RegardError
from regard.kernel.reduce import reduce
from regard.kernel.reducers import ReceivedAttention
from regard.recipe import Recipe
from regard.record import Record
from regard.viewer.chunks import Chunks
from regard.viewer.forms import LARGEST, Map, StoredMap, at_places, keep, largest, together
from regard.viewer.plan import THUMBNAIL, Plan
from regard.viewer.scene import Line, Part, Scene
from regard.viewer.stack import Stack

BUDGET = 25_000_000  # bytes of a file, unless said otherwise
LEAST = 100_000  # bytes that a page needs
_FAR = 0.01  # error of factors above which they are not taken


class PackedScene(NamedTuple):
    """A scene as JSON, and its data."""

    manifest: dict[str, Any]
    chunks: list[bytes]


def packed(scene: Scene, budget: int = BUDGET) -> PackedScene:
    """Everything a page needs to show a scene."""
    if budget < LEAST:
        raise RegardError(f"page: budget={budget}, expected at least {LEAST} bytes")
    for site in scene.sites:
        check_drawable(layer_of(site.record))
    far: set[int] = set()
    while True:  # at most once for each site, and rarely a second time
        plan = Plan.of(scene, budget, far)
        with torch.no_grad(), Chunks() as chunks:
            parts, sites = [], []
            for part in scene.parts:
                stack = Stack(scene, part)
                sites += [_site(scene, number, plan, stack, chunks) for number in part.sites]
                parts.append(_part(scene, part, plan, stack.maps(), chunks))
            if not plan.far:
                return PackedScene(manifest_of(scene, sites, parts, plan.note()), chunks.bytes())
        far |= plan.far  # what they need instead may not fit beside the rest


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


def _part(
    scene: Scene, part: Part, plan: Plan, maps: dict[str, Map], chunks: Chunks
) -> dict[str, Any]:
    signed = _signed(scene.sites[part.sites[0]].record)
    kept: dict[str, Any] = {}
    for name, values in maps.items():
        pool = 1
        while not plan.exact and values.numel() / pool**2 > plan.map_cells:
            pool *= 2
        kept[name] = together(
            [keep(values, plan.exact, pool, signed, chunks)], plan.exact, pool, signed
        )
        if not plan.exact:
            kept[name]["top"] = [at_places(values, largest(values, LARGEST), chunks)]
    return {"name": part.name, "label": part.label, "sites": part.sites, "maps": kept}


def _site(scene: Scene, number: int, plan: Plan, stack: Stack, chunks: Chunks) -> dict[str, Any]:
    """One site, out of one walk over its heads."""
    record = scene.sites[number].record
    recipe, factors = record.recipe.plain(), plan.factors.get(number)
    kept: list[StoredMap] = []
    tops, thumbnails, peaks, errors = [], [], [], [0.0]
    for head in range(record.shape.heads):
        weights = one_head(recipe, scene.example, head)
        stack.add(weights)
        peaks.append(_peak(weights, f"{record.name}, head {head}"))
        thumbnails.append(thumbnail(weights, peaks[-1]))
        positions = None
        if plan.largest:
            positions = largest(weights, plan.largest)
            tops.append(at_places(weights, positions, chunks))
        if factors is not None:
            errors.append(factors.fitted(head, weights, positions))
        else:
            kept.append(keep(weights, plan.exact, plan.pool, _signed(record), chunks))
    stack.close(record)
    if factors is None:
        form = together(kept, plan.exact, plan.pool, _signed(record))
        plan.coded |= not plan.exact
    else:
        form, plan.error = factors.packed(chunks), max(plan.error, *errors)
        if max(errors) > _FAR:
            plan.far.add(number)
    return {
        **about(scene, number),
        **judged(record, scene.example),
        "peak": peaks,
        "form": {**form, "top": tops} if tops else form,
        "thumbnails": chunks.add(torch.stack(thumbnails)),
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


def one_head(recipe: Recipe, example: int, head: int) -> Map:
    """The weights of one head, on the CPU, in float32."""
    return recipe.at(example, head).weights()[0, 0].float().cpu()


def thumbnail(weights: Map, peak: float) -> Tensor:
    """A small picture, 255 for the peak; a strong weight stays, however small the picture."""
    size = [min(THUMBNAIL, side) for side in weights.shape]
    small = F.adaptive_max_pool2d(weights.abs()[None], size)[0]
    return small.mul(255 / (peak or 1.0)).round().byte()


def judged(record: Record, example: int) -> dict[str, list[Any] | None]:
    """The type, entropy and distance of each head on one example; padding does not count."""
    if record.kind in ("signed", "gate"):  # no shares of a whole
        return {"types": None, "entropy": None, "distance": None}
    recipe, shape = record.recipe.plain(), record.shape
    cross = record.attends == "cross" or shape.queries > shape.keys  # keys of every second row
    heads = [recipe.at(example, head) for head in range(shape.heads)]
    tokens = record.key_tokens
    if tokens and not isinstance(tokens[0], str):
        tokens = tokens[example]
    seen = None
    if not cross and shape.queries == shape.keys:
        seen = reduce(heads[0], [ReceivedAttention()])[0][0, 0].cpu() > 0  # nobody sees padding
        seen = None if bool(seen.all()) else seen
    report = Report.of(heads, tokens=tokens, real=seen, cross=cross)
    return {
        "types": [row.label for row in report],
        "entropy": _figures([row.entropy for row in report]),
        "distance": _figures([row.distance for row in report]),
    }


def _figures(values: list[float]) -> list[Any] | None:
    """A figure of each head; None where there is none."""
    return None if any(map(math.isnan, values)) else [round(value, 4) for value in values]


def _peak(weights: Map, where: str) -> float:
    """The largest weight; an error where there is none."""
    peak = float(weights.abs().max())
    if not math.isfinite(peak):
        raise RegardError(f"page: {where}: weights are not finite, so they cannot be shown")
    return peak


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


def _signed(record: Record) -> bool:
    return record.kind == "signed"
