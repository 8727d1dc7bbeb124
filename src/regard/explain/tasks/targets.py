"""What is explained: one number for each example, whose meaning is fixed beforehand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError, ShapeError

Scores = Float[Tensor, " example"]


class Target(ABC):
    """A number for each example, made from what the model returns.

    `fix` gets the model's output for the original inputs, and returns what stays fixed when
    positions are removed, such as the predicted class; its first axis is that of examples.
    """

    @abstractmethod
    def fix(self, output: Any) -> Tensor:
        """What stays the same, (example, …)."""

    @abstractmethod
    def score(self, output: Any, fixed: Tensor) -> Scores:
        """The number that removing positions may change."""

    def objective(self, output: Any, fixed: Tensor) -> Scores:
        """The number whose gradient is taken; the score itself, unless it saturates."""
        return self.score(output, fixed)

    def rows(self, examples: slice) -> Target:
        """The target of some of the examples."""
        return self


class Class(Target):
    """The probability of a class, by the softmax of the model's logits.

    Gradients are taken of the logit, which does not saturate.

    Args:
        label: the class; one for all, or (example,). The one that the model predicts when None.
        position: for logits (example, position, class), as of a language model, which position.
        probabilities: whether the model returns probabilities and not logits.
    """

    def __init__(
        self,
        label: int | Tensor | None = None,
        *,
        position: int | None = None,
        probabilities: bool = False,
    ) -> None:
        if isinstance(label, Tensor) and label.dim() != 1:
            raise ShapeError(f"label is {tuple(label.shape)}, expected a number or (example,)")
        self.label, self.position, self.probabilities = label, position, probabilities

    def __repr__(self) -> str:
        if isinstance(self.label, Tensor):
            return "probability of a given class"
        return f"probability of {'the predicted class' if self.label is None else self.label}"

    def fix(self, output: Any) -> Tensor:
        logits = self._logits(output).detach()
        if not self.probabilities and _sums_to_one(logits):
            raise RegardError(
                "the model returns probabilities: rows are not negative and sum to 1. Say so, as "
                "target=explain.Class(probabilities=True)"
            )
        count, classes = logits.shape
        if self.label is None:
            return logits.argmax(-1)
        label = torch.as_tensor(self.label, device=logits.device, dtype=torch.long).expand(count)
        if bool(((label < 0) | (label >= classes)).any()):
            raise RegardError(f"label={self.label}, expected classes from 0 to {classes - 1}")
        return label

    def score(self, output: Any, fixed: Tensor) -> Scores:
        logits = self._logits(output)
        shares = logits if self.probabilities else logits.softmax(-1)
        return shares.gather(1, fixed[:, None])[:, 0]

    def objective(self, output: Any, fixed: Tensor) -> Scores:
        return self._logits(output).gather(1, fixed[:, None])[:, 0]

    def rows(self, examples: slice) -> Target:
        if not isinstance(self.label, Tensor):
            return self
        return Class(self.label[examples], position=self.position, probabilities=self.probabilities)

    def _logits(self, output: Any) -> Tensor:
        """(example, class), at least in single precision."""
        logits = tensor_of(output, "logits")
        if logits.dim() == 3 and self.position is not None:
            logits = logits[:, self.position]
        if logits.dim() != 2 or logits.shape[1] < 2:
            raise ShapeError(
                f"the model returns {tuple(logits.shape)}, expected logits (example, class). Say "
                "what is explained: target=explain.Class(position=-1) for a language model, or a "
                "function from what the model returns to (example,)"
            )
        return widened(logits)


class Similarity(Target):
    """The cosine of the model's embedding of an example to another one.

    Gradients are taken of the inner product with the direction of the other one: the cosine to
    the example's own embedding is at its largest, where its gradient is 0.

    Args:
        to: the other embeddings, (example, width); each example's own when None.
    """

    def __init__(self, to: Tensor | None = None) -> None:
        if to is not None and to.dim() != 2:
            raise ShapeError(f"to is {tuple(to.shape)}, expected (example, width)")
        self.to = to

    def __repr__(self) -> str:
        other = "its own" if self.to is None else "another"
        return f"similarity to {other} embedding"

    def fix(self, output: Any) -> Tensor:
        own = self._embedding(output).detach()
        if self.to is None:
            return own
        if self.to.shape != own.shape:
            raise ShapeError(f"to is {tuple(self.to.shape)}, expected {tuple(own.shape)}")
        return self.to.detach().to(own.device, own.dtype)

    def score(self, output: Any, fixed: Tensor) -> Scores:
        return torch.cosine_similarity(self._embedding(output), fixed, dim=-1)

    def objective(self, output: Any, fixed: Tensor) -> Scores:
        direction = torch.nn.functional.normalize(fixed, dim=-1)
        return (self._embedding(output) * direction).sum(-1)

    def rows(self, examples: slice) -> Target:
        return self if self.to is None else Similarity(self.to[examples])

    def _embedding(self, output: Any) -> Tensor:
        embedding = tensor_of(output, "pooler_output")
        if embedding.dim() != 2:
            raise ShapeError(
                f"the model returns {tuple(embedding.shape)}, expected one embedding for each "
                "example, (example, width): give a function that pools, as lambda **inputs: …"
            )
        return widened(embedding)


class Function(Target):
    """Any function from what the model returns to a number for each example."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function = function

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return "a function" if name == "<lambda>" else name

    def fix(self, output: Any) -> Tensor:
        return torch.zeros_like(self.score(output, torch.empty(0)).detach())

    def score(self, output: Any, fixed: Tensor) -> Scores:
        scores = self.function(output)
        if not isinstance(scores, Tensor) or scores.dim() != 1:
            shown = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ShapeError(f"target: the function gives {shown}, expected a tensor (example,)")
        return widened(scores)


def target_of(target: Any) -> Target:
    """A target from None, a class, classes, a function, or a target."""
    if isinstance(target, Target):
        return target
    if target is None or isinstance(target, Tensor):
        return Class(target)
    if isinstance(target, int) and not isinstance(target, bool):
        return Class(target)
    if callable(target):
        return Function(target)
    raise RegardError(
        f"target={target!r}, expected None (the predicted class), a class, (example,) classes, or "
        "a function from what the model returns to (example,)"
    )


def tensor_of(output: Any, name: str) -> Tensor:
    """The tensor that a model returned, alone, by name, or first."""
    if isinstance(output, Tensor):
        return output
    tensor = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    if tensor is None and isinstance(output, tuple | list) and output:
        tensor = output[0]
    if not isinstance(tensor, Tensor):
        raise RegardError(
            f"the model returns a {type(output).__name__} without {name!r}; say what is explained "
            "by target=, a function from what the model returns to (example,)"
        )
    return tensor


def widened(values: Tensor) -> Tensor:
    """At least single precision: a probability in half precision has three digits."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _sums_to_one(rows: Tensor) -> bool:
    sums = rows.sum(-1)
    return bool((rows >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())
