"""Every way of ours to make one attribution out of a model's attention, on a task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard import aggregate
from regard.anatomy.residual_stream import ResidualStream
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.explain.task import Attribution, Task
from regard.record import Trace
from regard.tracing import capture

#: Which position of the last layer the target is read from: a number, the last real one, those
#: that the target's gradient shows, or, for None, the mean over all real ones.
Token = int | Literal["auto", "last"] | None
Rows = Float[Tensor, "example position"]
_FEW = 8  # tokens up to which they are asked for one by one, and not as a map of all pairs
_MOST_FLOW = 1 << 26  # pipes times questions, some seconds
_last_layer = partial(aggregate.mean_attention, layers="last")


class Observed(NamedTuple):
    """One pass of a task's model: its attention, and the shares in which rows are read."""

    trace: Trace
    around: (
        ResidualStream | None
    )  #: what stood around each attention, where one module is behind it all
    read: Rows  #: of the rows that the target is read from; each example's sum to 1
    real: Rows  #: of all real positions alike


def observe(task: Task, token: Token = "auto") -> Observed:
    """Capture the attention of a task's model, with the gradient of the target by it if it can."""
    try:
        trace, around = _captured(task, task.gradient, grad=True)
    except RegardError:  # no embedding, or a graph that was cut: attention is there all the same
        with torch.no_grad():
            trace, around = _captured(task, lambda: task.run(task.inputs), grad=False)
    if not len(trace):
        raise UnavailableError("no attention was captured in the model, so there is none to judge")
    real = task.real.double() / task.real.sum(1, keepdim=True).clamp_min(1)
    return Observed(trace, around, _read(task, trace, token, real), real)


def _captured(
    task: Task, run: Callable[[], Any], grad: bool
) -> tuple[Trace, ResidualStream | None]:
    """One run, captured, and what stood around each attention where one module is behind it."""
    alone = task.modules[0] if len(task.modules) == 1 else None
    with ExitStack() as stack:
        around = None if alone is None else stack.enter_context(ResidualStream(alone))
        model = task.model if alone is None else alone
        trace = stack.enter_context(capture(model, grad=grad, values=True))
        run()
    return trace, around


def _read(task: Task, trace: Trace, token: Token, real: Rows) -> Rows:
    """Over which rows of the last layer an attribution is the mean."""
    if token is None:
        return real
    examples, length = real.shape
    if token == "auto":
        return _rows_with_gradient(trace, real)
    if token == "last":
        counted = torch.arange(length, device=real.device) * task.real
        places = counted.argmax(1)
    elif isinstance(token, int) and -length <= token < length:
        places = torch.full((examples,), token % length, device=real.device)
    else:
        raise RegardError(
            f"token={token!r}, expected a position from {-length} to {length - 1}, 'auto', 'last', "
            "or None for the mean over all"
        )
    return torch.nn.functional.one_hot(places, length).to(real.dtype)


def _rows_with_gradient(trace: Trace, real: Rows) -> Rows:
    """The rows of the last attention that the target depends on.

    Above it nothing goes from one position to another, so these are the rows that are read.
    """
    try:
        gradient, _ = trace[-1].gradient_parts()
    except RegardError as error:
        raise UnavailableError(
            f"which position the target is read from could not be told by its gradient ({error}); "
            "say token=0 for the first, token='last', or token=None for the mean over all"
        ) from error
    used = gradient.ne(0).any(-1).any(1)  # (example, query)
    if used.shape != real.shape:
        raise ShapeError(
            f"the last attention has rows {tuple(used.shape)}, the inputs {tuple(real.shape)}: it "
            "is not over their positions, as that of a decoder is not"
        )
    used = used & (real > 0)
    shares = used.double() / used.sum(1, keepdim=True).clamp_min(1)
    return torch.where(used.any(1, keepdim=True), shares, real)


def _over(function: Callable[..., Any], seen: Observed, rows: Rows, *given: Any) -> Tensor:
    """An aggregation for the rows that are read, in their shares: (example, position)."""
    places = rows.ne(0).any(0).nonzero()[:, 0].tolist()
    token = places if len(places) <= _FEW else None
    answer: Tensor = function(seen.trace, *given, token=token)  # (example, row, key)
    some = rows if token is None else rows[:, places]
    if answer.dim() != 3 or answer.shape[:2] != some.shape:
        raise ShapeError(f"the answer is {tuple(answer.shape)}; it has not the rows of the inputs")
    return torch.einsum("eq,eqk->ek", some.to(answer), answer)


def _around(function: Callable[..., Any], seen: Observed) -> Tensor:
    """An aggregation that needs the modules around each attention."""
    if seen.around is None:
        raise UnavailableError(
            "it needs the modules around each attention, and the function calls several; give a "
            "module, or a function that calls one"
        )
    return _over(function, seen, seen.read, seen.around)


def _flow(seen: Observed) -> Tensor:
    """Attention flow, where it does not take longer than all the rest."""
    rows = int(seen.read.ne(0).any(0).sum())
    examples, length = seen.read.shape
    pipes = len(seen.trace) * length**2
    if pipes * examples * rows * length > _MOST_FLOW:
        raise UnavailableError(
            f"{examples * rows * length} maximum flows through {pipes} pipes would take minutes; "
            "take regard.attention_flow on a few examples, and give its answer by attributions="
        )
    return _over(aggregate.attention_flow, seen, seen.read)


#: By the name that tables show.
AGGREGATIONS: dict[str, Callable[[Observed], Tensor]] = {
    "mean attention": lambda seen: _over(aggregate.mean_attention, seen, seen.read),
    "last layer": lambda seen: _over(_last_layer, seen, seen.read),
    "received attention": lambda seen: _over(aggregate.mean_attention, seen, seen.real),
    "rollout": lambda seen: _over(aggregate.rollout, seen, seen.read),
    "relevance": lambda seen: _over(aggregate.relevance, seen, seen.read),
    "gradient × attention": lambda seen: aggregate.gradient_attention(seen.trace),
    "norm attention": lambda seen: _around(aggregate.norm_attention, seen),
    "ALTI": lambda seen: _around(aggregate.alti, seen),
    "flow": _flow,
}


def aggregated(task: Task, token: Token = "auto") -> tuple[dict[str, Attribution], dict[str, str]]:
    """Attributions by the name of the aggregation, and why others could not be had."""
    seen = observe(task, token)
    found: dict[str, Attribution] = {}
    reasons: dict[str, str] = {}
    for name, function in AGGREGATIONS.items():
        try:
            answer = function(seen)
            if not isinstance(answer, Tensor) or answer.shape != task.removable.shape:
                raise ShapeError(f"it is not about the positions {tuple(task.removable.shape)}")
        except RegardError as error:
            reasons[name] = str(error)
        else:
            found[name] = answer.detach()
    if torch.equal(seen.read, seen.real) and "received attention" in found:
        del found["received attention"]
        reasons["received attention"] = "all rows are read, so it is the same as mean attention"
    return found, reasons
