"""`regard.graft`: attention added to a model that is already trained, and taken off again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from regard.anatomy.wrappers import is_wrapper
from regard.blocks import AttentionBlock
from regard.contract import Mechanism
from regard.errors import RegardError, StateError, UnavailableError
from regard.reuse.graft_forward import Forward
from regard.reuse.graft_gate import GateLayer
from regard.reuse.graft_holder import Grafts
from regard.reuse.graft_output import Latents, OutputAttention, States, ZeroProjection
from regard.reuse.graft_part import GraftWarning, Part, same_kind
from regard.reuse.graft_reuse import ReuseLayer
from regard.reuse.graft_sites import (
    NAMESPACE,
    Place,
    above,
    inside,
    module_at,
    refuse_sequence_first,
    sequence_first,
    width_of,
)
from regard.reuse.graft_store import load, save

__all__ = [
    "GateLayer",
    "GraftWarning",
    "Grafted",
    "Latents",
    "OutputAttention",
    "Part",
    "ReuseLayer",
    "States",
    "ZeroProjection",
    "graft",
    "grafts",
]


class Grafted:
    """A part on a model; what `graft` returns.

    | attribute | meaning                                                       |
    |-----------|---------------------------------------------------------------|
    | `model`   | the model                                                     |
    | `part`    | the part, also found at `model.regard_graft.<name>`           |
    | `name`    | its name; keys in the state dict begin `regard_graft.<name>.` |
    """

    def __init__(self, model: nn.Module, part: Part, name: str) -> None:
        self.model, self.part, self.name = model, part, name

    def __repr__(self) -> str:
        where = f"reads {self.part.reads!r}, into {self.part.into!r}"
        off = "" if self._is_on else "; removed"
        return f"Grafted({self.name!r} on {type(self.model).__name__}: {where}{off})"

    @property
    def _is_on(self) -> bool:
        return grafts(self.model).get(self.name) is self

    def remove(self) -> Part:
        """Take the part off: the model is as it was. Returns the part, trained as it is."""
        if not self._is_on:
            raise StateError(f"graft {self.name!r} is not on the model any more")
        holder: Grafts = self.model._modules[NAMESPACE]  # type: ignore[assignment]
        last = len(holder.handles) == 1
        ending = [
            one
            for one in holder.forwards.values()
            if (one.names() <= {self.name} if one.path else last)
        ]
        for forward in ending:
            if not forward.in_place:
                raise StateError(
                    f"graft {self.name!r}: the forward of '{forward.path}' was replaced by "
                    "somebody else after grafting; undo that first"
                )
        for forward in holder.forwards.values():
            forward.forget(self.name)
        for forward in ending:
            forward.restore()
            del holder.forwards[forward.path]
        del holder.handles[self.name], holder.places[self.name]
        del holder._modules[self.name]
        _thaw(holder, self.name)
        if last:
            del self.model._modules[NAMESPACE]
        return self.part

    def save(self, path: str | Path) -> Path:
        """Write the part alone, as safetensors, with digests of the base model it belongs to."""
        return save(Path(path), self.model, self.name, self.part)

    def load(self, path: str | Path) -> Grafted:
        """Read the part from a file; refused where base model, sites or shapes are others."""
        load(Path(path), self.model, self.part)
        return self


def graft(
    model: nn.Module, part: Part, *, name: str | None = None, freeze: bool = False
) -> Grafted:
    """Add a part to a model that is already trained, without an edit to its source.

    At the moment of grafting the outputs are bit for bit what they were.

    Args:
        model: any module. Graft before it is wrapped for DDP or compiled.
        part: an `OutputAttention`, a `ReuseLayer` or a `GateLayer`; it is moved to the model's
            device and dtype.
        name: under which its parameters are found, `regard_graft.<name>.…`; made up when None.
        freeze: let the model's own parameters have no gradient until the part is removed.
    """
    _check_model(model)
    if not isinstance(part, Part):
        shown = part.__name__ if isinstance(part, type) else type(part).__name__
        raise RegardError(
            f"graft: part is {shown}, expected an OutputAttention, a ReuseLayer or a GateLayer"
        )
    reads, into = Place.of("reads", part.reads), Place.of("into", part.into)
    for argument, place in (("reads", reads), ("into", into)):
        module_at(model, argument, place.path)
    held = model._modules.get(NAMESPACE)
    holder = held if isinstance(held, Grafts) else Grafts(model)
    if any(part is other for other in holder._modules.values()):
        raise RegardError("graft: this part is on the model already")
    holder.inputs.check(part)
    name = _checked_name(holder, part, name)
    _check_sites(model, part, reads, into)
    forwards = _forwards(model, holder, part, into)
    _install(forwards)
    same_kind(part, model)
    part.train(model.training)
    if held is None:
        model.add_module(NAMESPACE, holder)
    holder.add_module(name, part)
    holder.places[name] = reads, into
    holder.forwards |= {forward.path: forward for forward in forwards}
    holder.forwards[part.watched(model)].readers.append(name)
    holder.forwards[into.path].joiners.append(name)
    for forward in forwards:
        if isinstance(forward.module, AttentionBlock | Mechanism):
            forward.guards.append(name)
    handle = Grafted(model, part, name)
    holder.handles[name] = handle
    if freeze:
        _freeze(model, holder, name)
    return handle


def grafts(model: nn.Module) -> dict[str, Grafted]:
    """What is grafted onto a model, by name; a copy of a grafted model has its own."""
    holder = model._modules.get(NAMESPACE)
    return dict(holder.handles) if isinstance(holder, Grafts) else {}


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise RegardError(f"graft: model is {type(model).__name__}, expected an nn.Module")
    kind = type(model).__name__
    if is_wrapper(model):
        raise UnavailableError(
            f"graft: the model is already wrapped by {kind}, which has taken note of its "
            "parameters and code; graft the model first, then wrap it"
        )
    if kind in ("RecursiveScriptModule", "TopLevelTracedModule", "ScriptModule"):
        raise UnavailableError(f"graft: a {kind} cannot be changed; graft the model it came from")
    compiled = [path for path, one in model.named_modules() if one._compiled_call_impl is not None]
    if compiled:
        raise UnavailableError(
            f"graft: '{compiled[0]}' is already compiled; graft the model first, then compile it"
        )
    if NAMESPACE in model._modules and not isinstance(model._modules[NAMESPACE], Grafts):
        raise RegardError(f"graft: the model has a child named {NAMESPACE!r} of its own")


def _checked_name(holder: Grafts, part: Part, name: str | None) -> str:
    if name is None:
        words = {OutputAttention: "output", GateLayer: "gate"}
        word = next((word for kind, word in words.items() if isinstance(part, kind)), "reuse")
        names = [word, *(f"{word}_{number}" for number in range(2, len(holder._modules) + 2))]
        return next(free for free in names if free not in holder._modules)
    if name in holder._modules:
        raise RegardError(f"graft: name={name!r} is taken; there are {list(holder._modules)}")
    if not isinstance(name, str) or not name.isidentifier() or hasattr(holder, name):
        raise RegardError(f"graft: name={name!r}, expected a plain word such as 'output'")
    return name


def _check_sites(model: nn.Module, part: Part, reads: Place, into: Place) -> None:
    """Raise where a place cannot be read or joined, as far as it can be told beforehand."""
    part.check_widths(*(width_of(model.get_submodule(one.path), one) for one in (reads, into)))
    states = {"reads": reads, "into": into} if part.reads_states else {"into": into}
    for argument, place in states.items():
        refuse_sequence_first(model, argument, place.path)
    found = sequence_first(model)
    if found is not None:
        warnings.warn(
            f"graft: batch_first is False in '{found}'; make sure that the output of "
            f"{' and '.join(map(_quoted, states.values()))} is (batch, position, "
            "width), or examples are mixed",
            GraftWarning,
            stacklevel=3,
        )


def _quoted(place: Place) -> str:
    return f"'{place}'"


def _forwards(model: nn.Module, holder: Grafts, part: Part, into: Place) -> list[Forward]:
    """The stand-ins that a part needs; those of blocks around it see to it that none is cached."""
    sites = [part.watched(model), into.path]
    blocks = [
        path
        for site in sites
        for path in above(site)
        if isinstance(model.get_submodule(path), AttentionBlock)
    ]
    return [
        holder.forwards.get(path) or Forward(path, model.get_submodule(path), holder)
        for path in dict.fromkeys(["", *sites, *blocks])
    ]


def _install(forwards: list[Forward]) -> None:
    """Put stand-ins in place, all of them or none."""
    done: list[Forward] = []
    try:
        for forward in forwards:
            if not forward.in_place and forward.path not in forward.grafts.forwards:
                forward.install()
                done.append(forward)
    except UnavailableError:
        for forward in done:
            forward.restore()
        raise


def _freeze(model: nn.Module, holder: Grafts, name: str) -> None:
    for path, parameter in model.named_parameters():
        if parameter.requires_grad and not inside(path):
            parameter.requires_grad_(False)
            holder.frozen.append(parameter)
    holder.freezers.add(name)
    moving = [
        path
        for path, one in model.named_modules()
        if getattr(one, "track_running_stats", False) and not inside(path)
    ]
    if moving:
        warnings.warn(
            f"graft: freeze=True holds parameters; in train mode the running statistics of "
            f"'{moving[0]}' go on moving, and with them the base model. Call .eval() on it",
            GraftWarning,
            stacklevel=3,
        )


def _thaw(holder: Grafts, name: str) -> None:
    if name in holder.freezers:
        holder.freezers.discard(name)
        if not holder.freezers:
            for parameter in holder.frozen:
                parameter.requires_grad_(True)
            holder.frozen = []
