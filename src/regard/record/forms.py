"""Weights in the form of other tools: tuples of (batch, head, query, key), layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from regard.errors import UnavailableError
from regard.record.record import Record


def attending(records: Iterable[Record]) -> list[Record]:
    """Records of attention, without gates; raises if there are gates alone."""
    every = list(records)
    attention = [record for record in every if record.kind != "gate"]
    if every and not attention:
        raise UnavailableError(
            f"the trace has gates alone ({every[0].name}, …), and no attention: a gate scales each "
            "channel or position by itself; record.weights() has its values, and plots.overlay and "
            "plots.channels draw them"
        )
    return attention


def attentions(records: Sequence[Record]) -> tuple[Any, ...]:
    """Self-attention of a model with one stack; after several passes a tuple per pass."""
    records = attending(records)
    if any(record.attends == "cross" for record in records):
        both = any(record.attends != "cross" for record in records)
        there = "self- and cross-attention" if both else "cross-attention alone"
        takes = [f"trace.{name}_attentions ({sites})" for name, sites in _sites(records).items()]
        raise UnavailableError(f"the trace has {there}: take {_either(takes, 'and')}")
    return _by_step(records)


def of_encoder(records: Sequence[Record]) -> list[Record]:
    """Self-attention outside the decoder."""
    records = attending(records)
    stack = _decoder_path(records)
    return [r for r in records if r.attends != "cross" and not _inside(r.path, stack)]


def of_decoder(records: Sequence[Record]) -> list[Record]:
    """Self-attention inside the decoder."""
    records = attending(records)
    stack = _decoder_path(records)
    return [r for r in records if r.attends != "cross" and _inside(r.path, stack)]


def of_cross(records: Sequence[Record]) -> list[Record]:
    """Attention from one sequence to another."""
    records = attending(records)
    if not any(record.attends == "cross" for record in records):
        raise UnavailableError(f"no cross-attention was captured: {_without_cross(records)}")
    return [r for r in records if r.attends == "cross"]


#: The parts of an encoder–decoder model.
PARTS = {"encoder": of_encoder, "decoder": of_decoder, "cross": of_cross}


def part(records: Sequence[Record], name: str) -> tuple[Any, ...]:
    """Weights of one part, layer by layer."""
    return _by_step(PARTS[name](records))


def parts(records: Sequence[Record]) -> str:
    """The parts of a trace with cross-attention, as `part=` options with their sites."""
    return _either([f"part={name!r} ({sites})" for name, sites in _sites(records).items()], "or")


def _sites(records: Sequence[Record]) -> dict[str, str]:
    """The sites of each part that is present."""
    chosen = {name: choose(records) for name, choose in PARTS.items()}
    names = {name: list(dict.fromkeys(r.site.base for r in some)) for name, some in chosen.items()}
    return {
        name: bases[0] if len(bases) == 1 else f"{bases[0]} and {len(bases) - 1} more"
        for name, bases in names.items()
        if bases
    }


def _either(choices: Sequence[str], word: str) -> str:
    *some, last = choices
    return f"{', '.join(some)} {word} {last}" if some else last


def _by_step(records: Sequence[Record]) -> tuple[Any, ...]:
    steps: dict[int, list[Any]] = {}
    for record in records:
        record.check_axes()
        steps.setdefault(record.step, []).append(record.weights())
    if len(steps) <= 1:
        return tuple(weights for layers in steps.values() for weights in layers)
    return tuple(tuple(layers) for _, layers in sorted(steps.items()))


def _decoder_path(records: Sequence[Record]) -> list[str]:
    """The stack of all cross-attention: the common prefix of their paths.

    With one layer it is the path before the layer number.
    """
    paths = [record.path.split(".") for record in records if record.attends == "cross"]
    if not paths:
        raise UnavailableError(
            "no cross-attention was captured, so there is no encoder and decoder to tell apart: "
            + _without_cross(records)
        )
    common = [parts[0] for parts in takewhile(lambda p: len(set(p)) == 1, zip(*paths))]
    if common != paths[0]:  # several layers
        return common
    digits = [index for index, part in enumerate(common) if part.isdigit()]
    if digits:
        return common[: digits[-1]]
    return common[:-1]  # a single module: its parent


def _without_cross(records: Sequence[Record]) -> str:
    """What to use instead, where no attention is labelled as cross-attention."""
    unknown = [r for r in records if r.attends == "unknown" and r.shape.queries != r.shape.keys]
    if not unknown:
        return "take trace.attentions, or leave part= out"
    queries, keys = unknown[0].shape[2:]
    return (
        f"{unknown[0].name} ({queries} × {keys}) may be; if it is, say so: "
        f"trace.relabel({{{unknown[0].site.base!r}: 'cross'}})"
    )


def _inside(path: str, stack: list[str]) -> bool:
    return bool(stack) and path.split(".")[: len(stack)] == stack
