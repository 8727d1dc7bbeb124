"""A forward pass of a grafted model: what its grafts read in it, and where they join outputs.

Each module that a graft needs gets a `forward` of its own, a `GraftedForward`. Hooks would do the
same, but a hook on a layer of `nn.TransformerEncoder` turns torch's fast path off, and outputs
change.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from regard import masks
from regard.contract import RecurrentState, State
from regard.errors import (
    DtypeError,
    MaskError,
    RegardError,
    ShapeError,
    StateError,
    UnavailableError,
)
from regard.grafting.parts import Call, GraftWarning, Part
from regard.grafting.sites import Site, nearest
from regard.masks import Mask


class Pass:
    """One call of a model: its inputs, and what was read in it so far."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs  #: inputs of the model that parts name
        self.readings: dict[str, list[Any]] = {}  #: of each graft, call by call
        self.calls: Counter[str] = Counter()  #: of each module
        self.joined: set[str] = set()  #: grafts whose part has run
        self.with_gradient = torch.is_grad_enabled()

    def reading(self, name: str, reads: Site, into: Site) -> Any:
        """What a graft read, of the call that its site names."""
        readings = self.readings.get(name, [])
        if reads.call is not None and len(readings) >= reads.call:
            return readings[reads.call - 1]
        if len(readings) == 1 and reads.call is None:
            return readings[0]
        if len(readings) > 1 and reads.call is None:
            raise StateError(
                f"graft {name!r}: '{reads}' ran {len(readings)} times before '{into}'; say which, "
                f"as '{reads.path}#{len(readings)}' for the last of them"
            )
        raise StateError(
            f"graft {name!r}: '{reads}' did not run before '{into}' in this pass; it must run "
            "inside the model's own forward, first (torch's fast paths do not call the modules "
            "inside a layer, and generate() runs an encoder by itself)"
        )


class _Passes(threading.local):
    """The passes that are running in this thread, the innermost last."""

    def __init__(self) -> None:
        self.running: list[Pass] = []

    def __reduce__(self) -> tuple[type[_Passes], tuple[()]]:
        return _Passes, ()  # a pass is neither copied nor pickled


