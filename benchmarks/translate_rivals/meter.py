"""The stopwatch of every worker: target tokens and processor time of updates, start-up left out.

It needs the standard library alone, because each worker runs in its system's own environment.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What a worker is to train; every system is given the same one.

    | field      | meaning                                                                    |
    |------------|----------------------------------------------------------------------------|
    | `data`     | a folder with `train.en`, `train.fr`, `words.en`, `words.fr`, as `prepare` |
    | `scratch`  | a folder the system may write to                                           |
    | `model`    | `recurrent` or `transformer`                                               |
    | `shape`    | the sizes, by name                                                         |
    | `sentences`| in a batch                                                                 |
    | `dropout`  | probability, wherever the system applies it                                |
    | `warm`     | updates before the stopwatch starts                                        |
    | `updates`  | updates with the stopwatch running                                         |
    | `seed`     | of the weights and the order                                               |
    """

    data: str
    scratch: str
    model: str
    shape: dict[str, int]
    sentences: int
    dropout: float
    warm: int
    updates: int
    seed: int

    @classmethod
    def from_arguments(cls) -> Task:
        return cls(**json.loads(sys.argv[1]))


class Meter:
    """Counts updates; its clock is the processor time of this process, all threads together."""

    def __init__(self, task: Task) -> None:
        self._warm, self._last = task.warm, task.warm + task.updates
        self._updates = self._tokens = self._sentences = self._places = 0
        self._start = self._seconds = 0.0
        self.parameters = 0
        if not task.warm:
            self._start = time.process_time()

    @property
    def done(self) -> bool:
        return self._updates >= self._last

    def update(self, *, tokens: int, sentences: int, places: int) -> None:
        """One update is finished: `tokens` real ones among `places`, padding included."""
        now = time.process_time()
        self._updates += 1
        if self._updates == self._warm:
            self._start = now
        elif self._warm < self._updates <= self._last:
            self._tokens += tokens
            self._sentences += sentences
            self._places += places
            self._seconds = now - self._start

    def report(self) -> None:
        """Print what was measured as the last line of the output."""
        found = {
            "tokens": self._tokens,
            "seconds": self._seconds,
            "sentences": self._sentences,
            "places": self._places,
            "parameters": self.parameters,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print("\n" + json.dumps(found), flush=True)
