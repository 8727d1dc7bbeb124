"""Gradients of gradients, and functional transforms, through what goes back by hand."""

import pytest
import reuse_dense as dense
import torch

from regard.reuse import OffsetBins, PositionSummaries, source_of
from regard.reuse.summaries import summarise, summarise_plainly

NAMES = ["received", "entropy", "strongest", "self_weight"]


def summed(found):
    return sum((found[name] * (place + 1)).sin().sum() for place, name in enumerate(found))


@pytest.mark.parametrize("names", [*([name] for name in NAMES), NAMES])
@pytest.mark.parametrize("masked", [False, True])
def test_summaries(names, masked):
    scores = dense.normal(2, 2, 4, 4).requires_grad_()
    allowed = torch.rand(2, 1, 4, 4) > 0.3 if masked else None
    rows = torch.tensor([[True, True, False, True]]).expand(2, -1) if masked else None

    def call(scores):
        return summed(summarise(scores.softmax(-1), names, allowed, rows))

    assert torch.autograd.gradgradcheck(call, scores)


@pytest.mark.parametrize("masked", [False, True])
def test_they_are_those_of_plain_operations(masked):
    """By torch.autograd.grad to the weights themselves, where an error was once stepped over."""
    allowed = torch.rand(2, 1, 4, 4) > 0.3 if masked else None
    rows = torch.tensor([[True, True, False, True]]).expand(2, -1) if masked else None
    given, found = dense.weights_of(2, 2, 4, 4), []
    for way in (summarise_plainly, summarise):
        weights = given.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            summed(way(weights, NAMES, allowed, rows)), weights, create_graph=True
        )
        (second,) = torch.autograd.grad(gradient.square().sum(), weights)
        found.append((gradient.detach(), second))
    for plain, made in zip(*found):
        torch.testing.assert_close(made, plain, atol=1e-8, rtol=1e-8)


def test_asking_for_them_does_not_move_the_first():
    weights, gradients = dense.weights_of().requires_grad_(), []
    for create_graph in (False, True):
        total = summed(summarise(weights, NAMES, None, None))
        (gradient,) = torch.autograd.grad(total, weights, create_graph=create_graph)
        gradients.append(gradient.detach())
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_offsets():
    scores = dense.normal(1, 2, 5, 5).requires_grad_()
    code = OffsetBins(2, 3).double()
    assert torch.autograd.gradgradcheck(
        lambda scores: code(source_of(scores.softmax(-1))).sin().sum(), scores
    )


@pytest.mark.parametrize("code", [PositionSummaries(2), OffsetBins(2, 3)])
def test_functional_gradients(code):
    code, scores = code.double(), dense.normal(1, 2, 5, 5)

    def call(scores):
        return code(source_of(scores.softmax(-1), axes="batch head query key")).sin().sum()

    leaf = scores.clone().requires_grad_()
    call(leaf).backward()
    torch.testing.assert_close(torch.func.grad(call)(scores), leaf.grad, atol=1e-12, rtol=0)
