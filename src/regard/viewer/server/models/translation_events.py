"""Events of a running translation: each draft in full, but for rows already sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.viewer.pack import about, manifest_of
from regard.viewer.scene import Scene
from regard.viewer.server.models.generation import Rows, encoded
from regard.viewer.server.models.served_model import Draft

AnyRows = Float[Tensor, "_ _ _"]  #: (head, query, key), of drafts and sites that differ
_NOTE = (
    "While the model translates, weights are 16-bit numbers: within 0.05 % of the exact ones, or "
    "0.00000003 where they are below 0.00006."
)


def draft_events(drafts: Iterable[Draft], keep: Callable[[Scene], str]) -> Iterator[bytes]:
    """Lines of JSON: a `draft` for each one that brings something new, `done` at the end.

    Args:
        drafts: the last is the finished one.
        keep: keeps the scene of the finished one, and returns the name it can be asked for by.
    """
    before: list[AnyRows] = []
    text, number, last = None, 0, None
    for last in drafts:
        rows = [_rows(last.scene, index) for index in range(len(last.scene.sites))]
        n_known = _known(before, rows)
        if last.text == text and n_known == _count(before) == _count(rows):
            continue
        number += 1
        yield line_of_event(
            "draft",
            step=number,
            text=last.text,
            scene=_manifest(last.scene),
            known=n_known,
            rows=[encoded(weights[:, n_known:]) for weights in rows],
        )
        before, text = rows, last.text
    if last is not None:
        yield line_of_event("done", id=keep(last.scene), text=last.text)


def line_of_event(event: str, **fields: Any) -> bytes:
    """An event as a line of JSON."""
    return json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"


def _rows(scene: Scene, index: int) -> Rows:
    return scene.sites[index].record.weights()[scene.example].float()


def _manifest(scene: Scene) -> dict[str, Any]:
    """The scene without its weights."""
    sites = [about(scene, index) for index in range(len(scene.sites))]
    parts = [{"name": part.name, "label": part.label, "sites": part.sites} for part in scene.parts]
    return manifest_of(scene, sites, parts, _NOTE)


def _known(before: list[AnyRows], now: list[AnyRows]) -> int:
    """How many leading rows of every site are unchanged."""
    if [rows.shape[::2] for rows in before] != [rows.shape[::2] for rows in now]:
        return 0
    count = min(_count(before), min((rows.shape[1] for rows in now), default=0))
    for old, new in zip(before, now):
        alike = (old[:, :count] == new[:, :count]).all(0).all(-1)
        count = int(torch.cumprod(alike.long(), 0).sum())
    return count


def _count(rows: list[AnyRows]) -> int:
    return min((each.shape[1] for each in rows), default=0)
