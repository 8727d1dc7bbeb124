"""Self or cross, where query and key part early, and come from one tensor all the same."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, D = 2, 3, 24


class Stage(nn.Module):
    """Of CvT (Wu et al. 2021): convolutions make query and key; the key's has a stride of 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = H

        def projection(out: int, stride: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
                nn.BatchNorm2d(width),
                nn.Conv2d(width, out, 1, bias=False),
            )

        self.q, self.kv, self.out = projection(D, 1), projection(2 * D, 2), nn.Conv2d(D, width, 1)
        self.inner = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1)
        )

    def forward(self, x):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, 1)
        q, k, v = (tensor.reshape(B, H, 8, -1).mT.reshape(B * H, -1, 8) for tensor in (q, k, v))
        weights = (torch.einsum("bid,bjd->bij", q, k) * 8**-0.5).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v).mT.reshape(B, D, *x.shape[2:])
        x = self.out(mixed) + x
        return self.inner(x) + x

    def truth(self, x):
        projected = (self.q(x), *self.kv(x).chunk(2, 1))
        q, k, v = (dense.heads(tensor.flatten(2).mT, H) for tensor in projected)
        weights = dense.weights(q, k)
        mixed = dense.merged(dense.mix(weights, v)).mT.reshape(B, D, *x.shape[2:])
        x = self.out(mixed) + x
        return weights, self.inner(x) + x


class Norm(nn.Module):
    """Over channels, by hand."""

    def forward(self, x):
        variance = torch.var(x, dim=1, unbiased=False, keepdim=True)
        return (x - x.mean(1, keepdim=True)) / (variance + 1e-5).sqrt()


class Stages(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 7, 4, 3), Norm(), Stage(16)),
            *(nn.Conv2d(16, 24, 3, 2, 1), Norm(), Stage(24)),
            *(nn.Conv2d(24, 32, 3, 2, 1), Norm(), Stage(32)),
        )

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 3, 48, 40),)

    def forward(self, x):
        return self.layers(x)

    def truth(self, x):
        sites = []
        for layer in self.layers:
            if isinstance(layer, Stage):
                weights, x = layer.truth(x)
                sites.append(weights)
            else:
                x = layer(x)
        return sites, x


class PooledQueries(formulas.Model):
    """Hiera (Ryali et al. 2023): the largest of two queries asks."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = H, nn.Linear(D, 3 * D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 10, D),)

    def forward(self, x):
        q, k, v = self.qkv(x).view(B, 10, 3, H, 8).permute(2, 0, 3, 1, 4).unbind(0)
        q = q.view(B, H, 2, -1, 8).amax(2)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(B, 5, D)

    def truth(self, x):
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1))
        weights = dense.weights(torch.maximum(q[:, :, :5], q[:, :, 5:]), k)
        return [weights], dense.merged(dense.mix(weights, v))


class SubsampledQueries(formulas.Model):
    """LeViT (Graham et al. 2021): every second place asks; a pooling of 1 × 1 picks them."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q, self.kv = H, nn.Conv2d(D, D, 1), nn.Conv2d(D, 2 * D, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 4, 6),)

    def forward(self, x):
        q = self.q(F.avg_pool2d(x, 1, stride=2)).view(B, H, 8, -1)
        k, v = self.kv(x).view(B, H, 16, -1).split(8, 2)
        weights = (q.mT @ k * 8**-0.5).softmax(-1)
        return (v @ weights.mT).reshape(B, D, 2, 3)

    def truth(self, x):
        q = dense.heads(self.q(x[:, :, ::2, ::2]).flatten(2).mT, H)
        kv = dense.heads(self.kv(x).flatten(2).mT, H)
        weights = dense.weights(q, kv[..., :8])
        return [weights], dense.merged(dense.mix(weights, kv[..., 8:])).mT.reshape(B, D, 2, 3)


