"""One architecture: build it tiny, capture it in its default implementation, compare.

The verdicts, best first:

    right       every captured weight is what the eager twin says, or, where that says nothing,
                reproduces the output of its own attention; nothing of the twin is missing
    none        no softmax attention ran
    wrong       some weight differs, is missing, or is not attention; or the output changed
    unbuilt     the model could not be built or run on this machine, with the reason
"""

from __future__ import annotations

import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import tiny
import torch
from inputs import Inputs
from overrides import NO_ATTENTION, TOO_LARGE
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from truth import eager_run

TOLERANCE = 1e-5


@dataclass
class Result:
    """What became of one architecture."""

    architecture: str
    verdict: str
    reason: str = ""
    implementation: str = ""
    captured: int = 0
    compared: int = 0  # with the eager twin
    by_output: int = 0  # with what the attention itself put out
    worst: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)  # "self" or "cross" against the module's name

    def as_dict(self) -> dict:
        return asdict(self)


def examine(model_type: str) -> Result:
    """Verdict on one architecture."""
    if model_type in TOO_LARGE:
        return Result(model_type, "unbuilt", TOO_LARGE[model_type])
    start = time.process_time()
    stage = "configuration"
    try:
        config = tiny.configuration(model_type)
        stage = "model"
        model = tiny.build(model_type, config)
        tiny.randomise(model)
        stage = "inputs"
        given = Inputs(model_type, model, model.config).fitted()
        softmaxes = _softmaxes(model, given)
    except Exception as error:
        result = Result(model_type, "unbuilt", f"{stage}: {_said(error)}")
    else:
        try:
            result = _compare(model_type, config, model, given, softmaxes)
        except Exception as error:
            result = Result(model_type, "wrong", f"raised: {_said(error)}")
        result.implementation = str(getattr(model.config, "_attn_implementation", ""))
    result.seconds = round(time.process_time() - start, 2)
    return result


def _compare(model_type, config, model, given, softmaxes) -> Result:
    import regard

    plain = _run(model, given)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with regard.capture(model, values=True, outputs=True) as trace:
            watched = _run(model, given)
    result = Result(model_type, "right", captured=len(trace))
    result.notes = [str(note) for note in trace.notes]
    problems = []
    if not same(plain, watched):
        problems.append("the output changed under capture")

    truth, told = _truth(model_type, config, model, given)
    agrees = told is None or _near(plain, told)
    if not agrees:
        result.notes.append("the eager twin computes something else: its weights are no truth")
    left = list(trace)
    for name, want in _joined(truth, trace):
        if not agrees:
            if not any(_related(name, record.path) for record in trace):
                problems.append(f"missed {name} {tuple(want.shape)}")
            continue
        record, error = _closest(name, want, left)
        if record is None:
            problems.append(f"missed {name} {tuple(want.shape)}")
            continue
        left.remove(record)
        if not error <= TOLERANCE and _decides(record, error):
            result.notes.append(
                f"{record.name}: {error:.1e} from the eager twin's, but makes its output"
            )
            result.by_output += 1
            continue
        result.compared += 1
        result.worst = max(result.worst, error)
        if not error <= TOLERANCE:
            problems.append(f"{record.name} {tuple(record.shape)} off by {error:.1e}")
    for record in left:
        error = output_error(record)
        if error is None:
            problems.append(f"{record.name} {tuple(record.shape)} cannot be checked")
            continue
        result.by_output += 1
        result.worst = max(result.worst, error)
        if not error <= TOLERANCE:
            problems.append(f"{record.name} {tuple(record.shape)} output off by {error:.1e}")
    result.roles = [f"{record.name} {record.attends}" for record in trace if _role_is_odd(record)]
    result.notes += [
        f"softmax: {other.path} {tuple(other.shape)} {other.reason}"
        for other in trace.other_softmaxes
    ]

    if problems:
        result.verdict, result.reason = "wrong", "; ".join(dict.fromkeys(problems))
    elif not len(trace):
        known = NO_ATTENTION.get(model_type)
        result.verdict = "none" if known or softmaxes <= len(trace.other_softmaxes) else "wrong"
        result.reason = (
            known or f"{softmaxes} softmaxes ran, {len(trace.other_softmaxes)} of them listed"
        )
    return result


def _truth(model_type, config, model, given) -> tuple[list[tuple[str, Tensor]], object]:
    """The eager twin's weights and output; none where there is no eager implementation."""
    try:
        twin = tiny.build(model_type, config, attn_implementation="eager")
        twin.load_state_dict(model.state_dict())
        _seed()
        return eager_run(twin, given)
    except (ValueError, ImportError, TypeError, AttributeError):
        return [], None


