"""When to stop: no better validation, time limit, or a signal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from regard.errors import RegardError
from regard.translate.config import Metric, ValidationConfig

_SAME = 1.0  # seconds within which several signals are one


@dataclass(frozen=True)
class RankedStep:
    """A step whose parameters are kept, and its validation score."""

    step: int
    value: float


@dataclass(frozen=True)
class Best:
    """The best steps so far, best first, and how many validations ago the best one was.

    >>> best = Best("loss", size=2)
    >>> for step, loss in enumerate([3.0, 1.0, 2.0]):
    ...     best = best.look(step, loss)
    >>> best.kept, best.since
    ((RankedStep(step=1, value=1.0), RankedStep(step=2, value=2.0)), 1)
    """

    metric: Metric
    size: int
    kept: tuple[RankedStep, ...] = ()
    since: int = 0

    @staticmethod
    def of(config: ValidationConfig, table: dict[str, Any]) -> Best:
        """From a configuration and the saved `table`."""
        kept = tuple(RankedStep(step, value) for step, value in table.get("kept", []))
        size = config.average
        return Best(config.metric, size, kept[:size], table.get("since", 0))

    def look(self, step: int, value: float) -> Best:
        """With one more validation; of equal scores the earlier is better."""
        sign = 1 if self.metric == "loss" else -1
        kept = sorted(
            (*self.kept, RankedStep(step, value)),
            key=lambda ranked: (sign * ranked.value, ranked.step),
        )
        since = 0 if kept[0].step == step else self.since + 1
        return Best(self.metric, self.size, tuple(kept[: self.size]), since)

    def holds(self, step: int) -> bool:
        """Whether the parameters of a step are among the best."""
        return any(ranked.step == step for ranked in self.kept)

    def table(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"kept": [[ranked.step, ranked.value] for ranked in self.kept], "since": self.since}


class Clock:
    """Elapsed time; earlier parts of a resumed run count for `total`, not for the limit.

    `reserved` seconds before the limit are for what comes after the last step.
    """

    def __init__(self, minutes: float | None, earlier: float = 0.0) -> None:
        if minutes is not None and not minutes >= 0:
            raise RegardError(f"minutes must be at least 0, found {minutes}")
        self.limit = None if minutes is None else minutes * 60
        self.earlier = earlier
        self.reserved = 0.0
        self.start = time.monotonic()

    @property
    def here(self) -> float:
        """Seconds since this clock was made."""
        return time.monotonic() - self.start

    @property
    def total(self) -> float:
        """Seconds with those of earlier parts."""
        return self.earlier + self.here

    @property
    def over(self) -> bool:
        """Whether the time for steps is up."""
        return self.limit is not None and self.here >= self.limit - self.reserved


class StopRequest:
    """Whether a stop was requested, and when (`time.monotonic`)."""

    def __init__(self) -> None:
        self.since: float | None = None

    def __bool__(self) -> bool:
        return self.since is not None


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Within the block, the first SIGTERM or SIGINT requests a stop; a second one interrupts.

    Signals within a second of the first count as the same: a terminal and torchrun each forward
    Ctrl-C.
    """
    asked = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if asked.since is None:
            asked.since = now
        elif now - asked.since > _SAME:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
