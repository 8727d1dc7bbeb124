"""Mechanisms that keep the contract in ways that a check can mistake for a fault."""

import torch
from torch import nn
from torch.nn import functional as F

from regard import Attended
from regard.mechanisms import FromRecipe
from regard.recipe import Given
from regard.types import whole


class _OneHead(FromRecipe):
    """One head whose matrix is a function of the scores, pair by pair."""

    def prepare(self, key, value, *, start=0):
        return key[:, None], value[:, None]  # (batch, 1, key, width)

    def recipe(self, inputs, bias):
        scores = inputs.query[:, None] @ inputs.key.mT / inputs.query.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias
        matrix = self.of_scores(scores)
        if inputs.mask is not None:
            allowed = inputs.mask.block(whole(*inputs.shape[2:]), scores.device)
            matrix = matrix.masked_fill(~torch.as_tensor(allowed), 0.0)
        return Given(matrix, inputs.value, self.kind)


class Signed(_OneHead):
    """Weights may be below 0."""

    kind = "signed"

    def of_scores(self, scores):
        return scores.tanh()


class Gate(_OneHead):
    """Each pair by itself: rows sum to anything."""

    kind = "gate"

    def of_scores(self, scores):
        return scores.sigmoid()


class Float32Softmax(nn.Module):
    """As most language models do: the softmax in float32, whatever comes in. No reductions."""

    kind = "distribution"

    def __init__(self):
        super().__init__()
        self.query, self.value, self.output = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, query, key=None, value=None, *, weights=False):
        key = query if key is None else key
        value = key if value is None else value
        scores = self.query(query) @ key.mT / 4  # (batch, query, key)
        matrix = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        output = self.output(matrix @ self.value(value))
        return Attended(output, matrix[:, None] if weights else None)


class WrongGradient(Float32Softmax):
    """The same with a gradient that is 5 % too large."""

    def forward(self, query, *inputs, **options):
        return super().forward(query + 0.05 * (query - query.detach()), *inputs, **options)
