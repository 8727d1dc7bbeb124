"""A trace as one HTML file that needs no network.

>>> import torch
>>> from regard.viewer import page
>>> weights = torch.eye(3).expand(1, 2, 3, 3)
>>> two_heads = page(weights, title="two heads that look at themselves")
>>> two_heads.html.startswith("<!doctype html>")
True
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.aggregate import Words
from regard.errors import RegardError
from regard.files import check_folder
from regard.record import Trace
from regard.record.upward import PAGES
from regard.types import Kind
from regard.viewer.frame import framed
from regard.viewer.pack import BUDGET, LEAST, PackedScene, packed
from regard.viewer.scene import PageOptions, scenes_of

FORMAT = 2


class Page:
    """One HTML file: `save` writes it, a notebook shows it."""

    def __init__(self, html: str, title: str) -> None:
        self.html, self.title = html, title

    def save(self, path: str | Path) -> Path:
        """Write the file, which opens in any browser."""
        path = checked_page_path(path)
        path.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        return framed(self.html)

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {len(self.html) / 1e6:.1f} MB)"


def page(
    attention: Any,
    *,
    title: str | Sequence[str] | None = None,
    words: Words | Sequence[Words] | None = None,
    example: int = PageOptions.example,
    prompt: int | None = None,
    image: Tensor | None = None,
    patches: tuple[int, int] | None = None,
    names: tuple[str, str] | None = None,
    runs: tuple[str, str] | None = None,
    start: str = PageOptions.start,
    budget: int = BUDGET,
    axes: str | None = None,
    kind: Kind = PageOptions.kind,
    show_progress: bool = True,
) -> Page:
    """An interactive page of attention: all heads, one head, one word, over a text or an image.

    Args:
        attention: a Trace, a Record, a tensor (batch, head, query, key), or a list of tensors; a
            list of traces is shown side by side.
        title: the title; for traces side by side, a list may have one for each.
        words: how tokens form words, for one sequence or several; when None, read from the marks
            on the tokens ("##", "▁", "Ġ"), if there are any.
        example: index in the batch.
        prompt: number of prompt tokens of a stitched generation; a slider then goes over the
            steps. A trace of several steps knows it. For cross-attention alone it may be 0: all
            queries were generated.
        image: input of a vision model, (row, column, 3) or (3, row, column), from 0 to 1;
            1 channel instead of 3 is grey.
        patches: rows and columns of patches that the image was cut into; a square of the last
            positions when None.
        names: names of the query and key texts, as ("Translation", "Source"); the views then show
            the latter first.
        runs: names of two traces over the same positions, as ("before", "after"): one view then
            switches between them and their difference, in diverging colours.
        start: the initial state, as in the fragment of a link: "view=lines&unit=words".
        budget: target size of the file in bytes, script and styles included; what does not fit is
            stored less exactly, and the page says so.
        axes: the order of a tensor's axes, as "head query key".
        kind: the kind of the weights in tensors.
        show_progress: whether a bar shows the progress of a long trace, in a terminal.
    """
    options = PageOptions(
        title=title,
        words=words,
        example=example,
        prompt=prompt,
        image=image,
        patches=patches,
        names=names,
        runs=runs,
        start=start,
        axes=axes,
        kind=kind,
    )
    several = isinstance(attention, list | tuple) and all(isinstance(a, Trace) for a in attention)
    traces = list(attention) if several and attention else [attention]
    if len(traces) > 2:
        raise RegardError(f"page: {len(traces)} traces, expected one, or two side by side")
    empty = len(document([], ""))
    least = empty + LEAST * len(traces)
    if budget < least:
        raise RegardError(f"page: budget={budget}, expected at least {least} bytes")
    scenes = scenes_of(traces, options)
    share = (budget - empty) // len(scenes)
    packages = [packed(scene, share, show_progress, thumbnails=False) for scene in scenes]
    titles = list(dict.fromkeys(scene.title for scene in scenes))
    return Page(document(packages, " · ".join(titles)), titles[0])


def document(scenes: Sequence[PackedScene], title: str, live: dict[str, Any] | None = None) -> str:
    """The HTML of scenes with their data; without scenes, of a live page."""
    chunks: list[bytes] = []
    manifests = []
    for scene in scenes:
        manifests.append({**scene.manifest, "first_chunk": len(chunks)})
        chunks += scene.chunks
    manifest = {"format": FORMAT, "title": title, "live": live, "scenes": manifests}
    return assembled(manifest, chunks, live=live is not None)


def assembled(
    manifest: dict[str, Any], chunks: Sequence[bytes], *, bundle: str = "page", live: bool = False
) -> str:
    """The HTML of a manifest, which has a title, and of its data.

    Args:
        manifest: what the script reads first.
        chunks: the data, by number.
        bundle: which script and style: those of the "page" of a trace, or of the "report" of a
            corpus.
        live: whether the page may ask the server it came from.
    """
    parts = {
        "csp": policy(live, bundle),
        "title": escape(manifest["title"]),
        "style": style(bundle),
        "manifest": _json(manifest),
        "chunks": "\n".join(_chunk(number, data) for number, data in enumerate(chunks)),
        "script": script(bundle),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _static("page.html"))


def policy(live: bool = False, bundle: str = "page") -> str:
    """Content security policy: our script, our style, nothing else."""
    rules = {
        "default-src": "'none'",
        "script-src": _hash(script(bundle)),
        "style-src": _hash(style(bundle)),
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@functools.cache
def style(bundle: str = "page") -> str:
    """The style sheets of a bundle."""
    return _static(f"{bundle}.css")


@functools.cache
def script(bundle: str = "page") -> str:
    """The scripts of a bundle."""
    return _static(f"{bundle}.js")


def checked_page_path(path: str | Path) -> Path:
    """A path that a page can be written to; raises before any work is done."""
    path = Path(path)
    if path.suffix.lower() not in PAGES:
        raise RegardError(f"{path}: ends in {path.suffix!r}, expected .html")
    check_folder(path)
    return path


def _static(name: str) -> str:
    return resources.files("regard.viewer").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(data: Any) -> str:
    """JSON without "<", so that no token can close the script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _chunk(number: int, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    return f'<script type="text/plain" id="chunk-{number}">{text}</script>'
