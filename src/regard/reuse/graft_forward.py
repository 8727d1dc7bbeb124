"""The tap of a graft: what stands in the place of a module's `forward`.

Hooks would do the same, but a hook on a layer of `nn.TransformerEncoder` turns torch's fast path
off, and the outputs move. A `forward` of the module's own is not noticed there.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

from torch import nn

from regard.errors import UnavailableError
from regard.reuse.graft_inputs import refuse_cache, signature_of
from regard.reuse.graft_part import Call
from regard.reuse.graft_passes import Pass, refuse_reentrant

if TYPE_CHECKING:
    from regard.reuse.graft_holder import Grafts


class Forward:
    """In the place of a module's `forward`: runs it, and lets grafts see and change its output."""

    def __init__(self, path: str, module: nn.Module, grafts: Grafts) -> None:
        self.path, self.module, self.grafts = path, module, grafts
        self.own = module.__dict__.get("forward")  # somebody else's stand-in
        self.readers: list[str] = []
        self.joiners: list[str] = []
        self.guards: list[str] = []  #: grafts that must not see a step of cached decoding
        self.__signature__ = signature_of(module, path)

    def install(self) -> None:
        """Take the place."""
        try:
            self.module.forward = self
        except (AttributeError, TypeError, RuntimeError) as error:
            raise UnavailableError(
                f"graft: the forward of '{self.path}' ({type(self.module).__name__}) cannot be "
                f"stood in for: {error}"
            ) from error

    @property
    def __code__(self) -> CodeType:
        """What `torch.export` names inputs after: it takes every `forward` for a function."""
        return type(self).__call__.__code__

    @property
    def in_place(self) -> bool:
        """Whether this is still the module's `forward`."""
        return self.module.__dict__.get("forward") is self

    def restore(self) -> None:
        """Give the module its `forward` back."""
        if self.own is None:
            del self.module.__dict__["forward"]
        else:
            self.module.forward = self.own

    def names(self) -> set[str]:
        """The grafts that need this stand-in."""
        return {*self.readers, *self.joiners, *self.guards}

    def forget(self, name: str) -> None:
        """A graft is taken off."""
        for names in (self.readers, self.joiners, self.guards):
            names[:] = [other for other in names if other != name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.path:
            return self._run(args, kwargs)
        passes = self.grafts.passes
        under_way = passes.begin(self.grafts.asked(args, kwargs))
        try:
            output = self._run(args, kwargs)
            self.grafts.check_joined(under_way)
        finally:
            passes.end()
        return output

    def _run(self, args: Any, kwargs: Any) -> Any:
        under_way = self.grafts.passes.now()
        if under_way is None:  # by itself, or in a backward pass
            output = self._plain(*args, **kwargs)
            for name in self.joiners:
                output = self.grafts.join_again(name, output)
            return output
        under_way.calls[self.path] += 1
        if self.guards:
            refuse_cache(kwargs.get("state"))
        call: Call = self._plain
        for name in self.readers:
            call = _Watched(self, name, under_way, call)
        output = call(*args, **kwargs)
        for name in self.joiners:
            output = self.grafts.join(name, under_way, output)
        return output

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


class _Watched:
    """A call that one graft watches."""

    def __init__(self, forward: Forward, name: str, under_way: Pass, call: Call) -> None:
        self.forward, self.name, self.under_way, self.call = forward, name, under_way, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        grafts, forward = self.forward.grafts, self.forward
        if self.under_way.lost_gradient and grafts.trains_base:
            refuse_reentrant(forward.path)
        reads, _ = grafts.places[self.name]
        part = grafts.part(self.name)
        output, seen = part.watch(reads, forward.module, self.call, args, kwargs)
        self.under_way.seen.setdefault(self.name, []).append(seen)
        return output
