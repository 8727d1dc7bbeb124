"""What any attribution has to beat: gradients by the embeddings, which ignore attention.

>>> import torch
>>> from torch import nn
>>> from regard import explain
>>> model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
>>> task = explain.Task(model, torch.tensor([[1, 5, 7]]))
>>> explain.input_gradient(task).shape
torch.Size([1, 3])
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.explain.tasks.replacements import spread
from regard.explain.tasks.task import Attribution, Task


def gradient_norm(task: Task) -> Attribution:
    """The length of each position's gradient, ‖∂s/∂e_j‖₂: how much it could matter."""
    return _features(task.gradient()).square().sum(-1).sqrt()


def input_gradient(task: Task) -> Attribution:
    """Each position's embedding times its gradient, e_j · ∂s/∂e_j; below 0 it speaks against."""
    embeddings = task.inputs.need_embeddings()
    return (_features(embeddings) * _features(task.gradient())).sum(-1)


def integrated_gradients(
    task: Task, *, steps: int = 32, baseline: Tensor | None = None
) -> Attribution:
    """The mean gradient on the line from a baseline, times the difference (Sundararajan, 2017).

    Over the positions they sum to s(x) − s(baseline), up to discretisation.

    Args:
        task: the model, its inputs and the target.
        steps: points on the line, at the midpoints of equal parts.
        baseline: embeddings to start from, of a shape that fits; when None, zeros at the positions
            that may be removed, and the others as they are.
    """
    if steps < 1:
        raise RegardError(f"integrated_gradients: steps={steps}, expected at least 1")
    end = task.inputs.need_embeddings()
    if baseline is None:
        start = end.masked_fill(spread(task.removable, end), 0.0)
    else:
        try:
            start = baseline.to(end).expand_as(end)
        except RuntimeError:
            raise ShapeError(
                f"baseline is {tuple(baseline.shape)}, expected {tuple(end.shape)}, or what "
                "becomes that by repeating"
            ) from None
    total = torch.zeros_like(end, dtype=torch.promote_types(end.dtype, torch.float32))
    for step in range(steps):
        total += task.gradient(start + (end - start) * ((step + 0.5) / steps))
    return (_features(total / steps) * _features(end - start)).sum(-1)


def _features(values: Tensor) -> Tensor:
    """(example, position, width), at least in single precision."""
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    return wide.reshape(*wide.shape[:2], -1)
