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
from regard.tracing.keeping import Keep, checked_bytes
from regard.tracing.run import Run, bury
from regard.tracing.where import predicate, shown

_HERE = str(Path(__file__).parent.parent)


class CaptureWarning(UserWarning):
    """Something a capture could not read, dropped or never saw; `trace.notes` has it too."""


#: Operators that stand between two products, to name the nearest one.
_RULES = ("sigmoid", "relu", "tanh", "softplus", "elu", "gelu", "silu", "exp", "clamp", "pow")


#: What a trace or a record can be asked for.
_ATTRIBUTES = {*dir(Trace()), *dir(Record), *inspect.signature(Record).parameters}


class NotATraceError(RegardError, AttributeError):
    """An attribute of a trace, asked of a capture."""


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
        path: "full" sees every operator; "fused" only fused attention, and is cheaper; "auto"
            begins with the first, and looks at attention alone in passes of a kind it has learned.
        rules: attention that is no softmax: what stands between the product of query and key and
            that with the values, as "sigmoid" or "relu"; "none" for products that meet as they
            are (linear attention, retention), "any" for whatever stands there.
        gates: also record gates of convolutional networks, of kind "gate": a number in [0, 1] for
            each channel or position, computed from what it is multiplied onto
            (squeeze-and-excitation, CBAM).

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
        self._open: list[Run] = []  # in any thread

    def __enter__(self) -> Trace:
        self.trace = Trace()
        module = self.model if isinstance(self.model, nn.Module) else _module_of(self.model)
        run = Run(module, self.trace, self.path, self._options, self._gates)
        trace = run.begin()
        self._here.runs = [*getattr(self._here, "runs", []), run]
        self._open.append(run)
        return trace

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        runs = getattr(self._here, "runs", [])
        if not runs:
            self._end_elsewhere(raising=kind is None)
            return
        run: Run = runs.pop()
        if run not in self._open:  # another thread ended it, and was told
            bury()
            return
        self._open.remove(run)
        run.end(failed=kind is not None)
        if kind is None:
            for note in run.trace.notes:
                warnings.warn(
                    f"regard.capture: {note}", CaptureWarning, stacklevel=_outside(sys._getframe())
                )

    def _end_elsewhere(self, raising: bool) -> None:
        """Left in a thread that did not enter: as a generator is that another thread throws away.

        It is ended nevertheless, where there is one: nobody else may come to do it.
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

    # What people ask a trace for, where the `with`, or its `as`, was forgotten.

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
# Of `__init__`, which says what there is: `__new__` takes anything.
capture.__signature__ = inspect.Signature(list(_OPTIONS.values())[1:])  # type: ignore[attr-defined]


def _check_arguments(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse inputs, which are the model's, and options that there are not."""
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
    """Run a model once and return the trace of its attention; `trace.output` is what it returned.

    All arguments go to the model. For options, such as `rules` or `tokens`, use `regard.capture`.

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
    """Refuse an option of `capture` that the model does not take."""
    options = named.keys() & inspect.signature(capture).parameters.keys()
    if not options:
        return
    try:
        takes = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):  # nothing tells what it takes
        return
    anything = any(taken.kind is taken.VAR_KEYWORD for taken in takes.parameters.values())
    for name in sorted(options - takes.parameters.keys()):
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
    modules = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            if isinstance(cell.cell_contents, nn.Module):
                modules.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return modules[0] if len(modules) == 1 else None
