"""The attentions of a run, in order and by name."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.record import forms, table, upward
from regard.record.record import Record
from regard.record.site import Attends, Note, OtherSoftmax
from regard.record.tokens import Tokens, checked_tokens, count, fit

if TYPE_CHECKING:
    from regard.record.upward import HeadRanking, Report, Spec


class Trace:
    """Records in the order they happened, by index or by name.

    A name is the path of the module that attended. If a module ran several times, `trace["name"]`
    is a trace of all its calls and `trace["name#2"]` the second one. Iterating yields records.

    `notes` has what could not be read, was dropped or never seen; `other_softmaxes` lists softmaxes
    that weighed something and are not attention, with the reason.
    """

    def __init__(
        self,
        records: Sequence[Record] = (),
        *,
        notes: Sequence[Note] = (),
        other_softmaxes: Sequence[OtherSoftmax] = (),
        output: Any = None,
    ) -> None:
        self._records = list(records)
        self.notes = list(notes)
        self.other_softmaxes = list(other_softmaxes)
        self.output = output  #: what the model returned, from `regard.trace`

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __contains__(self, what: object) -> bool:
        """Whether a name, or a record, is among them."""
        if isinstance(what, Record):
            return any(record is what for record in self)
        name = what.removesuffix("#1") if isinstance(what, str) else what
        return any(name in (record.name, record.site.base) for record in self)

    @overload
    def __getitem__(self, where: int) -> Record: ...
    @overload
    def __getitem__(self, where: slice) -> Trace: ...
    @overload
    def __getitem__(self, where: str) -> Any: ...
    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, slice):
            return self._of(self._records[where])
        if not isinstance(where, str):
            index = _index(where)
            if not -len(self) <= index < len(self):
                raise IndexError(f"record {index}, but the trace has {len(self)}")
            return self._records[index]
        named = [record for record in self if record.name == where.removesuffix("#1")]
        calls = [record for record in self if record.site.base == where]
        if len(calls) > 1:
            return self._of(calls)
        if not named and not calls:
            raise KeyError(self._unknown(where))
        return (named or calls)[0]

    if not TYPE_CHECKING:  # a type checker should refuse such names itself

        def __getattr__(self, name: str) -> Any:
            """Explain how to get an attribute of a record."""
            public = not name.startswith("_") and not hasattr(type(self), name)
            if public and name in dir(self._records[0] if self._records else Record):
                raise AttributeError(self._of_a_record(name))
            return object.__getattribute__(self, name)  # raises the usual error

    def _of_a_record(self, name: str) -> str:
        """The error for an attribute of a record that was requested of a trace."""
        text = f"a Trace has no {name!r}, a Record has"
        if not self._records:
            return f"{text}; this trace is empty: trace.notes says why"
        call = f".{name}()" if callable(getattr(Record, name, None)) else f".{name}"
        bases = list(dict.fromkeys(record.site.base for record in self))
        if len(self) == 1:
            return f"{text}: take it, as trace[0]{call}"
        if len(bases) > 1:
            names = ", ".join(repr(base) for base in bases[:3]) + ", …" * (len(bases) > 3)
            return f"{text}: take one of {len(self)}, as trace[{bases[0]!r}]{call} ({names})"
        base, steps = bases[0], {record.step for record in self}
        calls = ", ".join(f"{base}#{record.call}" for record in self._records[:3])
        more = ", …" if len(self) > 3 else ""
        passes = f"; trace.steps[0][{base!r}] is that of the first pass" if len(steps) > 1 else ""
        return (
            f"{text}: {base!r} ran {len(self)} times ({calls}{more}); take one call, as "
            f'trace["{base}#{self._records[-1].call}"]{call} or trace["{base}"][0]{call}{passes}'
        )

    def _unknown(self, name: str) -> str:
        names = self.names()
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        if names and not near:
            hint = f": {', '.join(names[:6])}{', …' * (len(names) > 6)}"
        return f"no attention is named {name!r}; there are {len(names)}{hint}"

    def append(self, record: Record) -> None:
        """Add a record."""
        self._records.append(record)

    def get(self, name: str, default: Any = None) -> Any:
        """`trace[name]`, or `default` if there is no such name."""
        return self[name] if isinstance(name, str) and name in self else default

    def names(self) -> list[str]:
        """Names, in order."""
        return [record.name for record in self]

    def keys(self) -> list[str]:
        """The same as `names`."""
        return self.names()

    def values(self) -> list[Record]:
        """Records, in order."""
        return list(self._records)

    def items(self) -> list[tuple[str, Record]]:
        """Names and records, in order."""
        return [(record.name, record) for record in self]

    def layers(self, *numbers: int | Sequence[int]) -> Trace:
        """Records of some layers, by the first number in the module path."""
        which = _numbers(numbers, "layers")
        records = [record for record in self if record.layer in which]
        if not records:
            layers = sorted({record.layer for record in self if record.layer is not None})
            raise RegardError(f"no attention in layers {which}; there are layers {layers}")
        return self._of(records)

    def heads(self, *numbers: int | Sequence[int]) -> Trace:
        """The same trace, restricted to some heads: `heads(0, 3)` or `heads([0, 3])`."""
        which = _numbers(numbers, "heads")
        return self._of([record.of_heads(*which) for record in self])

    def to(self, device: torch.device | str) -> Trace:
        """The same trace with its tensors on a device."""
        return self._of([record.to(device) for record in self])

    def relabel(self, attends: Mapping[str, Attends]) -> Trace:
        """The same trace with some sites labelled "self" or "cross"."""
        if not isinstance(attends, Mapping):
            raise RegardError(
                f"relabel: {attends!r}, expected names and labels, as {{name: 'self'}}"
            )
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

    def with_tokens(self, query: Tokens, key: Tokens | None = None) -> Trace:
        """The same trace with tokens where their number fits: one list for all examples, or a list
        per example. `key` is for the keys of cross-attention."""
        query = checked_tokens(query, "with_tokens")
        key = query if key is None else checked_tokens(key, "with_tokens")
        records = [
            record.with_tokens(
                query if fit(query, record.shape.batch, record.shape.queries) else None,
                key if fit(key, record.shape.batch, record.shape.keys) else None,
            )
            for record in self
        ]
        if records and all(r.query_tokens is r.key_tokens is None for r in records):
            sizes = sorted({(r.shape.batch, r.shape.queries, r.shape.keys) for r in self})
            raise RegardError(
                f"with_tokens: {count(query)} words fit no attention; they have "
                f"(batch, queries, keys) {', '.join(str(size) for size in sizes[:3])}"
            )
        return self._of(records)

    @property
    def steps(self) -> list[Trace]:
        """One trace per forward pass of the model."""
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
        """The reducers' results by name, streamed, in the order given."""
        if not reducers:
            raise RegardError("trace.reduce() needs reducers, as trace.reduce(Entropy())")
        return {record.name: record.reduce(*reducers) for record in self}

    def report(
        self,
        tokens: Any = None,
        *,
        real: Any = None,
        special: Any = None,
        window: int = 4,
        part: str | None = None,
    ) -> Report:
        """A table of all heads: the type of each, and its statistics.

        Args:
            tokens: token ids or strings, (key,) or (batch, key); by default those of the records.
                Induction and duplicate-token scores need them.
            real: which positions are not padding, (position,) or (batch, position).
            special: the special tokens, as positions or a boolean tensor; by default recognised by
                their spelling.
            window: how many positions on each side count as local.
            part: "encoder", "decoder" or "cross" of an encoder–decoder model; by default all.
        """
        return upward.report(
            self, tokens=tokens, real=real, special=special, window=window, part=part
        )

    def find(
        self,
        query: str | int | None = None,
        key: str | int | None = None,
        *,
        pattern: str | None = None,
        words: Any = None,
        special: bool = False,
        example: int = 0,
        part: str | None = None,
    ) -> HeadRanking:
        """Rank all heads by what one word gives another: `trace.find("that", "girl")`.

        With a query alone, heads are ranked by the word that the query gives most. Only the rows
        of the queries are computed.

        Args:
            query: a word, its n-th occurrence as "it#2", or a position; all words when None.
            key: the same, of the word that is attended to.
            pattern: instead of a key, "previous" or "next" word, other occurrences of the "same"
                word, or its "first" occurrence.
            words: the words, as `regard.aggregate.Words` or a list of tokens, or a pair of them
                for queries and keys; by default the tokens of the records.
            special: whether special tokens are among the words. What the query gives them counts
                in either case: weights are shares of all its attention.
            example: which example of the batch.
            part: of an encoder–decoder model, "encoder", "decoder" or "cross"; all when None.
        """
        return upward.find(
            self,
            query=query,
            key=key,
            pattern=pattern,
            words=words,
            special=special,
            example=example,
            part=part,
        )

    def clear_gradients(self) -> None:
        """Reset gradients, which add up over backward passes as `.grad` does."""
        for record in self:
            record.clear_gradient()

    def plot(self, what: str | None = None, **options: Any) -> Spec:
        """A plot: `.save("file.png")` writes it, a notebook shows it. Needs `regard[plots]`.

        Args:
            what: "heatmap", "grid", "alignment", "by_head", "profile", "text", "overlay",
                "windows" or "channels"; by default a heat map for a single attention, else the
                grid of all heads.
            options: passed to the function of that name in `regard.plots`.
        """
        return upward.plot(self, what, **options)

    @property
    def attentions(self) -> tuple[Any, ...]:
        """Self-attention weights, layer by layer; after several passes a tuple per pass."""
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
        """Cross-attention weights, layer by layer."""
        return forms.part(self._records, "cross")

    def save(self, path: str | Path, **options: Any) -> Path:
        """Save the trace to one file: an HTML page, or its data.

        Args:
            path: `attention.html` for a page; `attention.safetensors` for data that
                `regard.load_trace` reads back, running no code.
            options: for a page, those of `regard.viewer.page`, such as `title`, `words`, `example`.
        """
        return upward.save(self, path, **options)

    def __repr__(self) -> str:
        return table.text(self)

    def _repr_html_(self) -> str:
        """The page in a frame, or the table if a page is not possible."""
        return upward.shown(self)

    def _of(self, records: Any) -> Trace:
        return Trace(list(records), notes=self.notes, other_softmaxes=self.other_softmaxes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "output": None}


def _index(where: Any) -> int:
    try:
        return operator.index(where)
    except TypeError:
        raise TypeError(
            f"trace[{where!r}]: expected a name, a number or a slice; one head of a record is "
            "trace[name].weights()[:, head]"
        ) from None


def _numbers(numbers: Sequence[Any], what: str) -> list[int]:
    """Whole numbers, given one by one or as a list."""
    if len(numbers) == 1 and isinstance(numbers[0], list | tuple | range):
        numbers = numbers[0]
    try:
        return [operator.index(number) for number in numbers]
    except TypeError:
        raise RegardError(f"{what}: {numbers!r}, expected whole numbers, as {what}(0, 1)") from None
