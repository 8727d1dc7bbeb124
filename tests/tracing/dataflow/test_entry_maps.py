"""Keys that were moved before every query chose its own: which of them a weight belongs to."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import regard

B, N, D, NEAR = 2, 6, 8, 3


class Neighbours(nn.Module):
    """Every query attends to the next positions of what `move` gives."""

    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.move = move
        self.query, self.key, self.value = (nn.Linear(D, D) for _ in range(3))
        self.register_buffer("near", (torch.arange(N)[:, None] + torch.arange(NEAR)) % N)

    def forward(self, x: Tensor) -> Tensor:
        x = self.move(x)
        key, value = self.key(x)[:, self.near], self.value(x)[:, self.near]
        weights = (self.query(x)[:, :, None] * key).sum(-1).softmax(-1)
        return (weights[..., None] * value).sum(2)


def _check(move: Callable[[Tensor], Tensor]) -> None:
    model = Neighbours(move).eval()
    with regard.capture(model, path="full") as trace, torch.no_grad():
        model(torch.randn(B, N, D))
    assert not trace.notes
    positions = move(torch.arange(N)[None, :, None]).flatten()
    edges = trace[0].edges
    assert torch.equal(edges.key[0, 0], positions[model.near].flatten())
    assert torch.equal(edges.query[0, 0], torch.arange(N).repeat_interleave(NEAR))


def test_more_rolls_than_python_has_frames():
    def rolled(x: Tensor) -> Tensor:
        for _ in range(1501):
            x = x.roll(1, 1)
        return x

    _check(rolled)


def test_movements_with_two_sources_are_repeated_once_each():
    def rotated(x: Tensor) -> Tensor:
        for _ in range(61):  # 2 ** 61 ways back to the input
            x = torch.cat([x[:, 1:], x[:, :1]], 1)
        return x

    _check(rotated)
