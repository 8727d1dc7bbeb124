"""`regard.capture` and `regard.trace`: the attention of any model, with no edit to it."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.record import Record, Trace
from regard.record.tokens import Tokens, checked_tokens
from regard.tracing.recorder import Keep, checked_bytes
from regard.tracing.session import Session, remove_stale_modes
from regard.tracing.site_filter import predicate, shown

_HERE = str(Path(__file__).parent.parent)


class CaptureWarning(UserWarning):
    """Something a capture could not read, dropped or never saw; also in `trace.notes`."""


#: Usual operators between two products, for suggestions.
_RULES = ("sigmoid", "relu", "tanh", "softplus", "elu", "gelu", "silu", "exp", "clamp", "pow")


#: Attributes of a trace or a record.
_ATTRIBUTES = {*dir(Trace()), *dir(Record), *inspect.signature(Record).parameters}


class NotATraceError(RegardError, AttributeError):
    """An attribute of a trace was requested of a capture."""


class capture:  # a context manager and a decorator is written like a function
    """Capture the attention of a model while it runs. Outputs are bit-identical.

    Args:
        model: the model, or any callable that runs it; None for everything in this thread.
        where: which sites to record: a glob of module paths, a compiled regular expression, layer
            numbers, a function of a `Site`, or a list of those.
        keep: what each record stores: "recipe" (references to query and key, or to the model's own
            matrix), "weights", a list of reducers (only their results), or a `Path` (each record
            is written to a file in that folder).
        max_bytes: memory limit, a number or "500 MB"; records beyond it are dropped, with a note.
        values: also store the values, for `record.mixed()`.
        outputs: also store the output of each attention, as `record.output`.
        grad: make `record.gradient()` available after backward.
        attached: keep weights in the autograd graph.
        tokens: tokens for positions, applied where the length matches: one list for the batch, or
            a list per example.
        path: "full" watches every operator; "fused" watches fused attention only, at almost no
            cost; "auto" starts with the full path, and watches only the attention operators in
            later passes of the same kind.
        rules: record attention without a softmax: the operators between the query–key product and
            the product with the values, such as "sigmoid" or "relu"; "none" for no operator (linear
            attention, retention), "any" for any.
        gates: also record gates of convolutional networks, of kind "gate": factors in [0, 1] per
            channel or position, computed from the tensor they multiply (squeeze-and-excitation,
            CBAM).

    >>> import torch, regard
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 8)
    >>> with regard.capture(model) as trace:
    ...     out, _ = model(x, x, x, need_weights=False)
    >>> trace[0].weights().shape
    torch.Size([1, 2, 5, 5])
    """

    if not TYPE_CHECKING:  # a type checker refuses such arguments itself

        def __new__(cls, *args: Any, **options: Any) -> capture:
            _check_arguments(args, options)
            return super().__new__(cls)

    _warns = True  # of its notes

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
        rules: str | Sequence[str] = (),
        gates: bool = False,
    ) -> None:
        if isinstance(model, type):
            raise RegardError(
                f"capture: model is the class {model.__name__}, expected an object of it, as "
                f"capture({model.__name__}(...))"
            )
        if model is not None and not callable(model):
            raise RegardError(f"capture: {type(model).__name__}, expected a model or a callable")
        if path not in ("auto", "full", "fused"):
            raise RegardError(f"capture: path={path!r}, expected 'auto', 'full' or 'fused'")
        if grad and path == "fused":
            raise RegardError("capture: grad=True needs path='full' or 'auto'")
        if gates and path == "fused":
            raise RegardError("capture: gates=True needs path='full' or 'auto'")
        if values and not (keep == "recipe" or isinstance(keep, Path)):
            raise RegardError("capture: values=True needs keep='recipe' or a folder")
        self.model = model
        self.path, self._gates = path, gates
        self._options: dict[str, Any] = {
            "where": predicate(where),
            "asked": shown(where),
            "keep": _checked_keep(keep, attached),
            "max_bytes": None if max_bytes is None else checked_bytes(max_bytes),
            "values": values,
            "outputs": outputs,
            "grad": grad,
            "attached": attached,
            "rules": _checked_rules(rules),
            "tokens": None if tokens is None else checked_tokens(tokens, "capture: tokens="),
        }
        self.trace: Trace | None = None
        self._here = threading.local()  # runs of this thread, for one object used by several
        self._open: list[Session] = []  # in any thread

    def __enter__(self) -> Trace:
        self.trace = Trace()
        module = self.model if isinstance(self.model, nn.Module) else module_of(self.model)
        session = Session(module, self.trace, self.path, self._options, self._gates)
        trace = session.begin()
        self._here.sessions = [*getattr(self._here, "sessions", []), session]
        self._open.append(session)
        return trace

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        sessions = getattr(self._here, "sessions", [])
        if not sessions:
            self._end_elsewhere(raising=kind is None)
            return
        session: Session = sessions.pop()
        if session not in self._open:  # another thread ended it, and was told
            remove_stale_modes()
            return
        self._open.remove(session)
        session.end(failed=kind is not None)
        if kind is None and self._warns:
            for note in session.trace.notes:
                warnings.warn(
                    f"regard.capture: {note}", CaptureWarning, stacklevel=_outside(sys._getframe())
                )

    def _end_elsewhere(self, raising: bool) -> None:
        """Left in a thread that did not enter it, as by a generator that another thread closes.

        A single open session is ended nevertheless: nobody else may do it.
        """
        ended = "nothing was ended"
        if len(self._open) == 1:
            self._open.pop().end(failed=True)
            ended = "it is ended"
        if raising:
            raise RegardError(
                f"capture: left in a thread that did not enter it; {ended}; enter and leave a "
                "capture in one thread"
            )

    # Errors for a forgotten `with`, or its `as`.

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES and not name.startswith("_"):
            raise NotATraceError(f"capture.{name}: {self._not_a_trace()}")
        raise AttributeError(f"capture has no attribute {name!r}")

    def __getitem__(self, name: Any) -> Any:
        raise RegardError(f"capture[{name!r}]: {self._not_a_trace()}")

    def __iter__(self) -> Any:
        raise RegardError(f"iter(capture): {self._not_a_trace()}")

    def __len__(self) -> int:
        raise RegardError(f"len(capture): {self._not_a_trace()}")

    def _not_a_trace(self) -> str:
        if self.trace is None:
            return (
                "this is a capture that was not entered, not a trace; write `with "
                "regard.capture(model) as trace:`, run the model inside, and ask `trace`"
            )
        return (
            "this is a capture, not its trace; the trace is what `with capture as trace:` gives, "
            "and capture.trace is the last one"
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        model = self.model
        name = "" if model is None else getattr(model, "__qualname__", type(model).__name__)
        if self.trace is None:
            return f"capture({name}), not entered: `with … as trace:` gives its trace"
        count = len(self.trace)
        return f"capture({name}), capture.trace has {count} attention{'s' * (count != 1)}"

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Use as a decorator: `function.trace` is the trace of its last call."""
        if not callable(function):
            raise RegardError(
                f"capture: called with a {type(function).__name__}, expected a function to "
                "decorate; regard.trace(model, inputs) runs a model once"
            )

        @functools.wraps(function)
        def captured(*args: Any, **kwargs: Any) -> Any:
            with self as trace:
                captured.trace = trace  # type: ignore[attr-defined]
                return function(*args, **kwargs)

        return captured


