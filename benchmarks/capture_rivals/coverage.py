"""Which targets of the test corpus give their attention: regard, and what people use today.

regard must give every matrix of the truth once, in order, and nothing else, from the model as it
is. The others are asked generously: a tick means that every true matrix is *somewhere* among what
the tool lets a person read, also when the model had to be switched to its eager implementation.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regard

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "tracing"))

YES, NO, NOT = "✓", "✗", "–"


class CannotTry(Exception):
    """The tool has no way to be used on this target."""


@dataclass(frozen=True)
class Row:
    """One target: how many sites it has, and what each tool makes of it."""

    target: str
    group: str
    sites: int
    cells: dict[str, str]


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside an output, whatever it is made of."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in list(value.values()):
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def equal(found: Tensor, truth: Tensor, close: float) -> bool:
    """Whatever the order of its axes. Where the truth is NaN any number may stand."""
    if found.numel() != truth.numel() or not found.is_floating_point():
        return False
    found, (batch, heads, queries, keys) = found.detach().to(truth.dtype), truth.shape
    ways = [found.reshape(truth.shape)]
    if found.dim() > 1:
        ways.append(found.mT.reshape(truth.shape))
    ways.append(found.reshape(heads, batch, queries, keys).transpose(0, 1))
    return any((way - truth).nan_to_num(0.0).abs().max() <= close for way in ways)


def somewhere(read: list[Tensor], case: Any) -> str:
    """A tick when every true matrix is among what was read, else how many are."""
    close = max(case.tolerance, 1e-5)
    found = sum(any(equal(one, truth, close) for one in read) for truth in case.truth)
    if found == len(case.truth):
        return YES
    return f"{found}/{len(case.truth)}" if found else NO


# regard


def ask_regard(case: Any) -> str:
    model = case.model if isinstance(case.model, nn.Module) else None
    with regard.capture(model) as trace:
        case.run()
    records = list(trace)
    if not case.truth:
        return YES if not records else f"{len(records)} too many"
    if len(records) != len(case.truth):
        return f"{len(records)}/{len(case.truth)}"
    for record, truth in zip(records, case.truth):
        weights = record.weights()
        if weights.shape != truth.shape:
            return f"{NO} {record.name}"
        if not (weights - truth).nan_to_num(0.0).abs().max() <= case.tolerance:
            return f"{NO} {record.name}"
    return YES


# transformers' own switch


def ask_transformers(case: Any) -> str:
    """`output_attentions=True`."""
    if not hasattr(case.model, "set_attn_implementation"):
        raise CannotTry
    return somewhere(list(tensors(replace(case, kwargs=case.kwargs | ASKED).run())), case)


ASKED = {"output_attentions": True}


# forward hooks


def ask_hooks(case: Any) -> str:
    """Hooks on all modules: a softmax module's output, or weights that a module returns."""
    if not isinstance(case.model, nn.Module):
        raise CannotTry
    read: list[Tensor] = []
    note = lambda module, inputs, output: read.extend(tensors(output))
    hooks = [module.register_forward_hook(note) for module in case.model.modules()]
    try:
        output = case.run()
    finally:
        for hook in hooks:
            hook.remove()
    return somewhere([*read, *tensors(output)], case)


# nnsight

#: Calls whose own code is torch's.
TORCH = re.compile(rf"(torch|F|nn|math|.*_({'|'.join(dir(Tensor))})|{'|'.join(dir(Tensor))})_\d+$")


def ask_nnsight(case: Any) -> str:
    """Outputs of all modules, then every operation and assignment in the code of each forward."""
    nnsight = importlib.import_module("nnsight")
    if not isinstance(case.model, nn.Module) or case.call is not None:
        raise CannotTry
    model = nnsight.NNsight(case.model)
    read: list[Tensor] = []
    torch.manual_seed(importlib.import_module("targets").SEED)
    with model.trace(*case.args, **case.kwargs) as tracer:
        cache = tracer.cache()
    for path in cache.keys():  # noqa: SIM118 (not a mapping)
        read.extend(tensors(cache[path].output))
    for envoy in model.modules():
        if somewhere(read, case) == YES:
            break
        home = type(envoy._module).__module__
        if not home.startswith("torch.nn") or isinstance(envoy._module, nn.MultiheadAttention):
            found = _operations(model, envoy, case)
            read += tensors(found)
            if somewhere(list(tensors(found)), case) not in (YES, NO):  # it may have a loop
                read += tensors([_repeated(model, envoy, path, case) for path in found])
    return somewhere(read, case)


