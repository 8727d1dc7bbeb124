"""One forward pass of a grafted model: what was seen in it, until the parts have used it.

A pass begins and ends with the call of the model. Under gradient checkpointing a site may run once
more in the backward pass. What its part was given is then found by the number of the autograd node
that asks: nodes are numbered in the order they are made, so those of one pass are a range.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint

from regard.errors import StateError, UnavailableError
from regard.masks import Mask

_FOREVER = sys.maxsize
_KEY = "regard.graft"  # of what an autograd node holds for us


class Numbers:
    """The numbers of the autograd nodes of one pass, as far as they are known.

    Compiled code cannot ask for them, so they begin where the pass is first not compiled, and may
    have no end.
    """

    def __init__(self) -> None:
        self.first = self.last = _FOREVER

    def begin(self) -> None:
        """From here on nodes belong to the pass."""
        if self.first == _FOREVER and not torch.compiler.is_compiling():
            self.first = torch._C._autograd._get_sequence_nr()

    def end(self) -> None:
        """No more nodes belong to the pass."""
        if not torch.compiler.is_compiling():
            self.last = torch._C._autograd._get_sequence_nr()


class Pass:
    """What one pass of a model has been given, and what was seen in it."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs  #: inputs of the model that parts have asked for
        self.seen: dict[str, list[Any]] = {}  #: of each graft, call by call
        self.calls: Counter[str] = Counter()  #: of each module
        self.joined: set[str] = set()  #: grafts whose part has run
        self.numbers = Numbers()
        self.with_gradient = torch.is_grad_enabled()

    @property
    def lost_gradient(self) -> bool:
        """Whether the pass began with gradients, and they are off at this moment."""
        on = torch.is_grad_enabled() or torch.compiler.is_compiling()
        return self.with_gradient and not on


class Kept:
    """What one part was given in one pass, for a site that is computed once more.

    Nothing that came later: an autograd node that held something downstream of itself would hold
    itself, and live for ever.
    """

    def __init__(self, name: str, numbers: Numbers, seen: Any, mask: Mask | None) -> None:
        self.name, self.numbers, self.seen, self.mask = name, numbers, seen, mask


class _Here(threading.local):
    """The passes that are under way in this thread, the newest last."""

    def __init__(self) -> None:
        self.under_way: list[Pass] = []


class Passes:
    """The passes of a model that are under way, and what a backward pass may ask for."""

    def __init__(self) -> None:
        self._here = _Here()
        self._kept: weakref.WeakValueDictionary[int, Kept] = weakref.WeakValueDictionary()
        self.compiled: set[str] = set()  #: grafts that were joined in compiled code

    def begin(self, inputs: dict[str, Any]) -> Pass:
        """A new pass, in this thread."""
        made = Pass(inputs)
        self._here.under_way.append(made)
        return made

    def end(self) -> None:
        """The newest pass of this thread is over, by its end or by an error."""
        self._here.under_way.pop().numbers.end()

    def now(self) -> Pass | None:
        """The pass a site runs in; None where it runs by itself or is computed once more."""
        if not self._here.under_way:
            return None
        newest = self._here.under_way[-1]
        newest.numbers.begin()
        return newest

    def keep(self, kept: Kept, joined: Tensor) -> None:
        """Keep it for as long as the graph lives, where checkpointing may ask for it."""
        if torch.compiler.is_compiling():
            self.compiled.add(kept.name)
            return
        if joined.grad_fn is None:
            return
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            held: Any = joined.grad_fn.metadata  # lives as long as the node
            held[_KEY] = kept
            self._kept[id(kept)] = kept

    def asked_again(self, name: str) -> Kept | None:
        """What a part was given, where its site is computed once more in a backward pass."""
        if torch.compiler.is_compiling():
            if name in self.compiled:
                _refuse_compiled(name)  # breaks the graph: asked once more, not compiled
            return None
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        found = {
            id(one.numbers): one
            for one in self._kept.values()
            if one.name == name and one.numbers.first <= number < one.numbers.last
        }
        if not found and name in self.compiled:
            _refuse_compiled(name)
        if sum(one.numbers.last < _FOREVER for one in found.values()) > 1:
            raise UnavailableError(
                "graft: gradient checkpointing asks for a pass, and several threads made passes "
                "at once, so it cannot be told which; run them one after the other"
            )
        return max(found.values(), key=lambda one: one.numbers.first, default=None)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a pass is neither copied nor written

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class Unchanged:
    """A tensor that was seen, and a check that nobody has written into it since."""

    def __init__(self, what: str, tensor: Tensor) -> None:
        self.what, self.tensor = what, tensor
        self.version = self._version()

    def take(self) -> Tensor:
        """The tensor; an error where it was changed in place."""
        now = self._version()
        if now is not None and self.version is not None and now != self.version:
            raise StateError(
                f"graft: {self.what}, {tuple(self.tensor.shape)}, was changed in place after that "
                "module had run; read a module after the change, or let the model write "
                "x = x + y in the place of x += y"
            )
        return self.tensor

    def _version(self) -> int | None:
        if torch.compiler.is_compiling() or self.tensor.is_inference():
            return None
        return self.tensor._version


def _refuse_compiled(name: str) -> None:
    raise UnavailableError(
        f"graft {name!r}: its site was compiled inside a checkpoint, where the passes cannot be "
        "told apart; compile without checkpointing, or checkpoint without this site"
    )


def refuse_reentrant(place: str) -> None:
    """Raise inside a reentrant checkpoint: it runs without a graph, and gradients are lost."""
    code = checkpoint.CheckpointFunction.forward.__code__
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            raise UnavailableError(
                f"graft: '{place}' runs inside a reentrant checkpoint, which gives it no gradient; "
                "use checkpoint(..., use_reentrant=False), in transformers "
                "gradient_checkpointing_enable({'use_reentrant': False})"
            )
        frame = frame.f_back
