"""Kernel regression (Nadaraya 1964, Watson 1964), written without examples and without features.

f(x) = Σ_i softmax_i(−((x − x_i) w)² / 2) y_i
"""

import torch
from torch import Tensor, nn

from . import dense, formulas

QUERIES, KEYS = 5, 7


class Broadcast(formulas.Model):
    """Queries are rows, keys are columns."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(1) + 1)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(QUERIES), torch.randn(KEYS), torch.randn(KEYS)

    def weigh(self, differences: Tensor) -> Tensor:
        return (-((differences * self.w) ** 2) / 2).softmax(-1)

    def forward(self, x, keys, values):
        return self.weigh(x[:, None] - keys) @ values

    def truth(self, x, keys, values):
        pairs = zip(x, keys.expand(len(x), -1))
        scores = [
            [-((query - key) * self.w[0]).square() / 2 for key in row] for query, row in pairs
        ]
        weights = dense.softmax(torch.tensor(scores))
        return [weights[None, None]], (weights * values).sum(-1)


class Summed(Broadcast):
    """Weights times values, added up: no product of matrices."""

    def forward(self, x, keys, values):
        return (self.weigh(x[:, None] - keys) * values).sum(-1)


class SummedTogether(Broadcast):
    """Two softmaxes before either meets its values."""

    def forward(self, x, keys, values):
        near, far = self.weigh(x[:, None] - keys), self.weigh((x[:, None] - keys) / 2)
        return (near * values).sum(-1) + (far * values).sum(-1)

    def truth(self, x, keys, values):
        [near], first = super().truth(x, keys, values)
        [far], second = super().truth(x / 2, keys / 2, values)
        return [near, far], first + second


class SummedExamples(Broadcast):
    """The same with a batch, where values are (batch, 1, key)."""

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(2, QUERIES), torch.randn(2, KEYS), torch.randn(2, KEYS)

    def forward(self, x, keys, values):
        return (self.weigh(x[:, :, None] - keys[:, None]) * values[:, None]).sum(2)

    def truth(self, x, keys, values):
        pairs = [super(SummedExamples, self).truth(*each) for each in zip(x, keys, values)]
        weights, output = zip(*pairs)
        return [torch.cat([each for [each] in weights])], torch.stack(output)


class NormalisedLate(Broadcast):
    """A ratio of two sums, as Nadaraya and Watson wrote it."""

    def forward(self, x, keys, values):
        kernel = torch.exp(-(((x[:, None] - keys) * self.w) ** 2) / 2)
        return (kernel * values).sum(1) / kernel.sum(1)


class Reliable(SummedExamples):
    """Weights times how far each key is trusted, made to sum to 1 again: no values yet."""

    @staticmethod
    def inputs() -> tuple[Tensor, ...]:
        return *SummedExamples.inputs(), torch.rand(2, KEYS)

    def forward(self, x, keys, values, trust):
        weights = self.weigh(x[:, :, None] - keys[:, None]) * trust[:, None]
        weights = weights / weights.sum(-1)[..., None]
        (x[:, None] * keys[..., None]).softmax(-1)  # another softmax in between
        return (weights @ values[..., None]).squeeze(-1)

    def truth(self, x, keys, values, trust):
        [weights], _ = super().truth(x, keys, values)
        weights = weights * trust[:, None, None]
        weights = weights / weights.sum(-1, keepdim=True)
        return [weights], (weights[:, 0] * values[:, None]).sum(-1)


class EachQuery(Broadcast):
    """A query at a time: products of vectors."""

    def forward(self, x, keys, values):
        return torch.stack([self.weigh(query - keys) @ values for query in x])

    def truth(self, x, keys, values):
        [weights], output = super().truth(x, keys, values)
        return list(weights.split(1, 2)), output


class RepeatedKeys(Broadcast):
    """Keys and values copied for each query, and a product by batch: rows of one set of keys."""

    def forward(self, x, keys, values):
        keys, values = keys.repeat(len(x), 1), values.repeat(len(x), 1)
        queries = x.repeat_interleave(keys.shape[1]).reshape(-1, keys.shape[1])
        return (self.weigh(queries - keys)[:, None] @ values[..., None]).reshape(-1)


class ExpandedKeys(Broadcast):
    """The same, as views."""

    def forward(self, x, keys, values):
        weights = self.weigh(x[:, None] - keys.expand(len(x), -1))
        return torch.bmm(weights[:, None], values.expand(len(x), -1)[..., None]).reshape(-1)


class OwnKeys(Broadcast):
    """Keys that come for each query: or a batch of single queries, and nothing tells."""

    group = "unknown"

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        keys, values = torch.randn(2, QUERIES, KEYS).unbind()
        return torch.randn(QUERIES), keys, values

    def forward(self, x, keys, values):
        queries = x.repeat_interleave(keys.shape[1]).reshape(-1, keys.shape[1])
        return torch.bmm(self.weigh(queries - keys)[:, None], values[..., None]).reshape(-1)


class OthersAsKeys(Broadcast):
    """Every point asks all others."""

    group = "unknown"

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(QUERIES), torch.randn(QUERIES)

    @staticmethod
    def others(x: Tensor) -> Tensor:
        apart = ~torch.eye(len(x), dtype=torch.bool)
        return x.repeat(len(x), 1)[apart].reshape(len(x), -1)

    def forward(self, x, values):
        weights = self.weigh(x[:, None] - self.others(x))
        return torch.bmm(weights[:, None], self.others(values)[..., None]).reshape(-1)

    def truth(self, x, values):
        return super().truth(x, self.others(x), self.others(values))


KINDS = (
    Broadcast, Summed, SummedTogether, SummedExamples, NormalisedLate, Reliable, EachQuery,
    RepeatedKeys, ExpandedKeys, OwnKeys, OthersAsKeys,
)  # fmt: skip
TARGETS = [formulas.target(kind, "regression") for kind in KINDS]
