"""Where an attention happened; notes of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attends = Literal["self", "cross", "unknown"]
NoteKind = Literal["empty", "unread", "filter", "unseen", "dropped", "error", "changed", "axes"]


@dataclass(frozen=True)
class Site:
    """Where one attention happened: module, source line, number of the call.

    `attends` comes from data flow (do query and key have the same input?), a heuristic that
    `trace.relabel({name: "cross"})` overrides. If `axes_known` is False, the order of the axes of
    the weights is unknown: `record.with_axes("batch head query key")` sets it.
    """

    path: str  #: module path, `encoder.layer.3.attention.self`; empty for the model itself
    module_class: str  #: class of that module
    source: str  #: file and line of the call
    operator: str  #: the operator it was recognised by
    call: int = 1  #: which call of the same module, from 1
    step: int = 0  #: which forward pass of the model, from 0
    attends: Attends = "unknown"
    axes_known: bool = True  #: whether weights are (batch, head, query, key)

    @property
    def base(self) -> str:
        """The name that all calls share: the path, or the class for the model itself."""
        return self.path or self.module_class

    @property
    def name(self) -> str:
        """The path, with the call number from the second call on."""
        return self.base if self.call == 1 else f"{self.base}#{self.call}"

    @property
    def layer(self) -> int | None:
        """The first number in the path."""
        return next((int(part) for part in self.path.split(".") if part.isdigit()), None)


@dataclass(frozen=True)
class Note:
    """Something that a capture could not read, dropped, or never saw."""

    kind: NoteKind
    where: str  #: module path or operator
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


@dataclass(frozen=True)
class OtherSoftmax:
    """A softmax that weighed something and is not attention, with the reason."""

    path: str
    module_class: str
    source: str
    shape: tuple[int, ...]
    reason: str
