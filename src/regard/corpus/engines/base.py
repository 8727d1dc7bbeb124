"""What every engine does, and what is done with each shard."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from regard.anatomy.modes import evaluation_mode
from regard.corpus.corpus import Corpus, Shard
from regard.corpus.observing import Model, Observer, weights_digest
from regard.corpus.run_folder import RunFolder
from regard.corpus.state import State
from regard.corpus.statistic import Statistic
from regard.errors import RegardError


@dataclass(frozen=True)
class Task:
    """What is done with each shard of a corpus."""

    model: Model  #: or a function without parameters that loads it
    corpus: Corpus
    statistics: Mapping[str, Statistic]
    where: Any
    skip: bool  #: whether documents that fail are left out

    @contextmanager
    def observing(self) -> Iterator[Callable[[Shard], State]]:
        """A function that gives what a shard adds; the model is in eval mode meanwhile."""
        model, weights = self.model, ""
        if is_loader(model):  # its name is all that the manifest knows
            model = model()
            weights = weights_digest(model) if isinstance(model, nn.Module) else ""
        observer = Observer(model, self.statistics, self.where, weights)
        with evaluation_mode(model):
            yield partial(self._observed, observer)

    def _observed(self, observer: Observer, shard: Shard) -> State:
        """An error where all documents of a shard fail, which is no fault of theirs."""
        state = observer.shard(self.corpus, shard, self.skip)
        if not state.examples and shard.size >= max(2, self.corpus.shard_size):
            raise RegardError(f"collect: shard {shard.number}: {why_nothing(state)}")
        return state


class Engine(ABC):
    """Sees to it that every shard of a corpus is in the folder of the run."""

    name: str
    leads = True  #: whether this process shows progress, and writes the results
    needs_out = False  #: whether it is for the user to name a folder

    def begin(self, folder: RunFolder, settings: Mapping[str, Any], resume: bool) -> None:
        """Make the folder, or continue it."""
        folder.begin(settings, resume)

    @abstractmethod
    def fill(self, task: Task, folder: RunFolder, advance: Callable[[float], None]) -> int:
        """Save what each shard adds that is not in the folder; how many shards there are.

        Args:
            task: what is done with each.
            folder: of the run.
            advance: told how many more documents are done.
        """


def is_loader(model: Any) -> bool:
    """Whether it is a function without parameters, which loads the model."""
    if isinstance(model, nn.Module) or not callable(model):
        return False
    try:
        return not inspect.signature(model).parameters
    except ValueError:  # some built-in functions have no signature
        return False


def why_nothing(state: State) -> str:
    """Why nothing was collected."""
    if state.failures:
        document, error = state.failures[0]
        return f"all {len(state.failures)} documents failed, the first, {document}, with: {error}"
    if state.left_out:
        site, why = next(iter(state.left_out.items()))
        return f"collect: no attention can be looked at: {site}: {why}"
    if state.examples:
        return "collect: the model has no attention that capture sees, or none that where= names"
    return "collect: the corpus has no documents"
