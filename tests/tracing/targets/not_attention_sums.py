"""No attention: exponentials, products and sums that divide, as late normalisation has them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Target, functions

B, N, D, K = 2, 7, 16, 5
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2, 5], [1, 1, 3, 3, 0, 4, 2, 6, 6, 5]])
TARGETS: list[Target] = []


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.score, self.filters = nn.Linear(D, 1), nn.Linear(K, D)
        self.register_buffer("features", torch.randn(D, K))
        self.register_buffer("centres", torch.linspace(0, 4, K))


negative = functions.negative(Model, TARGETS, B, N, D)


# Positions are summed before any query comes, so that no query has weights of its own.


@negative
def linear_exponential(self, x: Tensor) -> Tensor:
    """Linear attention (Katharopoulos et al. 2020) with exp for its feature map."""
    q, k, v = self.q(x).exp(), self.k(x).exp(), self.v(x)
    return (q @ (k.mT @ v)) / (q @ k.sum(1)[..., None])


@negative
def random_features(self, x: Tensor) -> Tensor:
    """Performers (Choromanski et al. 2021): exponentials of random projections."""

    def features(tensor: Tensor) -> Tensor:
        shift = tensor.square().sum(-1, keepdim=True) / 2
        logs = tensor @ self.features
        return (logs - shift - logs.amax(-1, keepdim=True)).exp() + 1e-4

    q, k, v = features(self.q(x) / 2), features(self.k(x) / 2), self.v(x)
    total = torch.einsum("bnk,bk->bn", q, k.sum(1))
    context = torch.einsum("bnk,bnd->bkd", k, v)
    return torch.einsum("bkd,bnk,bn->bnd", context, q, 1 / total)


# Matched or compared, and never mixed.


@negative
def transport_distance(self, x: Tensor) -> Tensor:
    """Sinkhorn (Cuturi 2013): a kernel that is scaled, and gives a distance."""
    cost = torch.cdist(self.q(x), self.k(x))
    kernel = (-cost / 2).exp()
    rows = columns = x.new_ones(B, N, 1)
    for _ in range(3):
        rows = 1 / (kernel @ columns)
        columns = 1 / (kernel.mT @ rows)
    return (rows * kernel * columns.mT * cost).sum((1, 2))


@negative
def info_nce_by_hand(self, x: Tensor) -> Tensor:
    left, right = F.normalize(self.q(x), dim=-1), F.normalize(self.k(x), dim=-1)
    powers = (left @ right.mT / 0.5).exp()
    return -(powers.diagonal(dim1=1, dim2=2) / powers.sum(-1)).log().mean()


@negative
def free_energy(self, x: Tensor) -> Tensor:
    """The mean energy of a Boltzmann distribution over positions."""
    energy = self.score(x)[..., 0]
    powers = (-energy).exp()
    return (powers * energy).sum(-1) / powers.sum(-1)


@negative
def experts_by_hand(self, x: Tensor) -> Tensor:
    """A mixture of experts (Jacobs et al. 1991) whose gate is a ratio of two sums."""
    powers = (self.q(x) @ self.features).exp()
    experts = torch.stack([self.v(x) * centre for centre in self.centres], 2)
    return (powers[..., None] * experts).sum(2) / powers.sum(-1, keepdim=True)


# Over edges.


@negative
def degree_norm(self, x: Tensor) -> Tensor:
    """Graph convolution (Kipf & Welling 2017): edges are weighed by degrees alone."""
    source, target = EDGES
    x = self.v(x[0])
    degree = x.new_zeros(N).scatter_add_(0, target, x.new_ones(len(target)))
    factor = degree.clamp(min=1).rsqrt()
    messages = (factor[source] * factor[target])[:, None] * x[source]
    return torch.zeros_like(x).index_add(0, target, messages)


@negative
def neighbour_mean(self, x: Tensor) -> Tensor:
    """GraphSAGE (Hamilton et al. 2017)."""
    source, target = EDGES
    total = x.new_zeros(N, D).index_add(0, target, self.v(x[0])[source])
    count = x.new_zeros(N).index_add(0, target, x.new_ones(len(target)))
    return total / count.clamp(min=1)[:, None]


@negative
def radial_filters(self, x: Tensor) -> Tensor:
    """SchNet (Schütt et al. 2017): Gaussians of distances make filters."""
    source, target = EDGES
    far = (x[0, source, :3] - x[0, target, :3]).norm(dim=-1)
    filters = self.filters((-(far[:, None] - self.centres).square()).exp())
    return torch.zeros_like(x[0]).index_add(0, target, filters * self.v(x[0])[source])


@negative
def edges_gated(self, x: Tensor) -> Tensor:
    """GatedGCN (Bresson & Laurent 2017): sigmoids, normalised over the edges of a node."""
    source, target = EDGES
    gates = torch.sigmoid(self.q(x[0])[target] + self.k(x[0])[source])
    total = x.new_zeros(N, D).index_add(0, target, gates) + 1e-6
    return x.new_zeros(N, D).index_add(0, target, gates * self.v(x[0])[source]) / total


@negative
def policy_over_nodes(self, x: Tensor) -> Tensor:
    """A choice among the nodes of every graph: chances, and their entropy."""
    graph = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    powers = self.score(x[0])[:, 0].exp()
    chances = powers / x.new_zeros(2).index_add(0, graph, powers)[graph]
    return x.new_zeros(2).index_add(0, graph, -chances * chances.log())


@negative
def soft_maximum(self, x: Tensor) -> Tensor:
    """Pooling by a soft maximum (SOFTS, Han et al. 2024): weighted by its own softmax."""
    features = F.gelu(self.v(x))
    return (features * features.softmax(1)).sum(1)


@negative
def soft_maximum_of_projections(self, x: Tensor) -> Tensor:
    features = self.v(x)
    return (features.softmax(1) * features).sum(1)
