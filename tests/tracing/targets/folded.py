"""Axes that are folded, or that look like heads and are none."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, D = 2, 24


class Bottleneck(formulas.Model):
    """BoTNet (Srinivas et al. 2021): heads are channels, which come before the positions."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv = 3, nn.Conv2d(D, 3 * D, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 4, 5),)

    def forward(self, x):
        q, k, v = (tensor.reshape(B * 3, 8, -1) for tensor in self.qkv(x).split(D, 1))
        weights = (q.mT @ k).softmax(-1)
        return (weights @ v.mT).mT.reshape(x.shape)

    def truth(self, x):
        q, k, v = (dense.heads(tensor.flatten(2).mT, 3) for tensor in self.qkv(x).split(D, 1))
        weights = dense.weights(q, k, scale=1.0)
        return [weights], dense.merged(dense.mix(weights, v)).mT.reshape(x.shape)


class MultiQuery(formulas.Model):
    """Shazeer 2019 by einsum, which makes (query × head) the rows of one product."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, 8), nn.Linear(D, 8)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 7, D),)

    def forward(self, x):
        q = self.q(x).view(B, 7, 3, 8)
        weights = torch.einsum("blhd,bpd->blhp", q, self.k(x)).softmax(-1)
        return torch.einsum("blhp,bpd->blhd", weights, self.v(x))

    def truth(self, x):
        q, k, v = dense.heads(self.q(x), 3), self.k(x)[:, None], self.v(x)[:, None]
        weights = dense.weights(q, k, scale=1.0)
        return [weights], dense.mix(weights, v).transpose(1, 2)


class SingleKey(formulas.Model):
    """The last stage of Twins-SVT: positions are pooled until one key is left."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.q, self.kv = 8, nn.Conv2d(D, 48, 1), nn.Conv2d(D, 96, 3, stride=3)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 3, 3),)

    def forward(self, x):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, 1)
        q, k, v = (tensor.reshape(B, 8, 6, -1).mT.reshape(B * 8, -1, 6) for tensor in (q, k, v))
        weights = (torch.einsum("bid,bjd->bij", q, k) * 6**-0.5).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v)
        return mixed.view(B, 8, 9, 6).mT.reshape(B, 48, 3, 3)

    def truth(self, x):
        projected = (self.q(x), *self.kv(x).chunk(2, 1))
        q, k, v = (dense.heads(tensor.flatten(2).mT, 8) for tensor in projected)
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v)).mT.reshape(B, 48, 3, 3)


class Levels(formulas.Model):
    """GLOM (Hinton 2021): every level by itself. The first values are an expanded parameter."""

    attends = ("unknown", "self")  # of parameters alone nothing tells

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bottom = nn.Parameter(torch.randn(3, 8)), nn.Linear(8, 8)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 9, 8),)

    def forward(self, x):
        levels = self.first.expand(B, 9, 3, 8)
        for _ in range(2):
            keys = F.normalize(levels, dim=-1)
            weights = (torch.einsum("bild,bjld->blij", levels, keys) * 8**-0.5).softmax(-1)
            mixed = torch.einsum("blij,bjld->bild", weights, levels)
            bottom = self.bottom(x)[:, :, None].expand(B, 9, 3, 8)
            levels = torch.stack((levels, mixed, bottom)).sum(0) / 3
        return levels

    def truth(self, x):
        levels, sites = self.first[:, None].expand(B, 3, 9, 8), []
        for _ in range(2):
            words = levels.flatten(0, 1)[:, None]  # (batch × level, 1, position, width)
            keys = words / words.norm(dim=-1, keepdim=True)
            sites.append(dense.weights(words, keys))
            mixed = dense.mix(sites[-1], words).view(B, 3, 9, 8)
            levels = (levels + mixed + self.bottom(x)[:, None]) / 3
        return sites, levels.transpose(1, 2)


