"""Shards one after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from regard.corpus.engines.base import Engine, Task
from regard.corpus.run_folder import RunFolder
from regard.corpus.state import State


class Local(Engine):
    """This process does everything."""

    name = "local"

    def fill(self, task: Task, folder: RunFolder, advance: Callable[[float], None]) -> int:
        number = 0
        with task.observing() as observed:
            for shard in task.corpus.shards():
                if not folder.has(shard):
                    folder.save(shard, observed(shard))
                advance(len(shard.documents))
                number += 1
        return number

    def states(self, task: Task, advance: Callable[[float], None]) -> Iterator[State]:
        """What each shard adds, without a folder."""
        with task.observing() as observed:
            for shard in task.corpus.shards():
                yield observed(shard)
                advance(len(shard.documents))
