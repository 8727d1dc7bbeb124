"""Softmaxes and products that are no attention: nothing here may be recorded.

What makes attention is that a softmax over *positions* of the input mixes *values* made from it.
Here the softmax runs over classes, experts, codes, kernels or coordinates, or mixes parameters.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Target, functions

B, N, D, CLASSES, EXPERTS = 2, 6, 16, 5, 4


class Model(nn.Module):
    """A negative: `forward` is the function, with the model's parts at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.router = nn.Linear(D, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(EXPERTS))
        self.codes = nn.Parameter(torch.randn(EXPERTS, D))
        self.values = nn.Parameter(torch.randn(EXPERTS * EXPERTS, D))
        self.half_keys = nn.Parameter(torch.randn(2, EXPERTS, D // 2))
        self.small, self.large = nn.Conv2d(D, D, 1), nn.Conv2d(D, D, 3, padding=1)
        self.squeeze, self.excite = nn.Linear(D, D // 4), nn.Linear(D // 4, D)
        self.select = nn.Linear(D // 4, 2 * D)
        self.map = nn.Conv2d(D, 3, 1)


TARGETS: list[Target] = []


def negative(*shape: int):
    """Add a negative with one input of this shape."""
    return functions.negative(Model, TARGETS, *shape)


# Over classes.


@negative(B, N, D)
def classifier_head(self, x: Tensor) -> Tensor:
    return F.softmax(self.head(torch.relu(self.first(x)).mean(1)), dim=-1)


@negative(B, N, D)
def token_classifier(self, x: Tensor) -> Tensor:
    return self.head(self.first(x)).log_softmax(-1)


@negative(B, N, D)
def temperature_scaled_logits(self, x: Tensor) -> Tensor:
    """A language model's last step: logits by the embedding, and the expected embedding."""
    logits = self.first(x) @ self.codes.t() / 0.7
    return torch.softmax(logits, -1) @ self.codes


@negative(B, N, D)
def cross_entropy(self, x: Tensor) -> Tensor:
    labels = torch.arange(B * N) % CLASSES
    return F.cross_entropy(self.head(x).flatten(0, 1), labels, label_smoothing=0.1)


@negative(B, N, D)
def label_smoothing_by_hand(self, x: Tensor) -> Tensor:
    logs = F.log_softmax(self.head(x).flatten(0, 1), dim=-1)
    goal = torch.full_like(logs, 0.1 / (CLASSES - 1))
    goal.scatter_(1, (torch.arange(B * N) % CLASSES)[:, None], 0.9)
    return -(goal * logs).sum(-1).mean()


@negative(B, N, D)
def distillation_loss(self, x: Tensor) -> Tensor:
    student, teacher = self.head(x), self.head(self.first(x)).detach()
    targets = F.softmax(teacher / 2.0, dim=-1)
    by_hand = -(targets * F.log_softmax(student / 2.0, dim=-1)).sum(-1).mean()
    return by_hand + F.kl_div(F.log_softmax(student, -1), targets, reduction="batchmean")


@negative(B, N, D)
def entropy_loss(self, x: Tensor) -> Tensor:
    chances = F.softmax(self.head(x), dim=-1)
    return -(chances * torch.log(chances + 1e-9)).sum(dim=-1).mean()


@negative(B, N, D)
def entropy_loss_of_logs(self, x: Tensor) -> Tensor:
    logs = F.log_softmax(self.head(x), dim=-1)
    return -(logs.exp() * logs).sum(-1).mean()


@negative(B, N, D)
def gumbel_softmax(self, x: Tensor) -> Tensor:
    return F.gumbel_softmax(self.router(x), tau=0.5, dim=-1) @ self.codes


@negative(B, N, D)
def gumbel_softmax_hard(self, x: Tensor) -> Tensor:
    return F.gumbel_softmax(self.router(x), tau=1.0, hard=True, dim=-1) @ self.codes


@negative(B, 3, D)
def ensemble_mean(self, x: Tensor) -> Tensor:
    """Chances of several members, averaged."""
    return F.softmax(self.head(x), -1).mean(1)


# Over experts and codes.


@negative(B * N, D)
def top_k_router(self, x: Tensor) -> Tensor:
    weights, chosen = torch.topk(F.softmax(self.router(x), dim=-1), 2, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    output = torch.zeros_like(x)
    for index, expert in enumerate(self.experts):
        token, place = torch.where(chosen == index)
        output.index_add_(0, token, expert(x[token]) * weights[token, place, None])
    return output


@negative(B, N, D)
def dense_router(self, x: Tensor) -> Tensor:
    gates = F.softmax(self.router(x), dim=-1)
    return (gates.unsqueeze(-1) * torch.stack([e(x) for e in self.experts], dim=-2)).sum(-2)


@negative(B, N, D)
def dense_router_einsum(self, x: Tensor) -> Tensor:
    gates = F.softmax(self.router(x), dim=-1)
    return torch.einsum("bne,bned->bnd", gates, torch.stack([e(x) for e in self.experts], 2))


@negative(B, N, D)
def cosine_router(self, x: Tensor) -> Tensor:
    codes = F.normalize(self.codes, dim=-1)
    gates = F.softmax(F.normalize(x, dim=-1) @ codes.t() / 0.1, dim=-1)
    return (gates.unsqueeze(-1) * torch.stack([e(x) for e in self.experts], dim=-2)).sum(-2)


@negative(B, N, D)
def soft_codebook(self, x: Tensor) -> Tensor:
    """Vector quantisation: softmax of negative distances, then a mean of the codes."""
    far = (x.unsqueeze(-2) - self.codes).square().sum(-1)
    return torch.matmul(F.softmax(-far, dim=-1), self.codes)


@negative(B, N, D)
def codebook_cdist(self, x: Tensor) -> Tensor:
    return F.softmax(-torch.cdist(x, self.codes.expand(B, -1, -1)), dim=-1) @ self.codes


@negative(B, N, D)
def product_key_memory(self, x: Tensor) -> Tensor:
    """Lample et al. 2019: keys and values are parameters."""
    left, right = (h @ k.t() for h, k in zip(self.first(x).chunk(2, -1), self.half_keys))
    scores, places = (left.unsqueeze(-1) + right.unsqueeze(-2)).flatten(-2).topk(3, dim=-1)
    weights = F.softmax(scores, dim=-1)
    return (weights.unsqueeze(-1) * F.embedding(places, self.values)).sum(-2)


@negative(B, N, D)
def memory_of_parameters(self, x: Tensor) -> Tensor:
    """External attention (Guo et al. 2021): memory units, the same for every input."""
    return F.softmax(self.first(x) @ self.values.t(), dim=-1) @ self.values


@negative(B, N, D)
def mixed_layers(self, x: Tensor) -> Tensor:
    """ELMo: a softmax of a parameter mixes layers."""
    layers = torch.stack([x, self.first(x), torch.relu(x), x.tanh()])
    return torch.einsum("l,lbnd->bnd", self.codes[:, 0].softmax(0), layers)


# Over coordinates.


@negative(B, 3, 12)
def soft_argmax(self, x: Tensor) -> Tensor:
    return (F.softmax(x * 10, dim=-1) * torch.arange(12.0)).sum(-1)


@negative(B, D, 4, 4)
def soft_argmax_2d(self, x: Tensor) -> Tensor:
    """Keypoints: chances over the places of a heat map, times a grid of coordinates."""
    chances = F.softmax(self.map(x).flatten(2), dim=-1)
    rows, columns = torch.meshgrid(
        torch.linspace(-1, 1, 4), torch.linspace(-1, 1, 4), indexing="ij"
    )
    return chances @ torch.stack([rows.flatten(), columns.flatten()], -1)


@negative(B, D, 4, 4)
def spatial_softmax(self, x: Tensor) -> Tensor:
    """Levine et al. 2016: the same, by multiply-and-sum."""
    chances = F.softmax(self.map(x).flatten(2) / 0.5, dim=-1).view(B, 3, 4, 4)
    across, down = torch.linspace(-1, 1, 4), torch.linspace(-1, 1, 4)[:, None]
    return torch.cat([(chances * across).sum((-2, -1)), (chances * down).sum((-2, -1))], -1)


# Gates and products without a softmax over positions.


@negative(B, N, D)
def gated_linear_unit(self, x: Tensor) -> Tensor:
    return F.glu(torch.cat([self.first(x), x], -1), dim=-1)


@negative(B, D, 4, 4)
def squeeze_excite(self, x: Tensor) -> Tensor:
    gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3))))))
    return x * gate[:, :, None, None]


