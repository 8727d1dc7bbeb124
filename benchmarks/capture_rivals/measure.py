"""Ratios of time and peaks of memory, in one process that may share its machine."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MIB = 2**20


@dataclass(frozen=True)
class Taken:
    """Medians over the rounds: seconds, and the ratio to the first call of the same round."""

    seconds: float
    processor: float
    wall: float


def ratios(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, Taken]:
    """Run all calls in turn, in a new order each round; the first one is what others are over.

    A ratio is taken within a round, so both sides feel the same weather. What a call returns is
    dropped inside its time.
    """
    for call in calls.values():
        call()
    names = list(calls)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(repeats):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            wall, processor = time.perf_counter(), time.process_time()
            calls[name]()
            processor, wall = time.process_time() - processor, time.perf_counter() - wall
            taken[name].append((processor, wall))
    base = taken[names[0]]

    def middle(name: str, clock: int) -> float:
        rounds = zip(taken[name], base)
        return statistics.median(mine[clock] / plain[clock] for mine, plain in rounds)

    return {
        name: Taken(statistics.median(t[0] for t in taken[name]), middle(name, 0), middle(name, 1))
        for name in names
    }


def resident(field: str = "VmRSS") -> float:
    """MiB that this process holds now, or held at most since `peak` last asked ("VmHWM")."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":")) / 1024


def settle() -> None:
    """Give back to the system what nothing uses, so that it cannot hide a new allocation."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


@dataclass(frozen=True)
class Peak:
    """MiB above rest: at most, still held together with the result, and of results alone."""

    high: float
    held: float
    results: float
    reported: float = 0.0  # what a trace says that it holds


def peak(call: Callable[[], Any], results: Callable[[Any], Any], repeats: int) -> Peak:
    """Medians over `repeats` runs; the call must have been warmed up.

    The kernel's own high-water mark is set back before each run, so no sampling can miss it.
    """
    found = []
    for _ in range(repeats):
        settle()
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
        before = resident()
        result = call()
        high = resident("VmHWM") - before
        settle()
        held = resident() - before
        found.append((high, held, size(results(result)) / MIB, getattr(result, "nbytes", 0) / MIB))
        del result
    return Peak(*(statistics.median(column) for column in zip(*found)))


def size(result: Any) -> int:
    """Bytes of the distinct storages in a result."""
    return sum(storage.nbytes() for storage in {s.data_ptr(): s for s in storages(result)}.values())


def storages(result: Any) -> Iterable[Any]:
    if isinstance(result, Tensor):
        yield result.untyped_storage()
    elif isinstance(result, dict):
        yield from storages(list(result.values()))
    elif isinstance(result, list | tuple):
        for part in result:
            yield from storages(part)


def same(found: list[Tensor], truth: list[Tensor], close: float = 1e-5) -> bool:
    """The same number of tensors, each the same shape and equal to `close`."""
    return len(found) == len(truth) and all(
        mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=close, rtol=0)
        for mine, theirs in zip(found, truth)
    )
