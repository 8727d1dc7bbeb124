"""One target in this process: its truth, what capture reads of it, and what is left of torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import regard

from .target import Target, call
from .truth import Readings, Run, recorded

CLOSE = 1e-5

EXACT, NOTHING = "exact", "no softmax attention, nothing recorded"
NOTED, SILENT = "missing, with a note", "missing, silent"
WRONG, HARMED, ERROR, ABSENT = "wrong", "harmed", "error", "not installed"


@dataclass
class Result:
    """The verdict on one target."""

    key: str
    version: str = ""
    sites: int = 0
    verdict: str = ERROR  #: of the target itself: it could not be built or run without regard
    detail: str = ""
    harmed: str = ""
    noted: bool = False  #: a mismatch that a note or the record itself admits


def tensors(value: object) -> list[Tensor]:
    """Every tensor inside an output."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module | type):
        value = list(vars(value).values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors(part)]
    return []


def same_output(first: object, second: object) -> bool:
    pairs = list(zip(tensors(first), tensors(second)))
    equal = [
        a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=CLOSE, equal_nan=True)
        for a, b in pairs
        if a.layout == torch.strided and not a.is_quantized and not a.is_complex()
    ]
    return len(tensors(first)) == len(tensors(second)) and all(equal)


def close(weights: Tensor, truth: Tensor) -> bool:
    if weights.shape != truth.shape:
        return False
    difference = (weights.double() - truth.double()).abs()
    return bool(((difference <= CLOSE) | truth.isnan()).all())  # where it is NaN, anything may be


def reading(weights: Tensor, truth: Readings) -> str | None:
    """Which reading of a site these weights are; None when they are none of them."""
    readings = truth if isinstance(truth, dict) else {"": truth}
    return next((name for name, matrix in readings.items() if close(weights, matrix)), None)


def first_reading(truth: Readings) -> Tensor:
    return next(iter(truth.values())) if isinstance(truth, dict) else truth


def shape(truth: Readings) -> str:
    readings = truth if isinstance(truth, dict) else {"": truth}
    return " or ".join(str(tuple(matrix.shape)) for matrix in readings.values())


def same_numbers(weights: Tensor, truth: Readings) -> bool:
    """Whether the numbers above zero are the truth's, wherever they stand."""
    for matrix in truth.values() if isinstance(truth, dict) else [truth]:
        a, b = (m[m > 0].double().flatten().sort().values for m in (weights, matrix))
        if a.shape == b.shape and a.numel() and (a - b).abs().max() <= CLOSE:
            return True
    return False


def compared(
    trace: regard.Trace, truth: Sequence[Readings], attends: str | tuple[str | None, ...] | None
) -> tuple[str, str]:
    """The verdict on the records of a trace, and what is the matter."""
    records = [(record, record.weights()) for record in trace]
    labels = list(attends) if isinstance(attends, tuple) else [attends] * len(truth)
    if not truth:
        if records:
            return WRONG, f"extra site {records[0][0].name} {tuple(records[0][1].shape)}"
        return NOTHING, ""
    matched: dict[int, int] = {}  # site -> record
    strays, names = [], set()
    for index, (_, weights) in enumerate(records):
        options = [s for s in range(len(truth)) if s not in matched]
        site = next((s for s in options if reading(weights, truth[s]) is not None), None)
        if site is None:
            strays.append(index)
        else:
            matched[site] = index
            names.add(reading(weights, truth[site]))
    if strays:
        record, weights = records[strays[0]]
        open_ = [s for s in range(len(truth)) if s not in matched]
        where = f"{record.name} {tuple(weights.shape)}"
        count = f" ({len(strays)} of {len(records)} records, {len(truth)} sites)"
        alike = [s for s in open_ if same_numbers(weights, truth[s])]
        if alike:
            return WRONG, f"axes: {where}, expected {shape(truth[alike[0]])}{count}"
        if open_ and len(records) <= len(truth):
            return WRONG, f"values: {where}, expected {shape(truth[open_[0]])}{count}"
        return WRONG, f"extra site {where}{count}"
    absent = [s for s in range(len(truth)) if s not in matched]
    order = [matched[s] for s in sorted(matched)]
    if order != sorted(order):
        return WRONG, f"order {order}"
    for site, index in matched.items():
        label, record = labels[site], records[index][0]
        if label and record.attends not in (label, "unknown"):
            return WRONG, f"label: {record.name} is {label}, not {record.attends}"
    if absent:
        missing = f"{len(absent)} of {len(truth)} sites, the first {shape(truth[absent[0]])}"
        sizes = [first_reading(truth[site]).numel() for site in absent]
        others = [
            math.prod(other.shape) for other in trace.other_softmaxes
        ]  # rejected, with the reason
        told = trace.notes or all(size in others for size in sizes)
        return (NOTED if told else SILENT), missing
    return EXACT, ", ".join(sorted(filter(None, names)))


def sound() -> str:
    """What is wrong with torch in this process, if anything."""
    try:
        x = torch.ones(2, 3)
        (x @ x.mT).softmax(-1)
        with torch.inference_mode():
            torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])
        torch.nn.Linear(3, 3)(x).sum().backward()
        assert not torch._C._len_torch_dispatch_stack(), "a dispatch mode is left"
        assert not torch._C._len_torch_function_stack(), "a function mode is left"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return ""


def prepared(target: Target) -> tuple[Any, list[Readings]]:
    """The output of a plain run, and the truth of every site, without regard."""
    plain = call(*target.case())
    run = Run()
    run.model, run.args, _ = target.case()
    with recorded(run.calls, target.record):
        run.output = call(*target.case())  # made in here: it may hold a partial of F.softmax
    if not same_output(plain, run.output):
        raise ValueError("the model gives another output each time")
    return plain, list(target.truth(run))


def measured(target: Target, plain: Any, truth: Sequence[Readings]) -> Result:
    """The verdict on one target, given its plain output and its truth."""
    result = Result(target.key, target.version() or "", len(truth))
    model, args, kwargs = target.case()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with regard.capture(model) as trace:
                output = call(model, args, kwargs)
            result.verdict, result.detail = compared(trace, truth, target.attends)
    except Exception as error:
        result.verdict, result.detail = WRONG, f"{type(error).__name__}: {error}"
        result.harmed = sound()
        return result
    remarks = [str(note) for note in trace.notes]
    remarks += [f"softmax {other.path}: {other.reason}" for other in trace.other_softmaxes]
    result.noted = any("axes" in remark for remark in remarks)
    if remarks and result.verdict not in (EXACT, NOTHING):
        result.detail += f"; {len(remarks)} notes: {remarks[0][:160]}"
    if not same_output(plain, output):
        result.verdict, result.detail = WRONG, "the output changed"
    result.harmed = sound()
    if not result.harmed and not same_output(plain, call(*target.case())):
        result.harmed = "a later plain run gives another output"
    return result


def survives(target: Target) -> str:
    """Two passes in inference mode inside one capture: what is wrong with torch afterwards."""
    model, args, kwargs = target.case()
    try:
        with torch.inference_mode():
            model(*args, **kwargs)
            model(*args, **kwargs)
    except Exception:
        return ""  # it does not run there without capture either
    model, args, kwargs = target.case()
    failure = ""
    try:
        with regard.capture(model), torch.inference_mode():
            model(*args, **kwargs)
            model(*args, **kwargs)
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    broken = sound() or failure
    return f"two passes in inference mode: {broken}" if broken else ""
