"""`regard.graft`: attention attached to a model that is already trained, and removed again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from regard.anatomy.wrappers import is_wrapper
from regard.blocks import AttentionBlock
from regard.contract import Mechanism
from regard.errors import RegardError, StateError, UnavailableError
from regard.grafting.joined_forward import GraftedForward, Grafts
from regard.grafting.parts import GraftWarning, Part
from regard.grafting.sites import (
    NAMESPACE,
    Site,
    ancestors,
    check_path,
    in_graft,
    output_width,
    refuse_sequence_first,
    sequence_first,
)
from regard.grafting.store import load, save


class Graft:
    """A part on a model; what `graft` returns.

    | attribute | meaning                                                       |
    |-----------|---------------------------------------------------------------|
    | `model`   | the model                                                     |
    | `part`    | the part, also at `model.regard_graft.<name>`                 |
    | `name`    | its name; keys in the state dict begin `regard_graft.<name>.` |
    """

    def __init__(self, model: nn.Module, part: Part, name: str) -> None:
        self.model, self.part, self.name = model, part, name

    def __repr__(self) -> str:
        sites = f"reads {self.part.reads!r}, into {self.part.into!r}"
        removed = "" if self._is_attached else "; removed"
        return f"Graft({self.name!r} on {type(self.model).__name__}: {sites}{removed})"

    @property
    def _is_attached(self) -> bool:
        return grafts(self.model).get(self.name) is self

    def remove(self) -> Part:
        """Restore the model as it was before; returns the part with its trained parameters."""
        if not self._is_attached:
            raise StateError(f"graft {self.name!r} is not on the model any more")
        holder: Grafts = self.model._modules[NAMESPACE]  # type: ignore[assignment]
        is_last = len(holder.handles) == 1
        unneeded = [
            forward
            for forward in holder.forwards.values()
            if (forward.names() <= {self.name} if forward.path else is_last)
        ]
        for forward in unneeded:
            if not forward.is_installed:
                raise StateError(
                    f"graft {self.name!r}: the forward of '{forward.path}' was replaced by "
                    "other code after grafting; undo that first"
                )
        for forward in holder.forwards.values():
            forward.forget(self.name)
        for forward in unneeded:
            forward.restore()
            del holder.forwards[forward.path]
        del holder.handles[self.name], holder.sites[self.name]
        del holder._modules[self.name]
        _unfreeze(holder, self.name)
        if is_last:
            del self.model._modules[NAMESPACE]
        return self.part

    def save(self, path: str | Path) -> Path:
        """Write the part alone, as safetensors, with digests of the base model it belongs to."""
        return save(Path(path), self.model, self.name, self.part)

    def load(self, path: str | Path) -> Graft:
        """Read the part from a file; raises where base model, sites, settings or shapes differ."""
        load(Path(path), self.model, self.part)
        return self


def graft(model: nn.Module, part: Part, *, name: str | None = None, freeze: bool = False) -> Graft:
    """Add a part to a trained model, without an edit to its source.

    Right after grafting, outputs are bit-identical to those before.

    Args:
        model: any module. Graft before wrapping it in DDP or compiling it.
        part: an `OutputAttention`, a `ReuseLayer` or a `GateLayer`; it is moved to the model's
            device and dtype.
        name: of the graft; its parameters are `regard_graft.<name>.…`. After the kind of part
            when None.
        freeze: freeze the model's own parameters until the graft is removed.
    """
    _check_model(model)
    if not isinstance(part, Part):
        shown = part.__name__ if isinstance(part, type) else type(part).__name__
        raise RegardError(
            f"graft: part is {shown}, expected an OutputAttention, a ReuseLayer or a GateLayer"
        )
    reads, into = Site.parse("reads", part.reads), Site.parse("into", part.into)
    check_path(model, "reads", reads.path)
    check_path(model, "into", into.path)
    child = model._modules.get(NAMESPACE)
    holder = child if isinstance(child, Grafts) else Grafts(model)
    if any(part is other for other in holder._modules.values()):
        raise RegardError("graft: this part is on the model already")
    holder.inputs.check(part)
    name = _checked_name(holder, part, name)
    _check_sites(model, part, reads, into)
    forwards = _forwards(model, holder, part, into)
    _install(forwards)
    floats = (tensor for tensor in model.parameters() if tensor.is_floating_point())
    reference = next(floats, None)
    if reference is not None:
        part.to(reference.device, reference.dtype)
    part.train(model.training)
    if child is None:
        model.add_module(NAMESPACE, holder)
    holder.add_module(name, part)
    holder.sites[name] = reads, into
    holder.forwards |= {forward.path: forward for forward in forwards}
    holder.forwards[part.read_path(model)].readers.append(name)
    holder.forwards[into.path].joiners.append(name)
    for forward in forwards:
        if isinstance(forward.module, AttentionBlock | Mechanism):
            forward.guards.append(name)
    handle = Graft(model, part, name)
    holder.handles[name] = handle
    if freeze:
        _freeze(model, holder, name)
    return handle


def grafts(model: nn.Module) -> dict[str, Graft]:
    """The grafts on a model, by name; a copy of a grafted model has its own."""
    holder = model._modules.get(NAMESPACE)
    return dict(holder.handles) if isinstance(holder, Grafts) else {}


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise RegardError(f"graft: model is {type(model).__name__}, expected an nn.Module")
    kind = type(model).__name__
    if is_wrapper(model):
        raise UnavailableError(
            f"graft: the model is already wrapped by {kind}, which has registered its parameters "
            "and code; graft the model first, then wrap it"
        )
    if kind in ("RecursiveScriptModule", "TopLevelTracedModule", "ScriptModule"):
        raise UnavailableError(f"graft: a {kind} cannot be changed; graft the model it came from")
    compiled = [
        path for path, module in model.named_modules() if module._compiled_call_impl is not None
    ]
    if compiled:
        raise UnavailableError(
            f"graft: '{compiled[0]}' is already compiled; graft the model first, then compile it"
        )
    if NAMESPACE in model._modules and not isinstance(model._modules[NAMESPACE], Grafts):
        raise RegardError(f"graft: the model has a child named {NAMESPACE!r} of its own")


def _checked_name(holder: Grafts, part: Part, name: str | None) -> str:
    if name is None:
        word = part.default_name
        names = [word, *(f"{word}_{number}" for number in range(2, len(holder._modules) + 2))]
        return next(free for free in names if free not in holder._modules)
    if name in holder._modules:
        raise RegardError(f"graft: name={name!r} is taken; there are {list(holder._modules)}")
    if not isinstance(name, str) or not name.isidentifier() or hasattr(holder, name):
        raise RegardError(f"graft: name={name!r}, expected a plain word such as 'output'")
    return name


def _check_sites(model: nn.Module, part: Part, reads: Site, into: Site) -> None:
    """Raise where a site cannot be read or joined, as far as can be told without running."""
    part.check_widths(output_width(model, reads), output_width(model, into))
    states = {"reads": reads, "into": into} if part.reads_states else {"into": into}
    for argument, site in states.items():
        refuse_sequence_first(model, argument, site.path)
    path = sequence_first(model)
    if path is not None:
        outputs = " and ".join(f"'{site}'" for site in states.values())
        warnings.warn(
            f"graft: batch_first is False in '{path}'; make sure that the output of {outputs} is "
            "(batch, position, width), or examples are mixed",
            GraftWarning,
            stacklevel=3,
        )


def _forwards(model: nn.Module, holder: Grafts, part: Part, into: Site) -> list[GraftedForward]:
    """The forwards to replace: of the model, of the two sites, and of blocks around them.

    Those of blocks refuse cached decoding.
    """
    paths = [part.read_path(model), into.path]
    blocks = [
        ancestor
        for path in paths
        for ancestor in ancestors(path)
        if isinstance(model.get_submodule(ancestor), AttentionBlock)
    ]
    return [
        holder.forwards.get(path) or GraftedForward(path, model.get_submodule(path), holder)
        for path in dict.fromkeys(["", *paths, *blocks])
    ]


def _install(forwards: list[GraftedForward]) -> None:
    """Replace forwards, all of them or none."""
    installed: list[GraftedForward] = []
    try:
        for forward in forwards:
            if not forward.is_installed and forward.path not in forward.grafts.forwards:
                forward.install()
                installed.append(forward)
    except UnavailableError:
        for forward in installed:
            forward.restore()
        raise


def _freeze(model: nn.Module, holder: Grafts, name: str) -> None:
    for path, parameter in model.named_parameters():
        if parameter.requires_grad and not in_graft(path):
            parameter.requires_grad_(False)
            holder.frozen.append(parameter)
    holder.freezers.add(name)
    moving = [
        path
        for path, module in model.named_modules()
        if getattr(module, "track_running_stats", False) and not in_graft(path)
    ]
    if moving:
        warnings.warn(
            f"graft: freeze=True freezes parameters; in train mode the running statistics of "
            f"'{moving[0]}' still move, and with them the base model. Call .eval() on it",
            GraftWarning,
            stacklevel=3,
        )


def _unfreeze(holder: Grafts, name: str) -> None:
    if name in holder.freezers:
        holder.freezers.discard(name)
        if not holder.freezers:
            for parameter in holder.frozen:
                parameter.requires_grad_(True)
            holder.frozen = []
