"""The truth about gradients: stacks whose weights autograd can be asked about."""

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade
from torch import nn
from torch.nn import functional as F


class Eager(nn.Module):
    """The truth: every attention of a stack with weights that autograd can be asked about."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack

    def forward(self, x):
        self.weights = []
        for layer in self.stack.layers:
            weights = layer.weigh(x)
            weights.retain_grad()
            self.weights.append(weights)
            value = layer.parts(x)[2].repeat_interleave(2 // layer.groups, 1)
            dropped = F.dropout(weights, layer.dropout, layer.training)
            x = x + layer.out((dropped @ value).transpose(1, 2).flatten(2))
        return x

    def gradients(self, x, loss):
        torch.manual_seed(7)
        loss(self(x)).backward()
        return [weights.grad for weights in self.weights]


def loss(out):
    return (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).square().sum()


STACKS = {
    "fused": lambda: fused(3),
    "fused, causal": lambda: fused(3, causal=True),
    "fused, grouped": lambda: fused(3, groups=1),
    "handmade": lambda: handmade(3),
    "handmade, grouped, causal": lambda: handmade(3, groups=1, causal=True),
    "handmade, dropout": lambda: handmade(3, dropout=0.5),
    "mixed": lambda: Stack(Attention(True), Attention(False), Attention(True, 1)),
}
every_stack = pytest.mark.parametrize("build", STACKS.values(), ids=STACKS)