def _operations(model: Any, envoy: Any, case: Any) -> dict[str, Any]:
    """What the operations of a forward give; those that do not run are left out one by one."""
    seed = importlib.import_module("targets").SEED
    absent: set[str] = set()
    values: dict[str, Any] = {}
    for _ in range(100):
        values.clear()
        at = [""]
        try:
            torch.manual_seed(seed)
            with model.trace(*case.args, **case.kwargs):
                _walk(envoy.source, absent, values, at, 0)
            break
        except Exception:
            if not at[0] or at[0] in absent:
                break  # no source to be had: a builtin, a scripted forward
            absent.add(at[0])
    return values


def _repeated(model: Any, envoy: Any, path: str, case: Any) -> list[Any]:
    """One operation again, as often as there are sites."""
    values: list[Any] = []
    first, *inner = path.removeprefix(f"{envoy.path}.source.").split(".source.")
    try:
        with model.trace(*case.args, **case.kwargs) as tracer:
            node = envoy.source.node(first)
            for name in inner:
                node = node.source.node(name)
            for _ in tracer.iter[: len(case.truth)]:
                values.append(node.output)
    except Exception:
        pass  # it does not run as often
    return values


def _walk(source: Any, absent: set[str], values: dict[str, Any], at: list[str], depth: int) -> None:
    """Read the operations of one function in the order in which they run, callees first."""
    for name in source.names:
        node = source.node(name)
        if node.path in absent:
            continue
        at[0] = node.path
        if depth < 2 and not TORCH.match(name):
            try:
                inner = node.source
            except Exception as error:
                if type(error).__name__ in ("OutOfOrderError", "MissedProviderError"):
                    raise  # it does not run
            else:
                _walk(inner, absent, values, at, depth + 1)
                at[0] = node.path
        values[node.path] = node.output


TOOLS: dict[str, Callable[[Any], str]] = {
    "regard": ask_regard,
    "output_attentions": ask_transformers,
    "forward hooks": ask_hooks,
    "nnsight": ask_nnsight,
}


def attempt(target: Any, tool: str) -> str:
    """One tool on a fresh copy of one target, the rivals in its eager mode, if it has one.

    What they print or warn of is not shown.
    """
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        with target.around():
            case = target.case()
            config = getattr(case.model, "config", None)
            how = getattr(config, "_attn_implementation", "eager")
            if tool == "regard" or how == "eager":
                return _tried(TOOLS[tool], case)
            case.model.set_attn_implementation("eager")  # fused attention has no weights to read
            said = _tried(TOOLS[tool], case)
            return f"{said} eager" if said == YES else said


def _tried(ask: Callable[[Any], str], case: Any) -> str:
    try:
        return ask(case)
    except CannotTry:
        return NOT
    except Exception as error:
        return f"{NO} {type(error).__name__}"


def rows(tools: list[str], quick: bool) -> list[Row]:
    """The table; negatives are asked of regard alone.

    One tool after the other, regard first: what a tool leaves behind in the process must not
    meet another. With `quick` the compiled targets are left out, and of every group all but six.
    """
    corpus = importlib.import_module("targets")
    families = importlib.import_module("capture_rivals.families")
    groups: dict[str, list[Any]] = {}
    for target in [*corpus.targets(), *families.targets(), *corpus.negatives()]:
        if not (quick and target.compiled):
            groups.setdefault(target.group, []).append(target)
    if quick:
        groups = {name: all_[:: max(1, len(all_) // 6)][:6] for name, all_ in groups.items()}
    chosen = [target for members in groups.values() for target in members]
    cells: dict[str, dict[str, str]] = {target.name: {} for target in chosen}
    for tool in tools:
        for target in chosen:
            skipped = target.group == "negatives" and tool != "regard"
            cells[target.name][tool] = NOT if skipped else attempt(target, tool)
    return [Row(target.name, target.group, _sites(target), cells[target.name]) for target in chosen]


def _sites(target: Any) -> int:
    with target.around(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return len(target.case().truth)
