"""A model, its inputs and a target: what attributions are measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.anatomy.modes import evaluation_mode
from regard.editing import edit
from regard.errors import RegardError, ShapeError
from regard.explain.tasks.inputs import Inputs, Removed, removable_of, without_marks
from regard.explain.tasks.passes import Model, call, observed_embedding, outermost
from regard.explain.tasks.replacements import Replacement, name_of, usual_replacement
from regard.explain.tasks.targets import Scores, Target, target_of
from regard.types import pieces

Attribution = Float[Tensor, "example position"]


class Task:
    """What is to be explained: a model, inputs of some examples, and a number for each.

    The model runs in eval mode; its own modes are restored.

    >>> import torch
    >>> from regard import explain
    >>> weigh = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    >>> task = explain.Task(lambda x: (x[..., None] * weigh).sum(1), torch.ones(1, 3))
    >>> task.original  # the probability of class 0, the predicted one
    tensor([0.8808], dtype=torch.float64)
    >>> task.scores(torch.tensor([[True, False, False]]), explain.ZeroEmbedding())
    tensor([0.2689], dtype=torch.float64)

    Args:
        model: a module, or any function that calls one.
        inputs: ids (example, position), features (example, position, width), or tensors by name,
            which the model takes as named arguments.
        target: what is explained. The class that the model predicts when None, held fixed; a
            class, or (example,) classes; a function from what the model returns to (example,);
            or a `Target`.
        special: tokens that are never removed: their numbers, or the tokenizer that knows them.
            A `special_tokens_mask` among the inputs says the same.
        removable: which positions may be removed, (example, position), instead of `special`.
        embedding: the module whose output (example, position, width) stands for the positions.
            Found by itself where it is an `nn.Embedding` called with the ids.
        input_name: which of the named inputs has the tokens, where that is ambiguous.
        batch_size: how many changed inputs the model gets at a time.

    Attributes:
        inputs: what the model is called with, as replacements see it.
        removable: (example, position), True where a position may be removed.
        real: (example, position), True where there is no padding.
        original: the score of each example as it is, (example,).
        modules: those that the model called; the model itself, where it is one.
    """

    def __init__(
        self,
        model: Model,
        inputs: Any,
        target: Any = None,
        *,
        special: Any = None,
        removable: Tensor | None = None,
        embedding: nn.Module | None = None,
        input_name: str | None = None,
        batch_size: int = 32,
    ) -> None:
        if not callable(model):
            raise RegardError(f"model is a {type(model).__name__}, expected a module or a function")
        if batch_size < 1:
            raise RegardError(f"batch_size={batch_size}, expected at least 1")
        all_inputs = inputs if isinstance(inputs, Inputs) else Inputs.of(inputs, input_name)
        if not len(all_inputs):
            raise RegardError("there are no examples in the inputs")
        self.model, self.batch_size = model, batch_size
        self.target: Target = target_of(target)
        self.embedding = embedding
        self.inputs = without_marks(all_inputs)
        with torch.inference_mode(False), torch.no_grad():
            output = self._first_run()
            length = self._length()
            self.removable, self.real = removable_of(all_inputs, length, special, removable)
            self.fixed = self.target.fix(output).detach()
            self.original = self._checked(self.target.score(output, self.fixed), len(self))
        share_mean_embedding([self])

    def __len__(self) -> int:
        return len(self.inputs)

    def _first_run(self) -> Any:
        """What the model returns as it is; the embedding is found on the way."""
        with (
            observed_embedding(self.inputs, self.embedding) as calls,
            evaluation_mode(self.model) as called,
        ):
            inputs = self.inputs
            if inputs.direct:  # a model may change its input in place
                inputs = inputs.with_embeddings(inputs.need_embeddings().clone())
            output = call(self.model, inputs)
        self.modules = outermost(called)
        if calls:
            self.embedding, embeddings = calls[0]
            self.inputs = replace(self.inputs, embeddings=embeddings, direct=False)
        elif self.embedding is not None:
            raise RegardError(
                f"embedding: the {type(self.embedding).__name__} did not run, or did not give "
                "(example, position, width)"
            )
        return output

    def _length(self) -> int:
        embeddings = self.inputs.embeddings
        return int((self.inputs.ids if embeddings is None else embeddings).shape[1])

    def _checked(self, scores: Scores, count: int) -> Scores:
        if scores.shape != (count,):
            raise ShapeError(
                f"target: scores are {tuple(scores.shape)}, expected ({count},): one an example"
            )
        return scores.detach().cpu().double()

    # -- running

    def run(self, inputs: Inputs) -> Any:
        """What the model returns for these inputs."""
        if not inputs.changes:
            return call(self.model, inputs, self.embedding)
        with edit(self.module, *inputs.changes):
            return call(self.model, inputs, self.embedding)

    @property
    def module(self) -> Model:
        """The module that the model calls where it is one, else the model."""
        return self.modules[0] if len(self.modules) == 1 else self.model

    @torch.no_grad()
    def scores(
        self,
        removed: Removed,
        replacement: Replacement | None = None,
        examples: Int[Tensor, " removal"] | None = None,
        advance: Callable[[float], None] | None = None,
    ) -> Float[Tensor, " removal"]:
        """The scores of examples with some positions removed; alike ones are run once.

        Args:
            removed: which positions, (removal, position).
            replacement: how; out of attention or by the mean embedding when None.
            examples: which example each row of `removed` is about; all of them in turn when None.
            advance: called with the share of the work that was done.
        """
        replacement = self.usual_replacement() if replacement is None else replacement
        removed = removed.to(self.inputs.device)
        which = torch.arange(len(self)) if examples is None else examples
        if len(which) != len(removed):
            raise ShapeError(f"removed has {len(removed)} rows for {len(which)} examples")
        if not len(removed):
            return torch.empty(0, dtype=torch.float64)
        which = which.to(self.inputs.device)
        removals = torch.cat([which[:, None].int(), removed.int()], 1)  # (removal, 1 + position)
        distinct, index = removals.unique(dim=0, return_inverse=True)
        scores = []
        for batch in distinct.split(self.batch_size):
            scores.append(self._some(batch[:, 0], batch[:, 1:].bool(), replacement))
            if advance is not None:
                advance(len(batch) / len(distinct))
        return torch.cat(scores)[index.cpu()]

    def _some(self, examples: Tensor, removed: Removed, replacement: Replacement) -> Scores:
        changed = replacement(self.inputs.rows(examples), removed)
        scores = self.target.score(self.run(changed), self.fixed[examples])
        scores = self._checked(scores, len(examples))
        if not bool(scores.isfinite().all()):
            bad = int((~scores.isfinite()).nonzero()[0])
            raise RegardError(
                f"example {int(examples[bad])} with {int(removed[bad].sum())} of "
                f"{removed.shape[1]} positions removed ({name_of(replacement)}) has the score "
                f"{float(scores[bad])}. Attention over nothing does that; another replacement, as "
                "MeanEmbedding(), leaves something to attend to"
            )
        return scores

    def usual_replacement(self) -> Replacement:
        """Out of attention, where something is left to attend to; else the mean embedding."""
        return usual_replacement(self.inputs, self.removable)

    def gradient(self, embeddings: Tensor | None = None) -> Tensor:
        """The gradient of each example's objective by its embeddings, of their shape.

        Parameters' own gradients are not touched.

        Args:
            embeddings: where the gradient is taken, (example, position, width); as they are when
                None.
        """
        at = self.inputs.need_embeddings() if embeddings is None else embeddings
        with torch.inference_mode(False), torch.enable_grad():
            leaf = at.detach().clone().requires_grad_()
            copy = leaf.clone()  # which the model may change in place
            output = self.run(self.inputs.with_embeddings(copy))
            total = self.target.objective(output, self.fixed).sum()
            if not total.requires_grad:
                raise RegardError(
                    "the target does not depend on the embeddings: the model detaches its graph"
                )
            (gradient,) = torch.autograd.grad(total, leaf)
        return gradient


def tasks_of(
    model: Model,
    data: Any,
    target: Any = None,
    *,
    removable: Any = None,
    batch_size: int = 32,
    **options: Any,
) -> list[Task]:
    """A task for each batch of data, cut to at most `batch_size` examples; they share a mean.

    Args:
        data: one batch, or a list of them, or a loader that gives them.
        target: as for `Task`; or a list with one for each batch.
        removable: as for `Task`; or a list with one for each batch.
        batch_size: how many examples the model gets at a time.
        options: as for `Task`.
    """
    single = isinstance(data, Tensor | Mapping) or not isinstance(data, Iterable)
    batches = [data] if single else list(data)
    if not batches:
        raise RegardError("data is an empty list")
    targets, masks = (
        _for_each(target, batches, "target"),
        _for_each(removable, batches, "removable"),
    )
    tasks = []
    for batch, goal, mask in zip(batches, targets, masks):
        inputs = Inputs.of(batch, options.get("input_name"))
        for rows in pieces(len(inputs), batch_size):
            batch_removable = None if mask is None else mask[rows]
            task = Task(
                model,
                inputs.rows(rows),
                target_of(goal).rows(rows),
                removable=batch_removable,
                batch_size=batch_size,
                **options,
            )
            tasks.append(task)
    if not tasks:
        raise RegardError("there are no examples in the data")
    share_mean_embedding(tasks)
    return tasks


def _for_each(values: Any, batches: Sequence[Any], name: str) -> list[Any]:
    if not isinstance(values, list | tuple):
        if isinstance(values, Tensor) and len(batches) > 1:
            raise RegardError(f"{name}: a tensor for {len(batches)} batches; give one for each")
        return [values] * len(batches)
    if len(values) != len(batches):
        raise RegardError(f"{name}: {len(values)} for {len(batches)} batches")
    return list(values)


def share_mean_embedding(tasks: Sequence[Task]) -> None:
    """Give tasks the mean embedding of all their removable positions."""
    sums = [
        task.inputs.embeddings[task.removable].double().sum(0)
        for task in tasks
        if task.inputs.embeddings is not None
    ]
    if len(sums) == len(tasks):
        mean = torch.stack(sums).sum(0) / max(1, sum(int(task.removable.sum()) for task in tasks))
        for task in tasks:
            task.inputs = replace(task.inputs, mean=mean)


def cut(attribution: Any, tasks: Sequence[Task], name: str) -> Iterator[Tensor]:
    """A user's attribution, one tensor or a list of them, as one for each task."""
    tensors = list(attribution) if isinstance(attribution, list | tuple) else [attribution]
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise RegardError(f"attribution {name!r}: expected a tensor for each batch of the data")
    rows = [row for tensor in tensors for row in tensor.split(1)]
    if len(rows) != sum(len(task) for task in tasks):
        raise ShapeError(
            f"attribution {name!r}: {len(rows)} examples, the data has "
            f"{sum(len(task) for task in tasks)}"
        )
    begin = 0
    for task in tasks:
        yield checked(torch.cat(rows[begin : begin + len(task)]), task, name)
        begin += len(task)


def checked(attribution: Tensor, task: Task, name: str) -> Attribution:
    """(example, position); features of a position, as Captum's, are added up."""
    if attribution.dim() == 3:
        attribution = attribution.sum(-1)
    if attribution.shape != task.removable.shape:
        raise ShapeError(
            f"attribution {name!r} is {tuple(attribution.shape)}, expected "
            f"{tuple(task.removable.shape)}: (example, position)"
        )
    attribution = attribution.detach().double().to(task.removable.device)
    if not bool(attribution[task.removable].isfinite().all()):
        raise RegardError(f"attribution {name!r} is not finite at a position that may be removed")
    return attribution
