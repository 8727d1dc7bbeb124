"""One forward pass of a grafted model: what was seen in it, until the parts have used it.

A pass begins and ends with the call of the model. Under gradient checkpointing a site may run once
more in the backward pass. Its pass is then found by the number of the autograd node that asks:
nodes are numbered in the order they are made, so those of one pass are a range.
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

_FOREVER = sys.maxsize
_KEY = "regard.graft"  # of what an autograd node holds for us


class Pass:
    """What one pass of a model has been given, and what was seen in it."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs  #: inputs of the model that parts have asked for
        self.seen: dict[str, list[Any]] = {}  #: of each graft, call by call
        self.calls: Counter[str] = Counter()  #: of each module
        self.joined: set[str] = set()  #: grafts whose part has run
        self.with_gradient = torch.is_grad_enabled()
        compiling = torch.compiler.is_compiling()  # then nothing is numbered
        self.first = _FOREVER if compiling else torch._C._autograd._get_sequence_nr()
        self.last = _FOREVER

    @property
    def lost_gradient(self) -> bool:
        """Whether the pass began with gradients, and they are off at this moment."""
        on = torch.is_grad_enabled() or torch.compiler.is_compiling()
        return self.with_gradient and not on


class _Here(threading.local):
    """The passes that are under way in this thread, the newest last."""

    def __init__(self) -> None:
        self.under_way: list[Pass] = []


class Passes:
    """The passes of a model that are under way, and those that a backward pass may ask for."""

    def __init__(self) -> None:
        self._here = _Here()
        self._held: weakref.WeakValueDictionary[int, Pass] = weakref.WeakValueDictionary()

    def begin(self, inputs: dict[str, Any]) -> Pass:
        """A new pass, in this thread."""
        made = Pass(inputs)
        self._here.under_way.append(made)
        return made

    def end(self) -> None:
        """The newest pass of this thread is over, by its end or by an error."""
        over = self._here.under_way.pop()
        if not torch.compiler.is_compiling():
            over.last = torch._C._autograd._get_sequence_nr()

    def now(self) -> tuple[Pass | None, bool]:
        """The pass a site runs in, and whether the site is being computed once more."""
        if self._here.under_way:
            return self._here.under_way[-1], False
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            return None, False
        return self._asked_again(), True

    def hold(self, under_way: Pass, joined: Any) -> None:
        """Keep a pass for as long as the graph lives, where checkpointing may ask for it."""
        if torch.compiler.is_compiling() or not isinstance(joined, Tensor):
            return
        recomputed = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        if recomputed and joined.grad_fn is not None:
            kept: Any = joined.grad_fn.metadata  # lives as long as the node
            kept[_KEY] = under_way
            self._held[id(under_way)] = under_way

    def _asked_again(self) -> Pass | None:
        node = torch._C._current_autograd_node()
        if node is None or not self._held:
            return None
        number = node._sequence_nr()
        found = [one for one in self._held.values() if one.first <= number < one.last]
        if len(found) > 1:
            raise UnavailableError(
                "graft: gradient checkpointing asks for a pass, and several threads made passes "
                "at once, so it cannot be told which; run them one after the other"
            )
        return found[0] if found else None

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a pass is neither copied nor written

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


class Unchanged:
    """A tensor that was seen, and a check that nobody has written into it since."""

    def __init__(self, place: str, tensor: Tensor) -> None:
        self.place, self.tensor = place, tensor
        self.version = self._version()

    def take(self) -> Tensor:
        """The tensor; an error where it was changed in place."""
        now = self._version()
        if now is not None and self.version is not None and now != self.version:
            raise StateError(
                f"graft: the output of '{self.place}', {tuple(self.tensor.shape)}, was changed in "
                "place after that module had run; read a module after the change"
            )
        return self.tensor

    def _version(self) -> int | None:
        if torch.compiler.is_compiling() or self.tensor.is_inference():
            return None
        return self.tensor._version


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
