"""The tap of a graft: what stands in the place of a module's `forward`, and where parts live.

Hooks would do the same, but a hook on a layer of `nn.TransformerEncoder` turns torch's fast path
off, and the outputs move. A `forward` of the module's own is not noticed there.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import DtypeError, MaskError, StateError, UnavailableError
from regard.masks import Mask
from regard.reuse.graft_passes import Pass, Passes, refuse_reentrant
from regard.reuse.graft_sites import Place

Call = Callable[..., Any]


class Part(nn.Module, ABC):
    """Something that can be grafted: it reads at one place and changes the output of another.

    | attribute | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `reads`   | the place that is read                                                      |
    | `into`    | the place whose output is changed                                           |
    | `mask`    | the model's input that tells padding, "~" before it where True is padding   |
    """

    reads: str
    into: str
    mask: str | None = None

    @abstractmethod
    def watch(self, module: nn.Module, call: Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Run what is read, and return its output and what was seen; nothing is computed here."""

    def watched(self, model: nn.Module) -> str:
        """The path of the module that is watched."""
        return Place.of("reads", self.reads).path

    @abstractmethod
    def forward(self, state: Tensor, seen: Any, mask: Mask | None) -> Tensor:
        """The output of `into` with this part, given its output without."""


class Forward:
    """In the place of a module's `forward`: runs it, and lets grafts see and change its output."""

    def __init__(self, path: str, module: nn.Module, grafts: Grafts) -> None:
        self.path, self.module, self.grafts = path, module, grafts
        self.own = module.__dict__.get("forward")  # somebody else's stand-in
        self.readers: list[str] = []
        self.joiners: list[str] = []
        self.__signature__ = inspect.signature(module.forward)
        module.forward = self

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do here."""
        return not self.readers and not self.joiners

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
        under_way, again = self.grafts.passes.now()
        if under_way is None:
            return self._plain(*args, **kwargs)
        under_way.calls[self.path] += 0 if again else 1
        output = self._plain(*args, **kwargs) if again else self._seen(under_way, args, kwargs)
        for name in self.joiners:
            output = self.grafts.join(name, under_way, output, again)
        return output

    def _seen(self, under_way: Pass, args: Any, kwargs: Any) -> Any:
        call: Call = self._plain
        for name in self.readers:
            call = _Watched(self, name, under_way, call)
        return call(*args, **kwargs)

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
        output, seen = grafts.part(self.name).watch(forward.module, self.call, args, kwargs)
        self.under_way.seen.setdefault(self.name, []).append(seen)
        return output


class Grafts(nn.Module):
    """The child of a model that holds what was grafted onto it.

    As a module it passes on what it is given: `nn.Sequential` runs all of its children.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.passes = Passes()
        self.forwards: dict[str, Forward] = {}
        self.handles: dict[str, Any] = {}
        self.freezers: set[str] = set()
        self.frozen: list[nn.Parameter] = []
        taken = inspect.signature(model.forward).parameters.values()
        self.inputs = [one.name for one in taken if one.kind is not one.VAR_KEYWORD]
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in taken)

    def forward(self, given: Any) -> Any:
        """What was given."""
        return given

    def part(self, name: str) -> Part:
        """The part of a graft."""
        found = self._modules[name]
        assert isinstance(found, Part)
        return found

    @property
    def trains_base(self) -> bool:
        """Whether some parameter of the model itself wants a gradient."""
        mine = {id(parameter) for parameter in self.parameters()}
        model = self.forwards[""].module
        return any(one.requires_grad and id(one) not in mine for one in model.parameters())

    def asked(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The inputs of the model that parts have named."""
        given = {**dict(zip(self.inputs, args)), **kwargs}
        _refuse_cache(given.get("past_key_values"))
        named = {part.mask.removeprefix("~") for part in self._parts() if part.mask is not None}
        return {name: given.get(name) for name in named}

    def _parts(self) -> list[Part]:
        return [self.part(name) for name in self._modules]

    def join(self, name: str, under_way: Pass, output: Any, again: bool) -> Any:
        """The output of a site with the part of one graft."""
        part = self.part(name)
        place = Place.of("into", part.into)
        if place.call is not None and again:
            raise StateError(
                f"graft {name!r}: into='{place}' counts calls, which gradient checkpointing "
                "repeats; leave the number out, or do not checkpoint this site"
            )
        if not again and not place.takes(under_way.calls[place.path]):
            return output
        if under_way.lost_gradient:
            refuse_reentrant(place.path)
        seen = _seen(name, Place.of("reads", part.reads), place, under_way)
        state = place.pick(output)
        joined = part(state, seen, padding_of(part, under_way))
        if joined.shape != state.shape:
            raise StateError(
                f"graft {name!r}: the part made {tuple(joined.shape)} of the output of '{place}', "
                f"expected {tuple(state.shape)}"
            )
        under_way.joined.add(name)
        self.passes.hold(under_way, joined)
        return place.put(output, joined)

    def check_joined(self, under_way: Pass) -> None:
        """Raise where a site never ran, so that its graft did nothing."""
        for name in self._modules:
            if name not in under_way.joined:
                raise StateError(
                    f"graft {name!r}: nothing was joined, since '{self.part(name).into}' did not "
                    "run in this pass; name a module that is called in every pass (torch's fast "
                    "paths do not call the modules inside a layer)"
                )


def _refuse_cache(cache: Any) -> None:
    """A step of cached decoding shows the new positions alone; a part would attend to those."""
    if cache is None:
        return
    length = cache.get_seq_length() if hasattr(cache, "get_seq_length") else len(cache)
    if length:
        raise UnavailableError(
            f"graft: the model was given a cache of {length} positions, whose states a graft "
            "cannot see; run it on whole sequences, in generate() with use_cache=False"
        )


def _seen(name: str, reads: Place, into: Place, under_way: Pass) -> Any:
    calls = under_way.seen.get(name, [])
    if reads.call is not None and len(calls) >= reads.call:
        return calls[reads.call - 1]
    if len(calls) == 1 and reads.call is None:
        return calls[0]
    if len(calls) > 1 and reads.call is None:
        raise StateError(
            f"graft {name!r}: '{reads}' ran {len(calls)} times before '{into}'; say which, as "
            f"'{reads.path}#{len(calls)}' for the last of them"
        )
    raise StateError(
        f"graft {name!r}: '{reads}' did not run before '{into}' in this pass; it must run inside "
        "the model's own forward, first (torch's fast paths do not call the modules inside a "
        "layer, and generate() runs an encoder by itself)"
    )


def padding_of(part: Part, under_way: Pass) -> Mask | None:
    """The mask of the input that a part has named; None where the model was not given it."""
    if part.mask is None:
        return None
    name = part.mask.removeprefix("~")
    given = under_way.inputs[name]
    if given is None:
        return None
    if not isinstance(given, Tensor) or given.dim() != 2:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise MaskError(f"graft: mask='{part.mask}' is {shape}, expected (batch, key)")
    if given.is_floating_point():
        raise DtypeError(
            f"graft: mask='{part.mask}' is {given.dtype}, expected torch.bool or whole numbers"
        )
    real = given == 0 if part.mask.startswith("~") else given != 0
    # A look at a processor's own memory costs less than to heed a mask that forbids nothing.
    looked_at = real.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if looked_at and bool(real.all()) else masks.padding(real)


def same_kind(part: nn.Module, model: nn.Module) -> None:
    """Move a part to the device and dtype of a model."""
    reference = next((one for one in model.parameters() if one.is_floating_point()), None)
    if reference is not None:
        part.to(reference.device, reference.dtype)


def dtype_of(module: nn.Module, default: torch.dtype) -> torch.dtype:
    """What a module computes in."""
    return next((one.dtype for one in module.parameters() if one.is_floating_point()), default)