class PooledChannels(formulas.Model):
    """Enformer's pools (Avsec et al. 2021): each channel weighs the positions of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.logits = nn.Conv1d(D, D, 3, padding=1), nn.Conv2d(D, D, 1, bias=False)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 14),)

    def forward(self, x):
        windows = self.conv(x).view(B, D, 7, 2)
        return (windows * self.logits(windows).softmax(-1)).sum(-1)

    def truth(self, x):
        windows = self.conv(x).view(B, D, 7, 2)
        weights = dense.softmax(self.logits(windows)).permute(0, 2, 1, 3)  # (batch, window, D, 2)
        output = (windows * weights.transpose(1, 2)).sum(-1)
        return [weights.reshape(B * 7, D, 1, 2)], output


class Separable(formulas.Model):
    """MobileViTv2 (Mehta & Rastegari 2022): one context for each of four pixels of a patch."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(D, 2 * D + 1, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 4, 7),)

    def forward(self, x):
        q, k, v = self.qkv(x).split([1, D, D], 1)
        return v.relu() * (k * q.softmax(-1)).sum(-1, keepdim=True)

    def truth(self, x):
        q, k, v = self.qkv(x).split([1, D, D], 1)
        weights = dense.softmax(q[:, 0]).view(B * 4, 1, 1, 7)
        pixels = k.permute(0, 2, 3, 1).reshape(B * 4, 1, 7, D)
        context = dense.mix(weights, pixels).view(B, 4, D).mT[..., None]
        return [weights], v.clamp(min=0) * context


class Depth(formulas.Model):
    """Attention residuals (vit-pytorch): learned queries of every token over the layers so far."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.inner = nn.Parameter(torch.randn(3, 1, D)), nn.Linear(D, D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 9, D),)

    def forward(self, x):
        values = torch.stack([x, self.inner(x)])  # (layer, batch, token, width)
        keys = F.rms_norm(values, (D,))
        weights = torch.einsum("lbnd,shd->shlbn", keys, self.queries).softmax(2)
        return torch.einsum("shlbn,lbnd->shbnd", weights, values)

    def truth(self, x):
        values = torch.stack([x, self.inner(x)], 2).view(B * 9, 1, 2, D)
        eps = torch.finfo(torch.float32).eps
        keys = values / (values.square().mean(-1, keepdim=True) + eps).sqrt()
        weights = dense.weights(self.queries[None, :, 0].expand(B * 9, 1, 3, D), keys, scale=1.0)
        mixed = dense.mix(weights, values).view(B, 9, 3, 1, D)
        return [weights], mixed.permute(2, 3, 0, 1, 4)


class Support(formulas.Model):
    """CrossTransformers (Doersch et al. 2020): keys have three axes when they meet the values."""

    attends = "cross"

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Conv2d(D, 12, 1, bias=False), nn.Conv2d(D, 10, 1, bias=False)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, D, 4, 5), torch.randn(B, 5, 3, D, 4, 5)  # 5 classes of 3 images

    def forward(self, query, support):
        q = self.qk(query)
        k, v = (
            projection(support.flatten(0, 2)).view(B, 5, 3, -1, 4, 5)
            for projection in (self.qk, self.v)
        )
        scores = torch.einsum("bchw,bkncij->bkhwnij", q, k).flatten(4) * 12**-0.5
        weights = scores.softmax(-1).view(B, 5, 4, 5, 3, 4, 5)
        return torch.einsum("bkhwnij,bkncij->bkchw", weights, v)

    def truth(self, query, support):
        q = self.qk(query).flatten(2).mT.repeat_interleave(5, 0)[:, None]  # (batch × class, 1, …)
        images = support.flatten(0, 2)
        k, v = (
            projection(images).view(B * 5, 3, -1, 20).transpose(2, 3).flatten(1, 2)[:, None]
            for projection in (self.qk, self.v)
        )
        weights = dense.weights(q, k)
        return [weights], dense.mix(weights, v)[:, 0].mT.reshape(B, 5, 10, 4, 5)


class Agents(formulas.Model):
    """Han et al. 2024: learned agents gather from the keys, queries from the agents."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = 4, nn.Linear(D, 3 * D, bias=False)
        self.agents = nn.Parameter(torch.randn(4, 5, 6))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 9, D),)

    def forward(self, x):
        q, k, v = (tensor.view(B, 9, 4, 6).transpose(1, 2) for tensor in self.qkv(x).chunk(3, -1))
        agents = self.agents.expand(B, -1, -1, -1) * 6**-0.5
        spreading = torch.einsum("bhid,bhjd->bhij", q, agents).softmax(-1)
        gathering = torch.einsum("bhid,bhjd->bhij", agents, k).softmax(-1)
        gathered = torch.einsum("bhij,bhjd->bhid", gathering, v)
        mixed = torch.einsum("bhij,bhjd->bhid", spreading, gathered)
        return mixed.transpose(1, 2).reshape(B, 9, D)

    def truth(self, x):
        q, k, v = (dense.heads(tensor, 4) for tensor in self.qkv(x).chunk(3, -1))
        agents = self.agents.expand(B, -1, -1, -1)
        gathering, spreading = dense.weights(agents, k), dense.weights(q, agents)
        mixed = dense.mix(spreading, dense.mix(gathering, v))
        return [gathering, spreading], dense.merged(mixed)


