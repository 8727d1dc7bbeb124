"""A model reads a batch, and statistics see its attentions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from regard.aggregate.statistics.head_sums import RowSums
from regard.corpus.batch import Batch
from regard.corpus.corpus import Corpus, Document, OnFailure, Shard, naming
from regard.corpus.state import State
from regard.corpus.statistic import Attention, Statistic
from regard.errors import RegardError
from regard.heads.passes import run_on
from regard.kernel.reduce import reduce
from regard.kernel.reducers.base import Reducer
from regard.recipe import Given, Recipe
from regard.record import Record
from regard.tracing import capture

Model = Callable[..., Any]

_UNSEEN = 1e-4  # of a row: weight on padding up to which a mask has done its work


class Observer:
    """Runs a model on batches, for some statistics.

    Args:
        model: the model, or a function that runs it.
        statistics: by name.
        where: which attentions, as for `capture`.
        weights: digest of the model's weights, which what is collected is to have.
    """

    def __init__(
        self, model: Model, statistics: Mapping[str, Statistic], where: Any, weights: str = ""
    ) -> None:
        self.model, self.statistics, self.where = model, statistics, where
        self.weights = weights

    def shard(self, corpus: Corpus, shard: Shard, skip: bool) -> State:
        """What a shard adds. Documents that fail are left out where `skip`, else the first one is
        an error that names it."""
        state = State(self.statistics, weights=self.weights)
        on_failure: OnFailure = state.failures.append if skip else None
        for group in corpus.groups(shard, on_failure):
            try:
                added = self.batch(corpus.batch(group))
            except Exception as error:
                self._one_by_one(state, corpus, group, error, on_failure)
            else:
                state.merge(added)
        state.failures.sort()
        return state

    def _one_by_one(
        self,
        state: State,
        corpus: Corpus,
        group: Batch | Sequence[Document],
        error: Exception,
        on_failure: OnFailure,
    ) -> None:
        """Add a group that failed document by document, to find which of them is the cause."""
        documents = [] if isinstance(group, Batch) else group
        for document in documents:
            added = State(self.statistics)
            with naming([document.number], on_failure):
                added = self.batch(corpus.batch([document]))
            state.merge(added)
        if isinstance(group, Batch):
            with naming(group.numbers, on_failure):
                raise error
        if on_failure is None:  # none fails alone
            with naming([document.number for document in group], None):
                raise error

    def batch(self, batch: Batch) -> State:
        """What a batch adds; an error adds nothing."""
        state = State(self.statistics, examples=len(batch), tokens=batch.n_tokens, cut=batch.n_cut)
        device = _device(self.model)
        inputs = dict(batch.inputs) if isinstance(batch.inputs, Mapping) else batch.inputs
        inputs = tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs)
        with torch.inference_mode():
            with _told_of_length(self.model, batch), capture(self.model, where=self.where) as trace:
                run_on(self.model, inputs)
            asked = {name: each.asks(batch) for name, each in self.statistics.items()}
            for record in trace:
                reason = _left_out(record, batch)
                if reason:
                    state.left_out[record.name] = reason
                else:
                    self._observe(state, record, batch, asked)
        return state

    def _observe(
        self,
        state: State,
        record: Record,
        batch: Batch,
        asked: Mapping[str, Mapping[str, Reducer]],
    ) -> None:
        answers, sums = _answers(record.recipe, batch, asked)
        finite, rows = sums.mass.isfinite(), batch.positions.rows
        if not bool((finite | ~rows[:, None]).all()):
            raise RegardError(f"{record.name}: its weights are not finite")
        on_padding = answers.get(id(batch.on_padding), torch.zeros(()))
        if bool(((on_padding.cpu() > _UNSEEN) & rows[:, None, None]).any()):
            raise RegardError(
                f"{record.name}: tokens attend to padding, as if the model did not use the mask of "
                "a batch: pass attention_mask on to it, or read texts one by one, as Corpus(..., "
                "batch_size=1)"
            )
        if not bool(finite.all()):  # of padding; it must not reach sums over rows
            weights = record.recipe.detach().weights()
            weights = torch.where(rows[:, None, :, None].to(weights.device), weights, 0.0)
            answers, sums = _answers(Given(weights, None, record.kind), batch, asked)
        for name, parts in state.parts(record.name).items():
            own = {key: answers[id(each)] for key, each in asked[name].items()}
            attention = Attention(record, batch, own, sums.counted, sums)
            self.statistics[name].update(parts, attention)


@contextmanager
def _told_of_length(model: Model, batch: Batch) -> Iterator[None]:
    """Where a model fails on more positions than it has, the error says so."""
    try:
        yield
    except Exception as error:
        longest = int(batch.real.sum(1).max())
        most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        if not isinstance(most, int) or longest <= most:
            raise
        raise RegardError(
            f"it has {longest} tokens, and the model {most} positions: Corpus(..., "
            f"max_length={most}) cuts it ({type(error).__name__}: {error})"
        ) from error


def _answers(
    recipe: Recipe, batch: Batch, asked: Mapping[str, Mapping[str, Reducer]]
) -> tuple[dict[int, Any], RowSums]:
    """The answers to all statistics in one walk, by the identity of what was asked, and the sums
    of rows that they are about."""
    questions = batch.questions
    always = questions.reducers["sums"]
    reducers = {id(each): each for own in asked.values() for each in own.values()}
    for each in (always, batch.on_padding):
        if each is not None:
            reducers[id(each)] = each
    answers = dict(zip(reducers, reduce(recipe, list(reducers.values()))))
    asked_here = ((key, id(each)) for key, each in questions.reducers.items())
    return answers, RowSums(
        recipe, questions, {key: answers[each] for key, each in asked_here if each in answers}
    )


def _left_out(record: Record, batch: Batch) -> str:
    """Why an attention is not looked at; nothing if it is."""
    size = batch.real.shape
    if not record.site.axes_known:
        return "the order of its axes is not known"
    if record.kind in ("signed", "gate"):
        return f"{record.kind} weights are no shares of a whole"
    if record.attends == "cross":
        return "its keys are another sequence than its queries"
    if record.shape != (size[0], record.shape.heads, size[1], size[1]):
        return (
            f"it is {tuple(record.shape)}, expected {size[1]} queries and keys of {size[0]} texts"
        )
    return ""


def _device(model: Model) -> torch.device:
    """Where a model takes its inputs: where its first parameter is."""
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    parameters = owner.parameters() if isinstance(owner, nn.Module) else iter(())
    first = next(iter(parameters), None)
    return torch.device("cpu") if first is None else first.device


def weights_digest(model: nn.Module) -> str:
    """A checksum of the parameters and buffers of a model."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(tensor, Tensor):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
