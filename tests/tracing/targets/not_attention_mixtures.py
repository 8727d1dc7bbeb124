"""More that is no attention: mixtures, clusters and expectations, which also weigh and sum."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Target, functions

B, N, D, K, WORDS = 2, 6, 16, 4, 9


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chances, self.worth = nn.Linear(D, K), nn.Linear(D, K)
        self.means, self.words = nn.Linear(D, K * D), nn.Linear(D, K * WORDS)
        self.bins = nn.Conv1d(K, 1, 1, bias=False)
        self.kernels, self.centres = (nn.Parameter(torch.randn(*s)) for s in ((K, D, D), (K, D)))
        self.moves, self.embedding = nn.Parameter(torch.randn(K, K)), nn.Embedding(K, D)
        self.register_buffer("atoms", torch.linspace(-1, 1, K))


TARGETS: list[Target] = []


negative = functions.negative(Model, TARGETS, B, N, D)


@negative
def expected_return(self, x: Tensor) -> Tensor:
    """C51: the atoms are a buffer, no parameter."""
    chances = self.chances(x).softmax(-1)
    return (chances * self.atoms).sum(-1) + chances @ self.atoms


@negative
def expected_bin(self, x: Tensor) -> Tensor:
    """Distribution focal loss: a convolution takes the mean over bins."""
    return self.bins(self.chances(x).softmax(-1).transpose(1, 2))


@negative
def expected_value(self, x: Tensor) -> Tensor:
    """An actor's chances times a critic's worths."""
    chances, worth = self.chances(x).softmax(-1), self.worth(x)
    return (chances * worth).sum(-1) + (chances[:, :, None] @ worth[..., None]).flatten(1)


@negative
def expected_embedding(self, x: Tensor) -> Tensor:
    """Every row of an embedding, looked up: still the same for every input."""
    return self.chances(x).softmax(-1) @ self.embedding(torch.arange(K))


@negative
def mixture_density(self, x: Tensor) -> Tensor:
    means = self.means(x).view(B, N, K, D)
    return (self.chances(x).softmax(-1)[..., None] * means).sum(-2)


@negative
def mixture_of_softmaxes(self, x: Tensor) -> Tensor:
    words = self.words(x).view(B, N, K, WORDS).softmax(-1)
    prior = self.chances(x).softmax(-1)
    return (prior[..., None] * words).sum(2) + (prior[:, :, None] @ words)[:, :, 0]


@negative
def mixed_kernels(self, x: Tensor) -> Tensor:
    """CondConv: a softmax mixes kernels, which are parameters, for each example."""
    return x @ torch.einsum("bk,kde->bde", self.chances(x.mean(1)).softmax(-1), self.kernels)


@negative
def experts_in_one_product(self, x: Tensor) -> Tensor:
    results = torch.einsum("bnd,kde->bnke", x, self.kernels)
    return torch.einsum("bnk,bnke->bne", self.chances(x).softmax(-1), results)


@negative
def experts_dispatched(self, x: Tensor) -> Tensor:
    chances = self.chances(x).softmax(-1)
    chosen = F.one_hot(chances.argmax(-1), K).float()
    inputs = torch.einsum("bnk,bnd->kbnd", chosen, x)
    results = torch.einsum("kbnd,kde->kbne", inputs, self.kernels)
    return torch.einsum("bnk,kbne->bne", chances * chosen, results)


@negative
def clusters(self, x: Tensor) -> Tensor:
    """NetVLAD: the softmax runs over clusters, the sum over positions."""
    shares = self.chances(x).softmax(-1)
    return torch.einsum("bnk,bnd->bkd", shares, x) - shares.sum(1)[..., None] * self.centres


@negative
def pooled_graph(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """DiffPool: nodes go to clusters, and edges with them."""
    shares = self.chances(x).softmax(-1)
    return shares.mT @ x, shares.mT @ (x @ x.mT) @ shares


@negative
def soft_means(self, x: Tensor) -> Tensor:
    """A step of soft k-means."""
    shares = (-torch.cdist(x, self.centres.expand(B, -1, -1))).softmax(-1)
    return (shares.mT @ x) / shares.sum(1)[..., None]


@negative
def markov_chain(self, x: Tensor) -> Tensor:
    """The forward algorithm: chances times chances of moving."""
    state, moves = self.chances(x[:, 0]).softmax(-1), self.moves.softmax(-1)
    for step in range(1, N):
        state = (state @ moves) * self.chances(x[:, step]).softmax(-1)
        state = state / state.sum(-1, keepdim=True)
    return state


@negative
def similar_chances(self, x: Tensor) -> Tensor:
    """Positions mixed by how alike their classes are: no softmax runs over positions."""
    chances = self.chances(x).softmax(-1)
    return (chances @ chances.mT) @ x