class Compressed(formulas.Model):
    """Linformer (Wang et al. 2020), as in rtdl: 7 keys become 4; batch × head is one axis."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = 3
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.keys, self.values = (nn.Linear(7, 4, bias=False) for _ in range(2))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(5, 7, D),)

    def forward(self, x):
        q, k, v = self.q(x), self.keys(self.k(x).mT).mT, self.values(self.v(x).mT).mT
        q, k, v = (
            tensor.reshape(5, -1, 3, 8).transpose(1, 2).reshape(15, -1, 8) for tensor in (q, k, v)
        )
        mixed = (q @ k.mT * 8**-0.5).softmax(-1) @ v
        return mixed.reshape(5, 3, 7, 8).transpose(1, 2).flatten(2)

    def truth(self, x):
        k, v = self.keys.weight @ self.k(x), self.values.weight @ self.v(x)
        q, k, v = (dense.heads(tensor, 3) for tensor in (self.q(x), k, v))
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class LearnedState(formulas.Model):
    """Block-recurrent transformers (Hutchins et al. 2022): a learned state looks at itself."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.state = 4, nn.Parameter(torch.randn(6, D))
        self.q, self.kv = nn.Linear(D, D, bias=False), nn.Linear(D, 12, bias=False)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 6, D),)

    def forward(self, x):
        state = self.state.expand(B, 6, D)
        q, (k, v) = self.q(state).view(B, 6, 4, 6).transpose(1, 2), self.kv(state).chunk(2, -1)
        weights = (torch.einsum("bhid,bjd->bhij", q, k) * 6**-0.5).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, v).transpose(1, 2).reshape(B, 6, D) + x

    def truth(self, x):
        state = self.state.expand(B, 6, D)
        k, v = (tensor[:, None] for tensor in self.kv(state).chunk(2, -1))
        weights = dense.weights(dense.heads(self.q(state), 4), k)
        return [weights], dense.merged(dense.mix(weights, v)) + x


class AllPairs(formulas.Model):
    """MA-Net (Fan et al. 2020): one softmax over all pairs, which is a matrix for the product."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 7, D),)

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).mT).flatten(1)
        return scores.softmax(1).view(B, 7, 7) @ self.v(x)

    def truth(self, x):
        scores = (self.q(x) @ self.k(x).mT).flatten(1)
        weights = dense.softmax(scores).view(B, 1, 7, 7)
        return [weights], dense.mix(weights, self.v(x)[:, None])[:, 0]


class RowsOfAll(AllPairs):
    """The rows of all examples under each other, and no heads."""

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).mT).view(-1, 7)
        return scores.softmax(-1).view(B, 7, 7) @ self.v(x)

    def truth(self, x):
        weights = dense.weights(self.q(x)[:, None], self.k(x)[:, None], scale=1.0)
        return [weights], dense.mix(weights, self.v(x)[:, None])[:, 0]


class Fields(formulas.Model):
    """RecBole: the fields of every item are pooled. Items are examples, and no heads."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(D, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(5, 7, 4, D),)

    def forward(self, x):
        weights = self.score(x).squeeze(-1).softmax(-1)
        return (x * weights.unsqueeze(-1)).sum(-2)

    def truth(self, x):
        weights = dense.softmax(self.score(x)[..., 0]).view(35, 1, 1, 4)
        return [weights], dense.mix(weights, x.view(35, 1, 4, D)).view(5, 7, D)