class StridedKeys(formulas.Model):
    """Segformer, PVT: a convolution with a stride, then a norm, reduces the keys."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q, self.kv = H, nn.Linear(D, D), nn.Linear(D, 2 * D)
        self.reduce, self.norm = nn.Conv2d(D, D, 2, stride=2), nn.LayerNorm(D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 24, D),)  # 4 × 6 positions

    def forward(self, x):
        q = self.q(x).view(B, -1, H, 8).transpose(1, 2)
        fewer = self.norm(self.reduce(x.mT.reshape(B, D, 4, 6)).flatten(2).mT)
        k, v = self.kv(fewer).view(B, -1, 2, H, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, 24, D)

    def truth(self, x):
        fewer = self.norm(self.reduce(x.mT.reshape(B, D, 4, 6)).flatten(2).mT)
        projected = (self.q(x), *self.kv(fewer).chunk(2, -1))
        q, k, v = (dense.heads(tensor, H) for tensor in projected)
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class Positions(formulas.Model):
    """DETR (Carion et al. 2020): positions are added to query and key, not to the values."""

    attends = ("self", "cross")

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))
        self.asks, self.positions = nn.Parameter(torch.randn(6, D)), nn.Parameter(torch.randn(6, D))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, 6, D), torch.randn(B, 6, D)  # lengths tell nothing

    def forward(self, x, encoded):
        own = x + self.asks
        x = x + self.own(own, own, x)[0]
        return x + self.other(x + self.asks, encoded + self.positions, encoded)[0]

    def truth(self, x, encoded):
        own = x + self.asks
        first, mixed = self._attend(self.own, own, own, x)
        x = x + mixed
        second, mixed = self._attend(self.other, x + self.asks, encoded + self.positions, encoded)
        return [first, second], x + mixed

    @staticmethod
    def _attend(layer: nn.MultiheadAttention, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        matrices, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
        q, k, v = (dense.heads(F.linear(*tensor), H) for tensor in zip(inputs, matrices, biases))
        weights = dense.weights(q, k)
        return weights, layer.out_proj(dense.merged(dense.mix(weights, v)))


class Decoder(formulas.Model):
    """Three layers: from the second on, the queries carry what was encoded as well."""

    attends = ("self", "cross") * 3

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = (
            nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(3))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(6))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, 6, D), torch.randn(B, 7, D)

    def forward(self, x, encoded):
        for layer, (own, other) in enumerate(zip(self.own, self.other)):
            normed = self.norms[2 * layer](x)
            x = x + own(normed, normed, normed, need_weights=False)[0]
            x = x + other(self.norms[2 * layer + 1](x), encoded, encoded, need_weights=False)[0]
        return x

    def truth(self, x, encoded):
        sites = []
        for layer, (own, other) in enumerate(zip(self.own, self.other)):
            normed = self.norms[2 * layer](x)
            weights, mixed = Positions._attend(own, normed, normed, normed)
            x = x + mixed
            normed = self.norms[2 * layer + 1](x)
            crossing, mixed = Positions._attend(other, normed, encoded, encoded)
            x = x + mixed
            sites += [weights, crossing]
        return sites, x


class MeanQuery(formulas.Model):
    """Attention pooling of CLIP's ResNet: the mean of all positions asks, and is a key as well."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.attn = nn.Parameter(torch.randn(13, D)), nn.MultiheadAttention(D, H)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 3, 4),)

    def forward(self, x):
        x = x.flatten(2).permute(2, 0, 1)
        x = torch.cat([x.mean(0, keepdim=True), x]) + self.positions[:, None]
        return self.attn(x[:1], x, x, need_weights=False)[0].squeeze(0)

    def truth(self, x):
        x = x.flatten(2).mT
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positions
        weights, mixed = Positions._attend(self.attn, x[:, :1], x, x)
        return [weights], mixed[:, 0]


class StartedByTheEncoder(formulas.Model):
    """A recurrent decoder whose first state is the encoder's last: the two inputs have met."""

    attends = "unknown"

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(9, D), nn.Embedding(9, D)
        self.encoder, self.decoder = (nn.GRU(D, D, batch_first=True) for _ in range(2))
        self.project = nn.Linear(D, D)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randint(9, (B, 7)), torch.randint(9, (B, 5))

    def _states(self, source, target):
        memory, last = self.encoder(self.source(source))
        return memory, self.project(self.decoder(self.target(target), last)[0])

    def forward(self, source, target):
        memory, queries = self._states(source, target)
        return (queries @ memory.mT).softmax(-1) @ memory

    def truth(self, source, target):
        memory, queries = self._states(source, target)
        weights = dense.weights(queries[:, None], memory[:, None], scale=1.0)
        return [weights], dense.mix(weights, memory[:, None])[:, 0]


class StepByStep(StartedByTheEncoder):
    """The same, with one query at a time."""

    def forward(self, source, target):
        memory, state = self.encoder(self.source(source))
        mixed = []
        for word in self.target(target).split(1, 1):
            out, state = self.decoder(word, state)
            mixed.append((self.project(out) @ memory.mT).softmax(-1) @ memory)
        return torch.cat(mixed, 1)

    def truth(self, source, target):
        (weights,), output = super().truth(source, target)
        return list(weights.split(1, 2)), output


class BegunByTheEncoder(formulas.Model):
    """A decoder that first asks with the encoder's last state, and then with states of its own."""

    attends = "unknown"

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.query = nn.GRUCell(2 * D, D), nn.Linear(D, D, bias=False)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, 7, D), torch.randn(B, 3, D)

    def attend(self, state, memory):
        weights = torch.bmm(memory, self.query(state)[:, :, None]).squeeze(2).softmax(-1)
        return torch.bmm(weights[:, None], memory).squeeze(1)

    def forward(self, memory, words):
        state = memory[:, -1]
        for word in words.unbind(1):
            state = self.cell(torch.cat([word, self.attend(state, memory)], -1), state)
        return state

    def truth(self, memory, words):
        state, sites = memory[:, -1], []
        for word in words.unbind(1):
            weights = dense.weights(self.query(state)[:, None, None], memory[:, None], scale=1.0)
            sites.append(weights)
            context = dense.mix(weights, memory[:, None])[:, 0, 0].to(word.dtype)
            state = self.cell(torch.cat([word, context], -1), state)
        return sites, state


class BegunByTheEncoderFused(BegunByTheEncoder):
    def attend(self, state, memory):
        query = self.query(state)[:, None, None]
        keys = memory[:, None]
        return F.scaled_dot_product_attention(query, keys, keys, scale=1.0)[:, 0, 0]


KINDS = (
    *(BegunByTheEncoder, BegunByTheEncoderFused),
    *(Stages, StartedByTheEncoder, StepByStep, PooledQueries, SubsampledQueries, StridedKeys),
    *(Positions, Decoder, MeanQuery),
)
TARGETS = [formulas.target(kind, "labels") for kind in KINDS]
