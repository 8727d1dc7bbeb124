"""Self or cross between slices of one tensor: cross where they have no position in common."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D = 2, 3, 10, 12


class Sliced(formulas.Model):
    attends: str | tuple[str, ...] | None = "cross"

    def __init__(self) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v) = H, (nn.Linear(D, D) for _ in range(3))
        self.embedding = nn.Embedding(9, D)

    @staticmethod
    def inputs() -> tuple[Tensor, ...]:
        return (torch.randn(B, N, D),)

    def attend(self, x: Tensor, memory: Tensor) -> Tensor:
        """As a model spells it."""
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q, k, v = (tensor.view(len(tensor), -1, H, 4).transpose(1, 2) for tensor in (q, k, v))
        return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def true(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (dense.heads(t, H) for t in (self.q(x), self.k(memory), self.v(memory)))
        weights = dense.weights(q, k)
        return weights, dense.merged(dense.mix(weights, v))


class Halves(Sliced):
    """The first positions ask the others."""

    def forward(self, x):
        return self.attend(*x.split([4, 6], 1))

    def truth(self, x):
        weights, output = self.true(x[:, :4], x[:, 4:])
        return [weights], output


class ProjectedHalves(Halves):
    """Cut after the projection, for a fused operator."""

    def forward(self, x):
        q, k, v = (map_(x).view(B, N, H, 4).transpose(1, 2) for map_ in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q[:, :, :4], k[:, :, 4:], v[:, :, 4:])
        return mixed.transpose(1, 2).flatten(2)


class EveryOther(Sliced):
    """Even positions ask odd ones."""

    def forward(self, x):
        return self.attend(x[:, ::2], x[:, 1::2])

    def truth(self, x):
        weights, output = self.true(x[:, ::2], x[:, 1::2])
        return [weights], output


class HalfAsksAll(Sliced):
    attends = "self"

    def forward(self, x):
        return self.attend(x[:, 5:], x)

    def truth(self, x):
        weights, output = self.true(x[:, 5:], x)
        return [weights], output


class FirstAsksTheRest(Sliced):
    """One query is no axis, and nobody knows where it lies."""

    attends = "unknown"

    def forward(self, x):
        return self.attend(x[:, :1], x[:, 1:])

    def truth(self, x):
        weights, output = self.true(x[:, :1], x[:, 1:])
        return [weights], output


class OneEmbedding(Sliced):
    """An encoder and a decoder, embedded in one call; two layers, so that both inputs have met."""

    attends = ("self", "self", "cross") * 2

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randint(9, (B, N)),)

    def forward(self, words):
        source, target = self.embedding(words).chunk(2, 1)
        for _ in range(2):
            source = source + self.attend(source, source)
            target = target + self.attend(target, target)
            target = target + self.attend(target, source)
        return target

    def truth(self, words):
        source, target = self.embedding(words).chunk(2, 1)
        sites = []
        for _ in range(2):
            first, output = self.true(source, source)
            source = source + output
            second, output = self.true(target, target)
            target = target + output
            third, output = self.true(target, source)
            target = target + output
            sites += [first, second, third]
        return sites, target


class StartedBySlice(Sliced):
    """A residual decoder that starts from a slice of the sequence, and asks the rest."""

    def forward(self, x):
        states = x[:, :3]
        for _ in range(3):
            states = states + self.attend(states, x[:, 3:])
        return states

    def truth(self, x):
        states, sites = x[:, :3], []
        for _ in range(3):
            weights, output = self.true(states, x[:, 3:])
            states = states + output
            sites.append(weights)
        return sites, states


class Pairs(Sliced):
    """Two images side by side in the batch: one asks the other."""

    def forward(self, x):
        left, right = x.chunk(2)
        return self.attend(left, right)

    def truth(self, x):
        weights, output = self.true(x[:1], x[1:])
        return [weights], output


class PartsOfChannels(formulas.Model):
    """Of one image: query and key are parts of its channels, each with a map of its own."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(D, 3 * D, 1)
        self.q, self.k, self.v = (nn.Conv2d(D, D, 3, padding=1, groups=D) for _ in range(3))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(1, D, 3, 3),)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, 1)
        q, k, v = (tensor.reshape(1, H, 4, -1) for tensor in (self.q(q), self.k(k), self.v(v)))
        return ((q.mT @ k / 2).softmax(-1) @ v.mT).mT.reshape(x.shape)

    def truth(self, x):
        maps = zip((self.q, self.k, self.v), self.qkv(x).split(D, 1))
        q, k, v = (dense.heads(map_(part).flatten(2).mT, H) for map_, part in maps)
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v)).mT.reshape(x.shape)


class SwappedPairs(Sliced):
    """GMFlow (Xu et al. 2022): the batch asks itself, then itself with its halves swapped."""

    attends = ("self", "cross")

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(4, 5, D),)

    def forward(self, x):
        left, right = x.chunk(2)
        both, swapped = torch.cat([left, right]), torch.cat([right, left])
        both = both + self.attend(both, both)
        return self.attend(both, swapped)

    def truth(self, x):
        first, output = self.true(x, x)
        second, output = self.true(x + output, x.roll(2, 0))
        return [first, second], output


KINDS = (
    *(Halves, ProjectedHalves, EveryOther, HalfAsksAll, FirstAsksTheRest),
    *(OneEmbedding, StartedBySlice, Pairs, PartsOfChannels, SwappedPairs),
)
TARGETS = [formulas.target(kind, "slices") for kind in KINDS]