class ChannelQueries(formulas.Model):
    """CoaT (Xu et al. 2021): the softmax runs over the keys, and channels of the keys are rows."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv = 3, nn.Linear(D, 3 * D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 7, D),)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(B, 7, 3, 3, 8).permute(2, 0, 3, 1, 4)
        return q @ (k.softmax(2).mT @ v)

    def truth(self, x):
        q, k, v = (dense.heads(tensor, 3) for tensor in self.qkv(x).split(D, -1))
        weights = dense.softmax(k.mT)
        return [weights], dense.mix(q, dense.mix(weights, v))


class LearnedMultiQuery(formulas.Model):
    """CoCa's pooling (Yu et al. 2022): learned queries with heads that share the keys."""

    attends = "cross"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.learned = 4, nn.Parameter(torch.randn(8, D))
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, 6), nn.Linear(D, 6)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 5, D),)

    def forward(self, x):
        q = self.q(self.learned.expand(B, -1, -1)).view(B, 8, 4, 6).transpose(1, 2)
        weights = torch.einsum("bhid,bjd->bhij", q, self.k(x)).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, self.v(x))

    def truth(self, x):
        q = dense.heads(self.q(self.learned.expand(B, -1, -1)), 4)
        weights = dense.weights(q, self.k(x)[:, None], scale=1.0)
        return [weights], dense.mix(weights, self.v(x)[:, None])


class HeadsOfTheProjection(formulas.Model):
    """Multi-query attention whose projection has an axis for heads (MobileNetV4)."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q = 3, nn.Parameter(torch.randn(3, 8, D) / D)
        self.k, self.v = (nn.Parameter(torch.randn(D, 8) / D) for _ in range(2))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 4, 5),)

    def forward(self, x):
        x = x.flatten(2).mT
        q = torch.einsum("bnd,hkd->bnhk", x, self.q)
        weights = torch.einsum("bnhk,bmk->bnhm", q, x @ self.k).softmax(-1)
        return torch.einsum("bnhm,bmv->bnhv", weights, x @ self.v)

    def truth(self, x):
        x = x.flatten(2).mT
        q = torch.stack([x @ each.mT for each in self.q], 1)
        weights = dense.weights(q, (x @ self.k)[:, None], scale=1.0)
        return [weights], dense.mix(weights, (x @ self.v)[:, None]).transpose(1, 2)


class RepeatedState(formulas.Model):
    """Block-recurrent states (Hutchins et al. 2022): queries repeated for a batch, keys not."""

    attends = ("self", "cross")

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.state = 4, nn.Parameter(torch.randn(6, D))
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, 6), nn.Linear(D, 6)
        self.mix = nn.Linear(D, D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 5, D),)

    def forward(self, x):
        q = self.q(self.state).view(6, 4, 6).transpose(0, 1).expand(B, -1, -1, -1).contiguous()
        weights = torch.einsum("bhid,jd->bhij", q * 1.5, self.k(self.state)).softmax(-1)
        state = torch.einsum("bhij,jd->bhid", weights, self.v(self.state))
        state = self.mix(state.transpose(1, 2).flatten(2))
        q = self.q(state).view(B, 6, 4, 6).transpose(1, 2)
        weights = torch.einsum("bhid,bjd->bhij", q, self.k(x)).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, self.v(x))

    def truth(self, x):
        q = 1.5 * dense.heads(self.q(self.state).expand(B, -1, -1), 4)
        states = self.state.expand(B, 1, -1, -1)
        first = dense.weights(q, self.k(states), scale=1.0)
        state = self.mix(dense.merged(dense.mix(first, self.v(states))))
        second = dense.weights(dense.heads(self.q(state), 4), self.k(x)[:, None], scale=1.0)
        return [first, second], dense.mix(second, self.v(x)[:, None])


KINDS = (
    *(ChannelQueries, HeadsOfTheProjection, LearnedMultiQuery, RepeatedState),
    *(Bottleneck, MultiQuery, SingleKey, Compressed, LearnedState, AllPairs, RowsOfAll),
    *(Levels, PooledChannels, Separable, Fields, Depth, Support, Agents),
)
TARGETS = [formulas.target(kind, "folded") for kind in KINDS]
