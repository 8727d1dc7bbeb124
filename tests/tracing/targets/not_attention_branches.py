"""No attention: softmaxes over variables, branches and rounds, and a kernel that is inverted.

Each looks like attention from nearby: something is weighed by a softmax, and summed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import EMPTY, Case, Target, dense, formulas

B, N, D = 2, 9, 24


class VariableSelection(nn.Module):
    """Temporal fusion (Lim et al. 2021): a norm lies between the linear map and the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.chances, self.norm = nn.Linear(3 * 8, 3), nn.LayerNorm(3)
        self.networks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        variables = x.split(8, -1)
        gates = self.norm(self.chances(x)).unsqueeze(-2).softmax(-1)
        networks = zip(self.networks, variables)
        return (torch.stack([network(tensor) for network, tensor in networks], -1) * gates).sum(-1)


class GatedResidual(nn.Module):
    """The whole network that scores: two maps, a gated unit, a sum and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.skip = nn.Linear(D, 5), nn.Linear(5, 6), nn.Linear(D, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        inner = F.glu(self.second(F.elu(self.first(x))), -1)
        return self.norm(inner + self.skip(x))


class VariableSelectionResidual(VariableSelection):
    def __init__(self) -> None:
        super().__init__()
        self.chances, self.norm = GatedResidual(), nn.Identity()


class VariableSelectionStatic(VariableSelection):
    """Of variables that do not change: no time axis."""

    def forward(self, x):
        return super().forward(x[:, 0])


class SplitBranches(nn.Module):
    """ResNeSt (Zhang et al. 2020): two branches, weighed for every channel by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.channels, self.small, self.large = (
            nn.Conv2d(D, 2 * D, 1),
            *(nn.Conv2d(D, D, size, padding=size // 2) for size in (1, 3)),
        )

    def forward(self, x):
        image = x.mT.view(B, D, 3, 3)
        branches = torch.stack([self.small(image), self.large(image)], 1)
        pooled = branches.sum(1).mean((2, 3), keepdim=True)
        gates = self.channels(pooled).view(B, 1, 2, -1).transpose(1, 2).softmax(1)
        return (branches * gates.reshape(B, 2, D, 1, 1)).sum(1)


class SelectedKernels(SplitBranches):
    """SKNet (Li et al. 2019), as in timm: the softmax axis is cut out of the channels."""

    def forward(self, x):
        image = x.mT.view(B, D, 3, 3)
        branches = torch.stack([self.small(image), self.large(image)], 1)
        pooled = branches.sum(1).mean((2, 3), keepdim=True)
        gates = self.channels(pooled).view(B, 2, D, 1, 1).softmax(1)
        return (branches * gates).sum(1)


class Rounds(nn.Module):
    """The end of Reformer's attention (Kitaev et al. 2020): hash rounds weighed by their sums."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(D, 8), nn.Linear(D, 8)

    def forward(self, x):
        qk = self.qk(x)
        scores = qk @ F.normalize(qk, dim=-1).mT
        outputs = torch.stack([self.v(x) * factor for factor in (1.0, 2.0, 3.0)], 1)
        sums = scores.logsumexp(-1, keepdim=True)
        sums = torch.stack([sums * factor for factor in (1.0, 0.5, 0.2)], 1)
        chances = torch.exp(sums - torch.logsumexp(sums, dim=1, keepdim=True))
        return (outputs * chances).sum(1)


def _inverse(kernel: Tensor) -> Tensor:
    """Three steps of the iteration towards the pseudo-inverse (Razavi et al. 2014)."""
    inverse, eye = kernel.mT / (kernel.sum(-1).max() * kernel.sum(-2).max()), torch.eye(5)
    for _ in range(3):
        power = kernel @ inverse
        power = 13 * eye - power @ (15 * eye - power @ (7 * eye - power))
        inverse = 0.25 * inverse @ power
    return inverse


class Nystrom(formulas.Model):
    """Xiong et al. 2021: of three softmaxes, one is only inverted.

    Landmarks look at keys, and queries at landmarks by weights times the inverse, which are signed.
    The kernel between landmarks mixes nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = 4, nn.Linear(D, 3 * D, bias=False)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 10, D),)

    def forward(self, x):
        q, k, v = (tensor.view(B, 10, 4, 6).transpose(1, 2) for tensor in self.qkv(x).chunk(3, -1))
        queries, keys = (tensor.reshape(B, 4, 5, 2, 6).mean(3) for tensor in (q, k))
        first, kernel, last = (
            (left @ right.mT).softmax(-1)
            for left, right in ((q, keys), (queries, keys), (queries, k))
        )
        return (first @ _inverse(kernel) @ (last @ v)).transpose(1, 2).reshape(B, 10, D)

    def truth(self, x):
        q, k, v = (dense.heads(tensor, 4) for tensor in self.qkv(x).chunk(3, -1))
        queries, keys = (tensor.unflatten(2, (5, 2)).mean(3) for tensor in (q, k))
        first, kernel, last = (
            dense.weights(left, right, scale=1.0)
            for left, right in ((q, keys), (queries, keys), (queries, k))
        )
        signed = first @ _inverse(kernel)
        return [last, signed], dense.merged(dense.mix(signed, dense.mix(last, v)))