class Grafts(nn.Module):
    """The child of a model that holds its grafted parts by name.

    As a module it is the identity: `nn.Sequential` runs all of its children.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.passes = _Passes()
        self.inputs = ModelInputs(model)
        self.forwards: dict[str, GraftedForward] = {}
        self.handles: dict[str, Any] = {}
        self.sites: dict[str, tuple[Site, Site]] = {}  #: of each graft: `reads` and `into`
        self.freezers: set[str] = set()
        self.frozen: list[nn.Parameter] = []

    def forward(self, x: Any) -> Any:
        """The identity."""
        return x

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise UnavailableError(
            "graft: nn.DataParallel copies a model without its grafts; use "
            "DistributedDataParallel, or remove the grafts first"
        )

    def part(self, name: str) -> Part:
        """The part of a graft."""
        part = self._modules[name]
        assert isinstance(part, Part)
        return part

    @property
    def trains_base(self) -> bool:
        """Whether some parameter of the model itself requires a gradient."""
        own = {id(parameter) for parameter in self.parameters()}
        parameters = self.forwards[""].module.parameters()
        return any(tensor.requires_grad and id(tensor) not in own for tensor in parameters)

    def run_model(self, call: Call, args: Any, kwargs: Any) -> Any:
        """One pass: run the model itself, and check that every graft has joined."""
        parts = [self.part(name) for name in self._modules]
        current = Pass(self.inputs.select(parts, args, kwargs))
        self.passes.running.append(current)
        try:
            output = call(args, kwargs)
        finally:
            self.passes.running.pop()
        for name in self._modules:
            if name not in current.joined:
                raise StateError(
                    f"graft {name!r}: nothing was joined, since '{self.part(name).into}' did not "
                    "run in this pass; name a module that is called in every pass (torch's fast "
                    "paths do not call the modules inside a layer)"
                )
        return output

    def join(self, name: str, current: Pass, output: Any) -> Any:
        """The output of a site, changed by the part of one graft."""
        reads, into = self.sites[name]
        if not into.includes(current.calls[into.path]):
            return output
        if current.with_gradient and not torch.compiler.is_compiling():
            refuse_checkpoint(name, into)
        part = self.part(name)
        state = into.pick(output, part.takes_images)
        reading = current.reading(name, reads, into)
        where = f"graft {name!r} (reads '{reads}', into '{into}')"
        try:
            joined: Tensor = part(state, reading, padding_mask(part, current.inputs, into, state))
        except (ShapeError, DtypeError, MaskError) as error:
            raise type(error)(f"{where}: {error}") from error
        if joined.shape != state.shape:
            raise StateError(
                f"graft {name!r}: the part's output is {tuple(joined.shape)}, expected "
                f"{tuple(state.shape)}, as the output of '{into}'"
            )
        current.joined.add(name)
        return into.put(output, joined)


class GraftedForward:
    """The `forward` of a module, with grafts that read it or change its output."""

    def __init__(self, path: str, module: nn.Module, grafts: Grafts) -> None:
        self.path, self.module, self.grafts = path, module, grafts
        self.replaced = module.__dict__.get("forward")  #: an instance's own `forward` before
        self.readers: list[str] = []
        self.joiners: list[str] = []
        self.guards: list[str] = []  #: grafts that must not see a step of cached decoding
        self.__signature__ = signature(module, path)

    def install(self) -> None:
        """Become the module's `forward`."""
        try:
            self.module.forward = self
        except (AttributeError, TypeError, RuntimeError) as error:
            raise UnavailableError(
                f"graft: the forward of '{self.path}' ({type(self.module).__name__}) cannot be "
                f"replaced: {error}"
            ) from error

    @property
    def __code__(self) -> CodeType:
        """For `torch.export`, which names inputs after the code of a function."""
        return type(self).__call__.__code__

    @property
    def is_installed(self) -> bool:
        """Whether this is still the module's `forward`."""
        return self.module.__dict__.get("forward") is self

    def restore(self) -> None:
        """Give the module its `forward` back."""
        if self.replaced is None:
            del self.module.__dict__["forward"]
        else:
            self.module.forward = self.replaced

    def names(self) -> set[str]:
        """The grafts that need this one."""
        return {*self.readers, *self.joiners, *self.guards}

    def forget(self, name: str) -> None:
        """Drop a graft."""
        for names in (self.readers, self.joiners, self.guards):
            names[:] = [other for other in names if other != name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.path:
            return self._run(args, kwargs)
        return self.grafts.run_model(self._run, args, kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        running = self.grafts.passes.running
        if not running:  # the module was called by itself, or is recomputed in a backward pass
            for name in self.joiners:
                refuse_recomputation(name, self.grafts.sites[name][1])
            return self._original(*args, **kwargs)
        current = running[-1]
        current.calls[self.path] += 1
        if self.guards:
            refuse_cache(kwargs.get("state"))
        call: Call = self._original
        for name in self.readers:
            call = _Reader(self, name, current, call)
        output = call(*args, **kwargs)
        for name in self.joiners:
            output = self.grafts.join(name, current, output)
        return output

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


class _Reader:
    """A call that the part of one graft reads."""

    def __init__(self, forward: GraftedForward, name: str, current: Pass, call: Call) -> None:
        self.forward, self.name, self.current, self.call = forward, name, current, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        grafts, module = self.forward.grafts, self.forward.module
        reads, _ = grafts.sites[self.name]
        gradient = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if self.current.with_gradient and not gradient and grafts.trains_base:
            refuse_reentrant(self.name, reads)
        output, reading = grafts.part(self.name).read(reads, module, self.call, args, kwargs)
        self.current.readings.setdefault(self.name, []).append(reading)
        return output


# Activation checkpointing


def refuse_checkpoint(name: str, into: Site) -> None:
    """Raise where an output is changed inside a checkpoint."""
    if _in_checkpoint():
        raise UnavailableError(
            f"graft {name!r}: into='{into}' is inside an activation checkpoint, which runs it "
            "again in the backward pass, outside the model's forward: the graft could not join "
            "there, and gradients would be wrong. Join outside the checkpoint, or switch "
            "checkpointing off (in transformers: gradient_checkpointing_disable())"
        )


#: `refuse_checkpoint`, kept outside compiled graphs; made when there is a compiler.
_outside_graphs: list[Callable[[str, Site], None]] = []


def refuse_recomputation(name: str, into: Site) -> None:
    """The same in the backward pass, for compiled code, which cannot look at its callers."""
    if "torch._dynamo" not in sys.modules:
        refuse_checkpoint(name, into)
        return
    if not _outside_graphs:
        _outside_graphs.append(torch._dynamo.disable(refuse_checkpoint))
    _outside_graphs[0](name, into)


def refuse_reentrant(name: str, reads: Site) -> None:
    """Raise where a site is read inside a reentrant checkpoint, whose outputs have no graph."""
    if _in_checkpoint():
        raise UnavailableError(
            f"graft {name!r}: reads='{reads}' is inside a reentrant checkpoint, so what is read "
            "has no gradient; use checkpoint(..., use_reentrant=False), in transformers "
            "gradient_checkpointing_enable({'use_reentrant': False})"
        )


def _in_checkpoint() -> bool:
    """Whether torch's checkpointing is among the callers, below the call of the model.

    A checkpoint around the whole model is no trouble: it begins a new pass.
    """
    frame: Any = sys._getframe()
    here = frame.f_code.co_filename
    while frame is not None:
        code = frame.f_code
        if code.co_filename == here and code.co_name == Grafts.run_model.__name__:
            return False
        if code.co_filename == checkpoint.__file__:
            return True
        frame = frame.f_back
    return False


# What a model is called with: padding masks, and caches, which are refused


class ModelInputs:
    """The inputs of a model's `forward`, by name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = type(model).__name__
        kinds = {name: p.kind for name, p in signature(model, "").parameters.items()}
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.positional = [name for name, kind in kinds.items() if kind in by_position]
        by_name = inspect.Parameter.KEYWORD_ONLY
        self.declared = [*self.positional, *(name for name, k in kinds.items() if k is by_name)]
        self.takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()

    def check(self, part: Part) -> None:
        """Raise where the model has no input of the name of a part's mask."""
        name = part.mask_input
        if name is not None and name not in self.declared and not self.takes_any:
            raise RegardError(
                f"mask={name!r}: {self.model}.forward has no such input; "
                f"{nearest(name, self.declared)}"
            )

    def select(self, parts: list[Part], args: Any, kwargs: Any) -> dict[str, Any]:
        """The masks of the parts among the inputs of a call.

        One that the signature does not declare must be passed: its name may be misspelt.
        """
        inputs = {**dict(zip(self.positional, args)), **kwargs}
        refuse_cache([*args, *kwargs.values()], inputs.get("past_key_values"))
        selected = {}
        for name in (part.mask_input for part in parts if part.mask_input is not None):
            if name not in self.declared and name not in kwargs:
                names = list(dict.fromkeys([*self.declared, *kwargs]))
                raise RegardError(
                    f"graft: mask={name!r}: {self.model}.forward declares no such input, and this "
                    f"call does not give it by that name; {nearest(name, names)}"
                )
            selected[name] = inputs.get(name)
        return selected


def signature(module: nn.Module, path: str) -> inspect.Signature:
    """The signature of a module's `forward`."""
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        kind = type(module).__name__
        raise UnavailableError(
            f"graft: the forward of '{path}' ({kind}) is not a Python function, so it cannot be "
            "replaced"
        ) from None


def refuse_cache(inputs: Any, past: Any = None) -> None:
    """Raise on a cache: a step of decoding shows new positions alone, and a part needs all."""
    length = max(_cached_positions(inputs), _tensor_positions(past))
    if length:
        raise UnavailableError(
            f"graft: the model was given a cache of {length} positions, whose states a graft "
            "cannot see; run it on whole sequences, in generate() with use_cache=False, a block "
            "of regard without state="
        )


def _cached_positions(inputs: Any) -> int:
    """The number of positions in the caches among some inputs."""
    if inputs is None or isinstance(inputs, Tensor | str | int | float):
        return 0
    if isinstance(inputs, State | RecurrentState):
        return inputs.keys if inputs.growing else 0
    if hasattr(inputs, "get_seq_length"):
        return int(inputs.get_seq_length())
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    if not isinstance(inputs, tuple | list):
        return 0
    return max([0, *[_cached_positions(item) for item in inputs]])


def _tensor_positions(past: Any) -> int:
    """The number of positions in nested tuples of plain tensors (…, position, width)."""
    if isinstance(past, tuple | list):
        return max([0, *[_tensor_positions(item) for item in past]])
    return past.shape[-2] if isinstance(past, Tensor) and past.dim() > 1 else 0


def padding_mask(part: Part, inputs: dict[str, Any], into: Site, state: Tensor) -> Mask | None:
    """The mask of the input that a part names; None where the call did not pass it."""
    tensor = None if part.mask_input is None else inputs[part.mask_input]
    if tensor is None or part.mask is None:
        return None
    if not isinstance(tensor, Tensor) or tensor.dim() != 2:
        shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise MaskError(f"mask='{part.mask}' is {shape}, expected (batch, key)")
    if tensor.is_floating_point():
        raise DtypeError(
            f"mask='{part.mask}' is {tensor.dtype}, expected torch.bool or whole numbers"
        )
    if tensor.shape[0] not in (1, state.shape[0]):
        raise ShapeError(
            f"'{into}' {tuple(state.shape)}: axis batch has size {state.shape[0]}, expected "
            f"{tensor.shape[0]} as mask='{part.mask}'; (position, batch, width) is not read"
        )
    real = tensor == 0 if part.mask.startswith("~") else tensor != 0
    # On a CPU, looking at the mask costs less than applying one that forbids nothing.
    if real.device.type != "cpu" or torch.compiler.is_compiling():
        return masks.padding(real)
    if real.all():
        return None
    if not real.any(1).all():
        warnings.warn(
            f"graft: mask='{part.mask}' marks every position of an example as padding, so nothing "
            "is attended to there; is it the padding mask?",
            GraftWarning,
            stacklevel=2,
        )
    return masks.padding(real)