_OPTIONS = inspect.signature(capture.__init__).parameters
# The signature of `__init__`: `__new__` takes anything.
capture.__signature__ = inspect.Signature(list(_OPTIONS.values())[1:])  # type: ignore[attr-defined]


def _check_arguments(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse inputs of the model, and unknown options."""
    if len(args) > 1:
        raise RegardError(
            f"capture: {len(args)} arguments by place, expected the model; regard.trace(model, "
            "inputs) runs it once, or `with regard.capture(model) as trace: model(inputs)`"
        )
    names = [name for name in _OPTIONS if name not in ("self", "model")]
    for option in options.keys() - {*names, "model"}:
        near = difflib.get_close_matches(option, names, 1)
        hint = f"near: {near[0]}" if near else f"expected {', '.join(names)}"
        raise RegardError(f"capture: there is no option {option!r}; {hint}")


def trace(model: Callable[..., Any], *inputs: Any, **named: Any) -> Trace:
    """Run a model once and return the trace of its attention, with its output as `trace.output`.

    All arguments go to the model. For options such as `rules` or `tokens` use `regard.capture`.

    >>> import torch, regard
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> with torch.no_grad():
    ...     trace = regard.trace(model, torch.randn(1, 5, 8))
    >>> trace.names()
    ['self_attn']
    """
    _check_inputs(model, named)
    with capture(model) as result:
        result.output = model(*inputs, **named)
    return result


def _check_inputs(model: Callable[..., Any], named: dict[str, Any]) -> None:
    """Refuse options of `capture` that the model does not take."""
    options = named.keys() & inspect.signature(capture).parameters.keys()
    if not options:
        return
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):  # no signature
        return
    parameters = signature.parameters
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in sorted(options - parameters.keys()):
        if not anything:
            raise RegardError(
                f"trace: {name}= goes to the model, which takes no such argument; it is an option "
                f"of capture: `with regard.capture(model, {name}=...) as trace: model(...)`"
            )


def _checked_rules(rules: Any) -> frozenset[str]:
    names = (rules,) if isinstance(rules, str) else rules
    if not isinstance(names, list | tuple | set | frozenset):
        raise RegardError(f"capture: rules={rules!r}, expected names of operators, as 'sigmoid'")
    for name in names:
        if name in ("none", "any"):
            continue
        if not isinstance(name, str) or not hasattr(torch.ops.aten, name):
            near = difflib.get_close_matches(str(name).lower(), [*_RULES, "none", "any"], 1)
            hint = f"; near: {near[0]!r}" if near else ""
            raise RegardError(
                f"capture: rules has {name!r}, expected the name of an operator of torch, as "
                f"'sigmoid', or 'none' or 'any'{hint}"
            )
    return frozenset(names)


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
    if isinstance(keep, Reducer) or _is_reducer_class(keep):
        keep = [keep]
    if not isinstance(keep, list | tuple) or not keep:
        raise RegardError(f"capture: keep={keep!r}, expected a list of reducers, as [Entropy()]")
    for reducer in keep:
        if not isinstance(reducer, Reducer):
            instance = _is_reducer_class(reducer)
            hint = f"; pass an instance, as {reducer.__name__}()" if instance else ""
            raise RegardError(f"capture: keep has {reducer!r}, which is not a Reducer{hint}")
        if reducer.differentiable:
            raise RegardError(f"capture: keep has {reducer!r}; answers kept here are detached")
    return list(keep)


def _is_reducer_class(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Reducer)


def _outside(frame: Any) -> int:
    """The stack level of the caller: the first frame outside regard and its type checker."""
    level = 1
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_HERE, "<")) and "jaxtyping" not in file:
            break
        frame, level = frame.f_back, level + 1
    return level


def module_of(function: Any) -> nn.Module | None:
    """The module of a bound method, or the only one that a function closes over."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return owner
    modules = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            if isinstance(cell.cell_contents, nn.Module):
                modules.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return modules[0] if len(modules) == 1 else None