def _closest(name: str, want: Tensor, records: list):
    """The record under that name, or next to it, that is nearest to `want`, and how far it is."""
    alike = [record for record in records if record.weights().numel() == want.numel()]
    near = [record for record in alike if not name or _related(name, record.path)]
    best, least = None, float("inf")
    for record in near:
        got = record.weights()
        error = _distance(got, _arranged(want, got.shape))
        if best is None or error < least:
            best, least = record, error
    return best, least


def _arranged(want: Tensor, shape) -> Tensor:
    """Weights whose heads lie with the batch, or whose windows lie after the heads."""
    if want.ndim == 5:  # (batch, head, window, query, key)
        want = want.transpose(1, 2).flatten(0, 1)
    return want.reshape(shape)


def _distance(got: Tensor, want: Tensor) -> float:
    """Greatest difference. A row that may see nothing is uniform in eager, and zero elsewhere."""
    blind = (got.sum(-1) == 0) & ((want.amax(-1) - want.amin(-1)) < TOLERANCE)
    return (got - want.to(got.dtype)).abs().amax(-1).masked_fill(blind, 0).max().item()


def _related(one: str, other: str) -> bool:
    """Whether a module is the other, or inside it, or around it."""
    return one == other or f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _joined(truth: list[tuple[str, Tensor]], trace) -> list[tuple[str, Tensor]]:
    """T5Gemma 2 attends once over both texts and returns the two parts: put them together."""
    parts: dict[str, list[Tensor]] = {}
    for name, weights in truth:
        parts.setdefault(name, []).append(weights)
    joined = []
    for name, own in parts.items():
        records = [record for record in trace if record.path == name]
        alike = len({weights.shape[:-1] for weights in own}) == 1
        if name and len(records) == 1 and len(own) > 1 and alike:
            joined.append((name, torch.cat(own, -1)))
        else:
            joined += [(name, weights) for weights in own]
    return joined


def _decides(record, distance: float) -> bool:
    """Whether the record makes its attention's output, and no other weights could.

    WavLM returns a mean over heads in place of the weights, XLNet axes in another order. With no
    more keys than features the output alone decides. So it does where the eager twin is near:
    rounding in one layer grows in the next ones.
    """
    error = output_error(record)
    if error is None or not error <= TOLERANCE:
        return False
    return distance < 1e-3 or record.shape.keys <= record.recipe.value.shape[-1]


def output_error(record) -> float | None:
    """Distance of weights times values from what the attention put out; None where unknown."""
    if not record.value_held or record.output is None:
        return None
    weights, value = record.weights(), record.recipe.value
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)  # groups of heads
    mixed = (weights @ value.to(weights.dtype)).nan_to_num()
    output = record.output.nan_to_num()
    if mixed.numel() != output.numel():
        return None
    forms = [mixed, mixed.transpose(1, 2), mixed.mT]
    scale = max(1.0, output.abs().max().item())
    flat = output.reshape(-1)
    return min((form.reshape(-1) - flat).abs().max().item() for form in forms) / scale


def _role_is_odd(record) -> bool:
    last = record.path.rsplit(".", 1)[-1].lower()
    crossing = "cross" in last or "encoder_attn" in last or "encdec" in last
    own = "self_attn" in last or "selfattention" in last
    return (crossing and record.attends != "cross") or (own and record.attends != "self")


class _Count(TorchDispatchMode):
    """Counts softmaxes and fused attentions: an opinion that does not depend on regard."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name() if hasattr(func, "name") else str(func)
        if "softmax" in name and "log_softmax" not in name:
            self.found += 1
        if "scaled_dot_product" in name or "flex_attention" in name:
            self.found += 1
        return func(*args, **(kwargs or {}))


def _softmaxes(model: nn.Module, given: dict) -> int:
    with _Count() as count:
        _run(model, given)
    return count.found


def _seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)


def _run(model: nn.Module, given: dict):
    _seed()
    with torch.no_grad():
        return model(**given)


def _near(one, other) -> bool:
    """Whether two outputs agree up to rounding, where they are numbers and both have them."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.shape != other.shape or not one.is_floating_point():
            return True
        both = one.isfinite() & other.isfinite()
        a, b = one[both], other[both]
        return not a.numel() or bool((a - b).abs().max() < 1e-2 * max(1.0, b.abs().max()))
    if hasattr(one, "items"):
        return all(_near(one[key], other[key]) for key in one if key in other)
    if isinstance(one, (tuple, list)):
        return all(_near(a, b) for a, b in zip(one, other))
    return True


def same(one, other) -> bool:
    """Whether two outputs agree bit for bit, NaN included."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and bool(
            one.shape == other.shape and torch.equal(one.isnan(), other.isnan())
            if one.is_floating_point() and one.isnan().any()
            else torch.equal(one, other)
        )
    if hasattr(one, "items"):
        return all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return True


def _said(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"
