"""Strongest examples with the attention of a model over them, which open as any other page does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.corpus import Collection, Example
from regard.errors import RegardError
from regard.progress import progress
from regard.record import Trace
from regard.viewer.chunks import Chunks
from regard.viewer.corpus_report.details import json_chunk, strongest_of
from regard.viewer.document import FORMAT
from regard.viewer.pack import packed
from regard.viewer.scene import Scene

#: What a model attends to in an example, all layers or some.
AttentionOf = Callable[[Example], Trace]
_NEAR = 1e-3  # within which the score of an example must come again
_SCENE = 4_000_000  # bytes of one attention at most


def captured(
    collection: Collection,
    attention_of: AttentionOf,
    chunks: Chunks,
    *,
    budget: int,
    most: int,
    show_progress: bool | None = None,
) -> tuple[dict[str, dict[str, Any]], str]:
    """Scenes by "site/example": the attention over each strongest example in the layer of its head;
    and a note on those that the budget has no room for. The strongest of every head come first.

    Args:
        collection: what was collected.
        attention_of: captures the attention over an example.
        chunks: where the scenes go.
        budget: bytes of all chunks, beyond which examples are left out.
        most: how many examples of each head.
        show_progress: whether a bar shows the progress; None shows one in a terminal.

    Raises:
        RegardError: the model gives the pair of an example another weight than the run did.
    """
    scenes: dict[str, dict[str, Any]] = {}
    wanted = [each for each in strongest_of(collection) if each[2] < most]
    traces: dict[int, Trace] = {}
    left_out, used = 0, chunks.nbytes
    with progress("examples", len(wanted), show_progress) as advance:
        for site, head, _, strong in wanted:
            advance()
            number = strong.example.number
            key = f"{site}/{number}"
            if key in scenes:
                continue
            if used > budget:
                left_out += 1
                continue
            if number not in traces:
                if len(traces) > 64:  # texts come again in heads of one rank
                    traces.clear()
                traces[number] = attention_of(strong.example)
            record = traces[number][site]
            weight = float(record.weights()[0, head, strong.query, strong.key])
            if abs(weight - strong.score) > _NEAR:
                raise RegardError(
                    f"document {number}: {site}, head {head} gives the pair {strong.query} → "
                    f"{strong.key} a weight of {weight:.4f}, in the run it was {strong.score:.4f}: "
                    "expected the model of the run"
                )
            scene = packed(Scene.of(Trace([record]), title=f"Document {number}"), _SCENE)
            first = len(chunks)
            for chunk in scene.chunks:
                chunks.add_packed(chunk)
                used += len(chunk)
            scenes[key] = json_chunk(
                chunks, {**scene.manifest, "first_chunk": first, "format": FORMAT}
            )
    note = (
        f"{left_out} of {len(wanted)} examples are without: there was no room" if left_out else ""
    )
    return scenes, note
