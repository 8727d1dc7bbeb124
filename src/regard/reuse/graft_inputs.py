"""What a grafted model is called with: the input that tells padding; caches, which are refused."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.contract import RecurrentState, State
from regard.errors import DtypeError, MaskError, RegardError, ShapeError, UnavailableError
from regard.masks import Mask
from regard.reuse.graft_part import GraftWarning, Part
from regard.reuse.graft_sites import Place, nearest


class Inputs:
    """The inputs of a model's `forward`, by name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = type(model).__name__
        taken = signature_of(model, "").parameters.values()
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.in_order = [one.name for one in taken if one.kind in by_place]
        by_name = [one.name for one in taken if one.kind is one.KEYWORD_ONLY]
        self.declared = [*self.in_order, *by_name]
        self.takes_any = any(one.kind is one.VAR_KEYWORD for one in taken)

    def check(self, part: Part) -> None:
        """Raise where a model cannot be given the input that a part has named."""
        name = _name(part)
        if name is not None and name not in self.declared and not self.takes_any:
            raise RegardError(
                f"mask={name!r}: {self.model}.forward has no such input; "
                f"{nearest(name, self.declared)}"
            )

    def asked(self, parts: list[Part], args: Any, kwargs: Any) -> dict[str, Any]:
        """Those of a call that parts have named.

        An input that the signature does not declare may be misspelt, so it must be there.
        """
        given = {**dict(zip(self.in_order, args)), **kwargs}
        refuse_cache([*args, *kwargs.values()])
        _refuse(_longest(given.get("past_key_values")))
        found = {}
        for part in parts:
            name = _name(part)
            if name is None:
                continue
            if name not in self.declared and name not in kwargs:
                names = list(dict.fromkeys([*self.declared, *kwargs]))
                raise RegardError(
                    f"graft: mask={name!r}: {self.model}.forward declares no such input, and this "
                    f"call does not give it by that name; {nearest(name, names)}"
                )
            found[name] = given.get(name)
        return found


def signature_of(module: nn.Module, path: str) -> inspect.Signature:
    """The signature of a module's `forward`."""
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        kind = type(module).__name__
        raise UnavailableError(
            f"graft: the forward of '{path}' ({kind}) is not a Python function, so it cannot be "
            "stood in for"
        ) from None


def refuse_cache(given: Any) -> None:
    """A step of cached decoding shows the new positions alone; a part would attend to those."""
    _refuse(_cached(given))


def _refuse(length: int) -> None:
    if length:
        raise UnavailableError(
            f"graft: the model was given a cache of {length} positions, whose states a graft "
            "cannot see; run it on whole sequences, in generate() with use_cache=False, a block "
            "of regard without state="
        )


def _cached(given: Any) -> int:
    """How many positions are held, in what a model is given."""
    if given is None or isinstance(given, Tensor | str | int | float):
        return 0
    if isinstance(given, State | RecurrentState):
        return given.keys if given.growing else 0
    if hasattr(given, "get_seq_length"):
        return int(given.get_seq_length())
    if isinstance(given, Mapping):
        given = list(given.values())
    return max([0, *[_cached(one) for one in given]]) if isinstance(given, tuple | list) else 0


def _longest(past: Any) -> int:
    """The positions of a cache of plain tensors, (…, position, width), in tuples."""
    if isinstance(past, tuple | list):
        return max([0, *[_longest(one) for one in past]])
    return past.shape[-2] if isinstance(past, Tensor) and past.dim() > 1 else 0


def padding_of(part: Part, inputs: dict[str, Any], into: Place, state: Tensor) -> Mask | None:
    """The mask of the input that a part has named; None where the model was not given it."""
    name = _name(part)
    given = None if name is None else inputs[name]
    if given is None or part.mask is None:
        return None
    if not isinstance(given, Tensor) or given.dim() != 2:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise MaskError(f"mask='{part.mask}' is {shape}, expected (batch, key)")
    if given.is_floating_point():
        raise DtypeError(
            f"mask='{part.mask}' is {given.dtype}, expected torch.bool or whole numbers"
        )
    if given.shape[0] not in (1, state.shape[0]):
        raise ShapeError(
            f"'{into}' {tuple(state.shape)}: axis batch has size {state.shape[0]}, expected "
            f"{given.shape[0]} as mask='{part.mask}'; (position, batch, width) is not read"
        )
    real = given == 0 if part.mask.startswith("~") else given != 0
    # A look at a processor's own memory costs less than to heed a mask that forbids nothing.
    if real.device.type != "cpu" or torch.compiler.is_compiling():
        return masks.padding(real)
    if real.all():
        return None
    if not real.any(1).all():
        warnings.warn(
            f"graft: mask='{part.mask}' calls every position of an example padding, so nothing is "
            "looked at there; is this the input that tells padding?",
            GraftWarning,
            stacklevel=2,
        )
    return masks.padding(real)


def _name(part: Part) -> str | None:
    return None if part.mask is None else part.mask.removeprefix("~")
