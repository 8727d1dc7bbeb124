"""Every aggregation of a model's attention as an attribution, on a task."""

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
from regard.explain.tasks.task import Attribution, Task
from regard.record import Trace
from regard.tracing import capture

#: Which position of the last layer the target is read from: a number, the last real one, those
#: that the target's gradient shows, or, for None, the mean over all real ones.
Token = int | Literal["auto", "last"] | None
Rows = Float[Tensor, "example position"]
_FEW = 8  # tokens up to which they are asked for one by one, and not as a map of all pairs
_MOST_FLOW = 1 << 26  # pipes times questions, some seconds
_last_layer = partial(aggregate.mean_attention, layers="last")


class Observation(NamedTuple):
    """One pass of a task's model: its attention, and the shares in which rows are read."""

    trace: Trace
    residual: ResidualStream | None  #: of the pass, where the model is one module
    read: Rows  #: of the rows that the target is read from; each example's sum to 1
    real: Rows  #: of all real positions alike


def observe(task: Task, token: Token = "auto") -> Observation:
    """Capture the attention of a task's model, with the gradient of the target if there is one."""
    try:
        trace, residual = _capture(task, task.gradient, grad=True)
    except RegardError:  # no embedding, or a detached graph: attention alone
        with torch.no_grad():
            trace, residual = _capture(task, lambda: task.run(task.inputs), grad=False)
    if not len(trace):
        raise UnavailableError("no attention was captured in the model, so there is none to judge")
    real = task.real.double() / task.real.sum(1, keepdim=True).clamp_min(1)
    return Observation(trace, residual, _read(task, trace, token, real), real)


def _capture(task: Task, run: Callable[[], Any], grad: bool) -> tuple[Trace, ResidualStream | None]:
    """One run, captured, with its residual stream if the model is one module."""
    alone = task.modules[0] if len(task.modules) == 1 else None
    with ExitStack() as stack:
        residual = None if alone is None else stack.enter_context(ResidualStream(alone))
        trace = stack.enter_context(capture(task.module, grad=grad, values=True))
        run()
    return trace, residual


def _read(task: Task, trace: Trace, token: Token, real: Rows) -> Rows:
    """Over which rows of the last layer an attribution is the mean."""
    if token is None:
        return real
    examples, length = real.shape
    if token == "auto":
        return _rows_with_gradient(trace, real)
    if token == "last":
        counted = torch.arange(length, device=real.device) * task.real
        positions = counted.argmax(1)
    elif isinstance(token, int) and -length <= token < length:
        positions = torch.full((examples,), token % length, device=real.device)
    else:
        raise RegardError(
            f"token={token!r}, expected a position from {-length} to {length - 1}, 'auto', 'last', "
            "or None for the mean over all"
        )
    return torch.nn.functional.one_hot(positions, length).to(real.dtype)


def _rows_with_gradient(trace: Trace, real: Rows) -> Rows:
    """The rows of the last attention that the target depends on.

    Above it positions do not interact, so these are the rows that are read.
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


def _over(
    function: Callable[..., Any], observation: Observation, rows: Rows, *arguments: Any
) -> Tensor:
    """An aggregation for the rows that are read, in their shares: (example, position)."""
    positions = rows.ne(0).any(0).nonzero()[:, 0].tolist()
    token = positions if len(positions) <= _FEW else None
    weights: Tensor = function(observation.trace, *arguments, token=token)  # (example, row, key)
    shares = rows if token is None else rows[:, positions]
    if weights.dim() != 3 or weights.shape[:2] != shares.shape:
        raise ShapeError(f"the result is {tuple(weights.shape)}, without the rows of the inputs")
    return torch.einsum("eq,eqk->ek", shares.to(weights), weights)


def _with_residual(function: Callable[..., Any], observation: Observation) -> Tensor:
    """An aggregation that needs the residual stream or the output projections."""
    if observation.residual is None:
        raise UnavailableError(
            "it needs the residual stream of one module, and the function calls several; give a "
            "module, or a function that calls one"
        )
    return _over(function, observation, observation.read, observation.residual)


def _flow(observation: Observation) -> Tensor:
    """Attention flow, where it does not take minutes."""
    rows = int(observation.read.ne(0).any(0).sum())
    examples, length = observation.read.shape
    pipes = len(observation.trace) * length**2
    if pipes * examples * rows * length > _MOST_FLOW:
        raise UnavailableError(
            f"{examples * rows * length} maximum flows through {pipes} pipes would take minutes; "
            "take regard.attention_flow on a few examples, and give its answer by attributions="
        )
    return _over(aggregate.attention_flow, observation, observation.read)


#: By the name that tables show.
AGGREGATIONS: dict[str, Callable[[Observation], Tensor]] = {
    "mean attention": lambda o: _over(aggregate.mean_attention, o, o.read),
    "last layer": lambda o: _over(_last_layer, o, o.read),
    "received attention": lambda o: _over(aggregate.mean_attention, o, o.real),
    "rollout": lambda o: _over(aggregate.rollout, o, o.read),
    "relevance": lambda o: _over(aggregate.relevance, o, o.read),
    "gradient × attention": lambda o: aggregate.gradient_attention(o.trace),
    "norm attention": lambda o: _with_residual(aggregate.norm_attention, o),
    "ALTI": lambda o: _with_residual(aggregate.alti, o),
    "flow": _flow,
}


def aggregated(task: Task, token: Token = "auto") -> tuple[dict[str, Attribution], dict[str, str]]:
    """Attributions by the name of the aggregation, and why others are unavailable."""
    observation = observe(task, token)
    attributions: dict[str, Attribution] = {}
    reasons: dict[str, str] = {}
    for name, function in AGGREGATIONS.items():
        try:
            attribution = function(observation)
            if not isinstance(attribution, Tensor) or attribution.shape != task.removable.shape:
                raise ShapeError(f"it is not about the positions {tuple(task.removable.shape)}")
        except RegardError as error:
            reasons[name] = str(error)
        else:
            attributions[name] = attribution.detach()
    if torch.equal(observation.read, observation.real) and "received attention" in attributions:
        del attributions["received attention"]
        reasons["received attention"] = "all rows are read, so it is the same as mean attention"
    return attributions, reasons