class NystromFromTheRight(Nystrom):
    """The inverse meets the values first."""

    def forward(self, x):
        q, k, v = (tensor.view(B, 10, 4, 6).transpose(1, 2) for tensor in self.qkv(x).chunk(3, -1))
        queries, keys = (tensor.reshape(B, 4, 5, 2, 6).mean(3) for tensor in (q, k))
        first, kernel, last = (
            (left @ right.mT).softmax(-1)
            for left, right in ((q, keys), (queries, keys), (queries, k))
        )
        return (first @ (_inverse(kernel) @ (last @ v))).transpose(1, 2).reshape(B, 10, D)

    def truth(self, x):
        (last, _), output = super().truth(x)
        q, k, _ = (dense.heads(tensor, 4) for tensor in self.qkv(x).chunk(3, -1))
        return [last, dense.weights(q, k.unflatten(2, (5, 2)).mean(3), scale=1.0)], output


class Penalised(formulas.Model):
    """Lin et al. 2017: weights times their transpose give a penalty, before they meet values."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(D, D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, D),)

    def forward(self, x):
        weights = (x @ self.key(x).mT).softmax(-1)
        penalty = (weights @ weights.mT - torch.eye(N)).square().sum()
        return weights @ x, penalty

    def truth(self, x):
        weights = dense.weights(x[:, None], self.key(x)[:, None], scale=1.0)
        gram = weights @ weights.mT - torch.eye(N)
        return [weights], (dense.mix(weights, x[:, None])[:, 0], gram.square().sum())


class TwoSteps(Penalised):
    """The weights of two steps are the product of those of one."""

    def forward(self, x):
        weights = (x @ self.key(x).mT).softmax(-1)
        return (weights @ weights) @ x

    def truth(self, x):
        (weights,), _ = super().truth(x)
        return [weights @ weights], dense.mix(weights @ weights, x[:, None])[:, 0]


def _negative(kind: type[nn.Module]) -> Target:
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)

    def build() -> Case:
        return Case(kind().eval(), (torch.randn(B, N, D),))

    return Target(f"not{name}", "negatives", build, warns=EMPTY)


NEGATIVES = (
    *(VariableSelection, VariableSelectionResidual, VariableSelectionStatic),
    *(SplitBranches, SelectedKernels, Rounds),
)
INVERTED = (Nystrom, NystromFromTheRight, Penalised, TwoSteps)
TARGETS = [*map(_negative, NEGATIVES), *(formulas.target(kind, "inverted") for kind in INVERTED)]