@negative(B, D, 4, 4)
def selective_kernel(self, x: Tensor) -> Tensor:
    """Li et al. 2019: a softmax over two kernels for every channel."""
    both = torch.stack([self.small(x), self.large(x)], 1)
    gates = self.select(torch.relu(self.squeeze(both.sum(1).mean((2, 3)))))
    gates = gates.view(B, 2, D).softmax(dim=1)
    return (both * gates[..., None, None]).sum(1)


@negative(B, N, D)
def covariance(self, x: Tensor) -> Tensor:
    centred = self.first(x) - self.first(x).mean(1, keepdim=True)
    return centred.mT @ centred / (N - 1)


@negative(B, N, D)
def correlation(self, x: Tensor) -> Tensor:
    unit = F.normalize(self.first(x), dim=-1)
    return (unit @ unit.mT) @ x


@negative(B, N, D)
def gram_of_softmax(self, x: Tensor) -> Tensor:
    """Chances compared with each other: the products run along the classes."""
    chances = self.head(x).softmax(-1)
    return chances @ chances.mT


@negative(B, N, D)
def contrastive_loss(self, x: Tensor) -> Tensor:
    """InfoNCE: a softmax over examples that only gives a loss."""
    left, right = F.normalize(self.first(x[:, 0]), dim=-1), F.normalize(x[:, 1], dim=-1)
    return F.cross_entropy(left @ right.t() / 0.1, torch.arange(B))
