"""`regard.capture` and `regard.trace`: the attention of any model, with no edit to it."""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode

from regard.errors import RegardError
from regard.kernel.reduce import Reducer
from regard.record import Trace
from regard.record.tokens import Tokens, checked_tokens
from regard.tracing import fused_path
from regard.tracing.collect import Collector
from regard.tracing.keeping import Keep, checked_bytes
from regard.tracing.mode import CaptureMode
from regard.tracing.operators import Reader
from regard.tracing.surroundings import eager_surroundings
from regard.tracing.where import predicate, shown

_HERE = str(Path(__file__).parent.parent)


class CaptureWarning(UserWarning):
    """Something a capture could not read, dropped or never saw; `trace.notes` has it too."""


class capture:  # a context manager and a decorator is written like a function
    """Capture the attention of a model while it runs, without changing what it computes.

    Args:
        model: the model to watch; any callable is fine, or None for all that runs in this thread.
        where: which sites: a glob of module paths, a compiled regular expression, layer numbers,
            a function of a `Site`, or a list of those.
        keep: what to hold: "recipe" (references to query and key, or to the model's own matrix),
            "weights", a list of reducers (their answers and nothing else), or a folder (a `Path`)
            that every record is written to.
        max_bytes: hold no more than this, a number or "500 MB"; what would pass it is dropped and
            named.
        values: also hold the values, for `record.mixed()`.
        outputs: also hold what each attention put out.
        grad: let `record.gradient()` be asked for after backward.
        attached: leave weights in the autograd graph.
        tokens: words for positions, where their number fits: a list, or a list for each example.
        path: "full" sees every operator; "fused" only fused attention, and is cheaper;
            "auto" begins with the first and changes to the second when the model allows it.

    >>> import torch, regard
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 8)
    >>> with regard.capture(model) as trace:
    ...     out, _ = model(x, x, x, need_weights=False)
    >>> trace[0].weights().shape
    torch.Size([1, 2, 5, 5])
    """

    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | None = None,
        *,
        where: Any = None,
        keep: Keep = "recipe",
        max_bytes: int | str | None = None,
        values: bool = False,
        outputs: bool = False,
        grad: bool = False,
        attached: bool = False,
        tokens: Tokens | None = None,
        path: Literal["auto", "full", "fused"] = "auto",
    ) -> None:
        if model is not None and not callable(model):
            raise RegardError(f"capture: {type(model).__name__}, expected a model or a callable")
        if path not in ("auto", "full", "fused"):
            raise RegardError(f"capture: path={path!r}, expected 'auto', 'full' or 'fused'")
        if grad and path == "fused":
            raise RegardError("capture: grad=True needs path='full' or 'auto'")
        if values and not (keep == "recipe" or isinstance(keep, Path)):
            raise RegardError("capture: values=True needs keep='recipe' or a folder")
        self.model = model
        self.path = path
        self._options: dict[str, Any] = {
            "where": predicate(where),
            "asked": shown(where),
            "keep": _checked_keep(keep, attached),
            "max_bytes": None if max_bytes is None else checked_bytes(max_bytes),
            "values": values,
            "outputs": outputs,
            "grad": grad,
            "attached": attached,
            "tokens": None if tokens is None else checked_tokens(tokens, "capture: tokens="),
        }
        self.trace: Trace | None = None
        self._here = threading.local()  # runs of this thread, for one object used by several

    def __enter__(self) -> Trace:
        self.trace = Trace()
        run = _Run(self.model, self.trace, self.path, self._options)
        trace = run.begin()
        self._here.runs = [*getattr(self._here, "runs", []), run]
        return trace

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        run: _Run = self._here.runs.pop()
        run.end(failed=kind is not None)
        if kind is None:
            for note in run.trace.notes:
                warnings.warn(
                    f"regard.capture: {note}", CaptureWarning, stacklevel=_outside(sys._getframe())
                )

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Use as a decorator: `function.trace` is the trace of its last call."""

        @functools.wraps(function)
        def captured(*args: Any, **kwargs: Any) -> Any:
            with self as trace:
                captured.trace = trace  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        return captured


def trace(model: Callable[..., Any], *inputs: Any, **named: Any) -> Trace:
    """Run a model once and return the trace of its attention; `trace.output` is what it returned.

    Inputs go to the model as they are. For options use `regard.capture`.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> with torch.no_grad():
    ...     found = regard.trace(model, torch.randn(1, 5, 8))
    >>> found.names()
    ['self_attn']
    """
    with capture(model) as found:
        found.output = model(*inputs, **named)
    return found


def _checked_keep(keep: Any, attached: bool) -> Keep:
    if attached and keep != "recipe":
        raise RegardError(
            "capture: attached=True leaves weights in the graph; that needs keep='recipe'"
        )
    if isinstance(keep, Path):
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.glob("*.safetensors")):
            raise RegardError(f"capture: keep={keep} already holds records; give an empty folder")
        return keep
    if isinstance(keep, str):
        if keep not in ("recipe", "weights"):
            raise RegardError(
                f"capture: keep={keep!r}, expected 'recipe', 'weights', a list of reducers, "
                "or a folder as pathlib.Path"
            )
        return keep
    if isinstance(keep, Reducer):
        keep = [keep]
    if not isinstance(keep, list | tuple) or not keep:
        raise RegardError(f"capture: keep={keep!r}, expected a list of reducers, as [Entropy()]")
    for reducer in keep:
        if not isinstance(reducer, Reducer):
            raise RegardError(f"capture: keep has {reducer!r}, which is not a Reducer")
        if reducer.differentiable:
            raise RegardError(f"capture: keep has {reducer!r}; answers kept here are detached")
    return list(keep)


class _Run:
    """One `with`: the mode, the hooks and the surroundings, put in place and taken back."""

    def __init__(self, model: Any, trace: Trace, path: str, options: dict[str, Any]) -> None:
        self.trace, self.path = trace, path
        self.module = model if isinstance(model, nn.Module) else _module_of(model)
        self.collector = Collector(self.module, trace, **options)
        root = self.collector.names.modules.get("")
        self.root = 0 if root is None else id(root)
        self.home = threading.get_ident()
        self.mode = CaptureMode(self.collector)
        self.full = False  # whether the mode is on
        self.fused = False  # whether the cheaper path is taken instead
        self.spelt_before: set[str] = set()  # spellings that the first pass had without attention
        self.alarm: tuple[str, str] | None = None  # where attention was spelt, unread, and how
        self._leaving = False
        self._ear: Any = None
        self._stack = ExitStack()
        self._elsewhere: dict[int, int] = {}  # threads that run the model: module that began it

    def begin(self) -> Trace:
        try:
            self._stack.enter_context(eager_surroundings())
            self._stack.callback(self._stop_watching)
            self._listen(hooks.register_module_forward_pre_hook(self._before))
            self._stack.callback(lambda: self._listen(None))
            if self.path == "fused" and fused_path.possible():
                self._watch_fused()
            else:
                self._watch_fully()
        except BaseException:
            self._stack.close()
            raise
        return self.trace

    def end(self, failed: bool) -> None:
        try:
            self._stack.close()
        finally:
            self._say_alarm("its weights are not there")
            self.collector.close(failed)

    # -- the two paths

    def _watch_fully(self) -> None:
        self.mode.__enter__()  # type: ignore[no-untyped-call]
        self.full = True

    def _mind_attention(self) -> None:
        """Modules that are attention by name and have not run yet may run without a site."""
        for path in self.collector.attentive.values():
            module = self.collector.names.modules[path]
            if path not in self.collector.ran and not isinstance(module, nn.MultiheadAttention):
                handle = module.register_forward_pre_hook(self._note_run)
                self._stack.callback(handle.remove)

    def _note_run(self, module: nn.Module, args: Any) -> None:
        self.collector.ran.add(self.collector.attentive[id(module)])

    def _listen(self, handle: Any) -> None:
        """Take the hook that tells of passes, in the place of the one before."""
        if self._ear is not None:
            self._ear.remove()
        self._ear = handle

    def _watch_fused(self) -> None:
        if self.module is not None:  # no fast path is at stake: one hook, on the model alone
            root = self.collector.names.modules[""]
            self._listen(root.register_forward_pre_hook(self._before))
            self._mind_attention()
        self.collector.following = False
        self.fused = True
        fused_path.listen(self)

    def _stop_watching(self) -> None:
        if self.fused:
            self.fused = False
            self.collector.following = True
            fused_path.ignore(self)
        if self.full:
            self.full = False
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def read_fused(self, name: str, reader: Reader, given: dict[str, Any], out: Any) -> None:
        """A fused operator ran, on the cheaper path."""
        if self._mine():
            self.collector.read_fused(name, reader, given, out)

    def spelt(self, name: str) -> None:
        """An operator by which attention is spelt ran, on the cheaper path."""
        if not self.alarm and name not in self.spelt_before and self._mine():
            place = self.collector.names.place()
            if place is not None and self.collector.names.in_forward():
                self.alarm = (place.path or place.module_class, name)

    def _mine(self) -> bool:
        """Whether an operator may be the model's: not regard's own, a stranger's or backward's."""
        if threading.get_ident() in self.collector.busy or torch._C._current_graph_task_id() != -1:
            return False
        return self.module is not None or threading.get_ident() == self.home

    def _say_alarm(self, later: str) -> None:
        if self.alarm is not None:
            where, operator = self.alarm
            self.collector.note(
                "changed",
                where,
                f"{operator} ran, which the fused path cannot read; {later}; "
                "capture(path='full') reads everything",
            )
            self.alarm = None

    def _change_path(self) -> None:
        """At the start of a pass: take the cheaper path when the last one allows it, or go back."""
        mine = self.collector
        if self.alarm and self.path == "auto" and _get_current_dispatch_mode() is None:
            self._stop_watching()
            self._listen(hooks.register_module_forward_pre_hook(self._before))
            self._watch_fully()
            self.path = "full"
            self._say_alarm("later passes are read fully")
        elif (
            self.path == "auto"
            and self.full
            and mine.fused
            and not mine.others
            and mine.spelt <= {"exp"}
            and not mine.grad
            and not mine.cached
            and not mine.keeper.changed
            and self.module is not None
            and fused_path.possible()
            and _get_current_dispatch_mode() is self.mode
        ):
            self.spelt_before = mine.spelt
            self._stop_watching()
            self._watch_fused()

    # -- a hook on every module's call; one on a single module would turn torch's fast paths off

    def _before(self, module: nn.Module, args: Any) -> None:
        number = id(module)
        self.collector.called = True
        here = threading.get_ident()
        if here != self.home:
            self._enter_thread(number, here)
        else:
            if self.module is None and number not in self.collector.names.paths:
                self.collector.adopt(module)
                self.root = self.root or number
            if number == self.root:
                self.collector.step += 1
                if self.collector.step:
                    self._change_path()
        path = self.collector.attentive.get(number)
        if path is not None:
            self.collector.ran.add(path)

    def _enter_thread(self, number: int, here: int) -> None:
        """A mode belongs to its thread: another one that runs the model needs it too."""
        if here not in self._elsewhere and self.full and number in self.collector.names.paths:
            self._elsewhere[here] = number
            if not self._leaving:  # costs every call of a module, so only where it is needed
                handle = hooks.register_module_forward_hook(self._after, always_call=True)
                self._stack.callback(handle.remove)
                self._leaving = True
            self.mode.__enter__()  # type: ignore[no-untyped-call]

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        here = threading.get_ident()
        if self._elsewhere.get(here) == id(module):
            del self._elsewhere[here]
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _outside(frame: Any) -> int:
    """How many frames up the caller is: the first that is not ours, nor a type checker's."""
    level = 1
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, "<")) and "jaxtyping" not in file:
            break
        frame, level = frame.f_back, level + 1
    return level


def _module_of(function: Any) -> nn.Module | None:
    """The module behind a bound method or the modules a function closes over."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return owner
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            if isinstance(cell.cell_contents, nn.Module):
                found.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return found[0] if len(found) == 1 else None
