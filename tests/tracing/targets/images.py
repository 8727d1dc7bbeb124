"""Attention over the places, the channels or the rows of an image."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Case, Target, dense

B, C, SIDE = 2, 8, 4


class NonLocal(nn.Module):
    """Wang et al. 2018, embedded Gaussian: every place looks at every place."""

    def __init__(self):
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(C, C // 2, 1) for _ in range(3))
        self.out = nn.Conv2d(C // 2, C, 1)

    def forward(self, x):
        g = self.g(x).view(B, C // 2, -1).permute(0, 2, 1)
        theta = self.theta(x).view(B, C // 2, -1).permute(0, 2, 1)
        weights = F.softmax(torch.matmul(theta, self.phi(x).view(B, C // 2, -1)), dim=-1)
        y = torch.matmul(weights, g).permute(0, 2, 1).contiguous().view(B, C // 2, SIDE, SIDE)
        return self.out(y) + x


class Sagan(nn.Module):
    """Zhang et al. 2019: values first, weights transposed, keys pooled to half the side."""

    def __init__(self):
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(C, C // 2, 1) for _ in range(3))
        self.out = nn.Conv2d(C // 2, C, 1)

    def forward(self, x):
        query = self.theta(x).flatten(2)  # (batch, width, query)
        key = F.max_pool2d(self.phi(x), 2).flatten(2)
        value = F.max_pool2d(self.g(x), 2).flatten(2)
        beta = F.softmax(torch.bmm(query.transpose(1, 2), key), -1)
        return self.out(torch.bmm(value, beta.transpose(1, 2)).view(B, C // 2, SIDE, SIDE)) + x


def _places(kind: type[nn.Module], pool: int) -> Case:
    model, x = kind(), torch.randn(B, C, SIDE, SIDE)

    def tokens(y: Tensor) -> Tensor:  # (batch, 1, place, width)
        return y.detach().flatten(2).transpose(1, 2)[:, None]

    key, value = (F.max_pool2d(m(x), pool) for m in (model.phi, model.g))
    weights = dense.weights(tokens(model.theta(x)), tokens(key), scale=1.0)
    mixed = dense.mix(weights, tokens(value)).float()[:, 0].transpose(1, 2)
    expected = model.out(mixed.reshape(B, C // 2, SIDE, SIDE)) + x
    return Case(model, (x,), {}, [weights], expected)


class Channels(nn.Module):
    """DANet's channel attention (Fu et al. 2019): channels look at channels, farthest first."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x):
        flat = x.view(B, C, -1)
        energy = torch.bmm(flat, flat.permute(0, 2, 1))
        energy = energy.max(-1, keepdim=True)[0].expand_as(energy) - energy
        weights = torch.softmax(energy, dim=-1)
        return self.gamma * torch.bmm(weights, flat).view_as(x) + x


def _channels() -> Case:
    model, x = Channels(), torch.randn(B, C, SIDE, SIDE) * 0.5
    flat = x.flatten(2)[:, None]
    weights = dense.weights(flat, flat, scale=-1.0)
    expected = dense.mix(weights, flat).float().view_as(x) + x
    return Case(model, (x,), {}, [weights], expected)


class Axial(nn.Module):
    """Rows first, then columns: (batch * row, column, column), then the other way round."""

    def __init__(self):
        super().__init__()
        self.rows, self.columns = nn.Linear(C, 3 * C), nn.Linear(C, 3 * C)

    def along(self, project: nn.Linear, x: Tensor) -> Tensor:
        q, k, v = project(x).chunk(3, -1)  # (batch, line, place, width)
        return ((q @ k.mT) * C**-0.5).softmax(-1) @ v

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)  # (batch, row, column, width)
        x = x + self.along(self.rows, x)
        return x + self.along(self.columns, x.transpose(1, 2)).transpose(1, 2)


def _axial() -> Case:
    """Every line of an image is an example of its own: (batch × line, 1, place, place)."""
    model, x = Axial(), torch.randn(B, C, SIDE, SIDE + 1) * 2
    truth, y = [], x.permute(0, 2, 3, 1)
    with torch.no_grad():
        for project, turned in ((model.rows, False), (model.columns, True)):
            z = y.transpose(1, 2) if turned else y
            q, k, v = project(z).chunk(3, -1)
            weights = dense.weights(q, k)
            truth.append(weights.flatten(0, 1)[:, None])
            mixed = dense.mix(weights, v).float()
            y = y + (mixed.transpose(1, 2) if turned else mixed)
    return Case(model, (x,), {}, truth, y)


TARGETS = [
    Target("image_non_local", "images", partial(_places, NonLocal, 1)),
    Target("image_sagan", "images", partial(_places, Sagan, 2)),
    Target("image_channels", "images", _channels),
    Target("image_axial", "images", _axial),
]
