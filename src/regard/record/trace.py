"""Attentions that happened, in order, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from regard.errors import RegardError
from regard.kernel.reduce import Reducer
from regard.record import forms, table
from regard.record.record import Record
from regard.record.site import Attends, Gate, Note


class Trace:
    """Records in the order they happened, reached by place or by name.

    A name is the path of the module that made the attention. When the same module ran several
    times, `trace["name"]` is a trace of all its calls and `trace["name#2"]` the second one.
    Iterating gives records.

    `notes` says what could not be read, was dropped or never seen; `gates` lists softmaxes that
    weighed something and were not taken for attention, with the reason.
    """

    def __init__(
        self,
        records: Sequence[Record] = (),
        *,
        notes: Sequence[Note] = (),
        gates: Sequence[Gate] = (),
        output: Any = None,
    ) -> None:
        self._records = list(records)
        self.notes = list(notes)
        self.gates = list(gates)
        self.output = output  #: what the model returned, from `regard.trace`

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __contains__(self, name: object) -> bool:
        return any(name in (record.name, record.site.base) for record in self)

    @overload
    def __getitem__(self, where: int) -> Record: ...
    @overload
    def __getitem__(self, where: slice) -> Trace: ...
    @overload
    def __getitem__(self, where: str) -> Any: ...
    def __getitem__(self, where: int | slice | str) -> Any:
        if isinstance(where, slice):
            return self._of(self._records[where])
        if isinstance(where, int):
            if not -len(self) <= where < len(self):
                raise IndexError(f"record {where}, but the trace has {len(self)}")
            return self._records[where]
        found = [record for record in self if record.name == where.removesuffix("#1")]
        calls = [record for record in self if record.site.base == where]
        if len(calls) > 1:
            return self._of(calls)
        if not found and not calls:
            raise KeyError(self._unknown(where))
        return (found or calls)[0]

    def _unknown(self, name: str) -> str:
        names = self.names()
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        return f"no attention is named {name!r}; there are {len(names)}{hint}"

    def append(self, record: Record) -> None:
        """Add what happened last."""
        self._records.append(record)

    def names(self) -> list[str]:
        """Names in the order they happened."""
        return [record.name for record in self]

    def values(self) -> list[Record]:
        """Records in the order they happened."""
        return list(self._records)

    def items(self) -> list[tuple[str, Record]]:
        """Names and records in the order they happened."""
        return [(record.name, record) for record in self]

    def layers(self, *numbers: int) -> Trace:
        """Records of some layers, by the first number in the module path."""
        found = [record for record in self if record.layer in numbers]
        there = sorted({record.layer for record in self if record.layer is not None})
        if not found:
            raise RegardError(f"no attention in layers {numbers}; there are layers {there}")
        return self._of(found)

    def heads(self, *numbers: int) -> Trace:
        """Every record with some heads of it only."""
        return self._of([record.of_heads(*numbers) for record in self])

    def to(self, device: torch.device | str) -> Trace:
        """The same trace with its tensors on a device."""
        return self._of([record.to(device) for record in self])

    def relabel(self, attends: Mapping[str, Attends]) -> Trace:
        """The same trace with some names known as "self" or "cross", where data flow erred."""
        for name, label in attends.items():
            if name not in self:
                raise RegardError(self._unknown(name))
            if label not in ("self", "cross", "unknown"):
                raise RegardError(f"relabel: {label!r}, expected 'self', 'cross' or 'unknown'")
        return self._of(
            record.relabelled(
                attends.get(record.name, attends.get(record.site.base, record.attends))
            )
            for record in self
        )

    def with_tokens(self, query: Sequence[str], key: Sequence[str] | None = None) -> Trace:
        """The same trace with words: `key` (the query's when None) where the lengths fit."""
        key = query if key is None else key
        return self._of(
            record.with_tokens(
                query if len(query) == record.shape.queries else None,
                key if len(key) == record.shape.keys else None,
            )
            for record in self
        )

    @property
    def steps(self) -> list[Trace]:
        """One trace for each forward pass of the model."""
        numbers = sorted({record.step for record in self})
        return [self._of(r for r in self if r.step == number) for number in numbers]

    @property
    def nbytes(self) -> int:
        """Bytes kept alive by all records together; shared memory counts once."""
        storages: dict[int, int] = {}
        for record in self:
            storages.update(record.storages)
        return sum(storages.values())

    def reduce(self, *reducers: Reducer) -> dict[str, tuple[Any, ...]]:
        """For every name the reducers' answers, streamed, in the order asked."""
        if not reducers:
            raise RegardError("trace.reduce() needs reducers, as trace.reduce(Entropy())")
        return {record.name: record.reduce(*reducers) for record in self}

    @property
    def attentions(self) -> tuple[Any, ...]:
        """Self-attention weights, layer by layer; after several passes a tuple for each pass."""
        return forms.attentions(self._records)

    @property
    def encoder_attentions(self) -> tuple[Any, ...]:
        """Self-attention weights of the encoder of an encoder–decoder model."""
        return forms.part(self._records, "encoder")

    @property
    def decoder_attentions(self) -> tuple[Any, ...]:
        """Self-attention weights of the decoder of an encoder–decoder model."""
        return forms.part(self._records, "decoder")

    @property
    def cross_attentions(self) -> tuple[Any, ...]:
        """Weights of the decoder over the encoder, layer by layer."""
        return forms.part(self._records, "cross")

    def save(self, path: str | Path) -> Path:
        """Write the trace to one safetensors file; `regard.load` reads it and runs no code."""
        from regard.record.store import save

        return save(self, Path(path))

    def __repr__(self) -> str:
        return table.text(self)

    def _repr_html_(self) -> str:
        return table.html(self)

    def _of(self, records: Any) -> Trace:
        return Trace(list(records), notes=self.notes, gates=self.gates)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "output": None}
