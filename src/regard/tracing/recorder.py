"""Makes records: recipes, weights, results of reducers, or files, within a memory limit."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.kernel.reduce import reduce
from regard.kernel.reducers.base import Reducer
from regard.record import Record, Site, Trace, load_trace
from regard.record.gradient import OutputGradient
from regard.record.record import map_tensors
from regard.record.site import Attends
from regard.record.stored_attention import StoredAttention, StoredRecipe, storage_bytes, weights_of
from regard.record.tokens import fit
from regard.tracing.dataflow.tags import storage_address

Keep = str | Path | Reducer | Sequence[Reducer]


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def checked_bytes(size: Any) -> int:
    """Parse a number of bytes: an int, or text such as "500 MB" (1000²) or "2 GiB" (1024³)."""
    words = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if words is not None:
        power = " kmgt".index(words[2].lower() or " ")
        return int(float(words[1]) * (1024 if words[3] else 1000) ** power)
    integral = isinstance(size, int) or (isinstance(size, float) and size.is_integer())
    if not integral or isinstance(size, bool) or size < 0:
        raise RegardError(
            f"capture: max_bytes={size!r}, expected a number of bytes, as 500_000_000, or words, "
            "as '500 MB' or '2 GiB'"
        )
    return int(size)


class Recorder:
    """Makes records within a memory limit, and copies what the model is about to overwrite."""

    def __init__(
        self,
        keep: Keep,
        max_bytes: int | None,
        outputs: bool,
        attached: bool,
        tokens: Sequence[Any] | None,
        note: Callable[[Any, str, str], None],
    ) -> None:
        self.keep, self.max_bytes = keep, max_bytes
        self.outputs, self.attached, self.tokens, self.note = outputs, attached, tokens, note
        self.changed = False  # whether stored data was overwritten, as in a static cache
        self._held: dict[StoredAttention, Record] = {}
        self._storages: dict[int, int] = {}
        self._written = 0
        self.labelled = False  # whether the tokens matched any attention

    def record(
        self,
        site: Site,
        held: StoredAttention,
        output: Tensor | None,
        gradient: OutputGradient | None,
        not_kept: str = "",
    ) -> Record:
        """Record an attention, storing what was requested."""
        fields: dict[str, Any] = {"shape": held.shape, "kind": held.kind, "dtype": held.dtype}
        fields["gradient"], fields["not_kept"] = gradient, not_kept
        if self.outputs and output is not None:
            fields["output"] = output if self.attached else output.detach()
        if self.tokens is not None and held.kind != "gate":  # its keys are channels or positions
            for side, size in (("query", held.shape.queries), ("key", held.shape.keys)):
                if fit(self.tokens, held.shape.batch, size):
                    self.labelled = True
                    fields[f"{side}_tokens"] = self.tokens
        if self.keep == "recipe":  # nothing is computed
            return self._record(site, held, fields)
        with torch.enable_grad() if self.attached else torch.no_grad():
            return self._record(site, held, fields)

    def _record(self, site: Site, held: StoredAttention, fields: dict[str, Any]) -> Record:
        if isinstance(self.keep, Path):
            self._written += 1
            file = self.keep / f"{self._written:06d}.safetensors"
            record = Record(site, held, **fields)
            Trace([record]).save(file)
            fields["output"] = None
            return Record(site, file, held_as="disk", value_held=record.value_held, **fields)
        if not isinstance(self.keep, str):
            reducers = [self.keep] if isinstance(self.keep, Reducer) else list(self.keep)
            across = [type(reducer).__name__ for reducer in reducers if reducer.across_heads]
            if across and not site.axes_known:
                self.note(
                    "dropped",
                    site.base,
                    f"{', '.join(across)}: the head axis is not known; capture without "
                    "keep=, then name the axes with record.with_axes",
                )
                return Record(site, None, held_as="dropped", **fields)
            try:
                reductions = _unshared(reduce(held.recipe(), reducers), held)
            except RegardError as error:  # the reducer does not apply to weights of this kind
                self.note("dropped", site.base, str(error))
                return Record(site, None, held_as="dropped", **fields)
            return Record(site, None, held_as="reductions", reductions=reductions, **fields)
        extra = [fields["output"]] if fields.get("output") is not None else []
        held_as: Any = self.keep
        if self.keep == "weights":
            size = (
                math.prod(held.shape) * held.dtype.itemsize
                if held.n_edges is None
                else weights_of(held.recipe()).nbytes
            )
            if not self._fits(site, {0: size, **storage_bytes(extra)}):
                return Record(site, None, held_as="dropped", **{**fields, "output": None})
            model = held
            held = StoredRecipe(weights_of(held.recipe()).map(lambda part: _unshared(part, model)))
        storages = storage_bytes([*held.own(), *extra])
        if self.keep == "recipe" and not self._fits(site, storages):
            return Record(site, None, held_as="dropped", **{**fields, "output": None})
        self._storages.update(storages)
        self._held[held] = Record(site, held, held_as=held_as, **fields)
        return self._held[held]

    def _fits(self, site: Site, storages: dict[int, int]) -> bool:
        """Whether more storages fit within the limit; a note if not."""
        if self.max_bytes is None:
            return True
        used = sum(self._storages.values())
        more = sum(size for address, size in storages.items() if address not in self._storages)
        if used + more <= self.max_bytes:
            return True
        self.note(
            "dropped",
            site.base,
            f"{more:,} bytes more would exceed max_bytes={self.max_bytes:,} ({used:,} held); "
            "its weights were dropped",
        )
        return False

    def about_to_change(self, target: Tensor) -> None:
        """Copy stored data that is about to be changed in place."""
        storage = storage_address(target)
        if storage is None or storage not in self._storages:
            return
        self.changed = True
        size = self._storages.pop(storage)
        for held, record in list(self._held.items()):
            if storage in storage_bytes(held.tensors()):
                if self._fits(record.site, {0: size}):
                    held.protect(storage)
                    self._storages.update(storage_bytes(held.own()))
                else:
                    del self._held[held]
                    record.drop()

    def relabel(self, record: Record, attends: Attends) -> None:
        """Change the label of a record, also in its file."""
        record.site = replace(record.site, attends=attends)
        file = record.parts
        if isinstance(file, Path):
            Trace([load_trace(file)[0].relabelled(attends)]).save(file)

    def close(self, trace: Trace) -> None:
        """The capture ends; write the notes beside the files."""
        self._held.clear()
        if isinstance(self.keep, Path):
            notes = {
                "notes": [asdict(note) for note in trace.notes],
                "other_softmaxes": [asdict(other) for other in trace.other_softmaxes],
            }
            (self.keep / "said.json").write_text(json.dumps(notes, indent=1))


def _unshared(results: Any, held: StoredAttention) -> Any:
    """Results with tensors of their own where they share the model's memory."""
    storages = storage_bytes(held.tensors())
    return map_tensors(
        results,
        lambda tensor: tensor.clone() if tensor.untyped_storage()._cdata in storages else tensor,
    )
