"""Every reducer on a list of edges gives the answer of the dense matrix, in any tiles."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import regard
from regard.errors import UnavailableError
from regard.kernel import reducers as family
from regard.recipe import Edges, Given

QUERIES, KEYS = 11, 13


def edges(shared=(1, 1), n_edges=30):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 3, n_edges, generator=generator).double().softmax(-1)
    weights[..., ::7] = 0  # absent edges
    query_index = torch.randint(QUERIES - 2, (*shared, n_edges), generator=generator)
    key_index = torch.randint(KEYS, (*shared, n_edges), generator=generator)
    return Edges(query_index, key_index, weights, QUERIES, KEYS)


OPTIONS = {
    "WeightedSum": lambda: [torch.linspace(0, 1, KEYS).double()],
    "ReceivedGradient": lambda: [None, torch.randn(2, 3, QUERIES, KEYS).double()],
    "SegmentWeights": lambda: [torch.arange(KEYS) % 3],
    "OwnSegment": lambda: [torch.arange(KEYS) % 3],
    "Repeats": lambda: [torch.arange(KEYS) % 4],
    "QueryRows": lambda: [[0, -1]],
    "TopK": lambda: [4],
}
REDUCERS = [
    name
    for name in family.__all__
    if isinstance(getattr(family, name), type) and issubclass(getattr(family, name), regard.Reducer)
]


def tensors(answer):
    return answer if isinstance(answer, tuple) else (answer,)


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("tile", [None, (1, 1), (4, 5), (64, 64)], ids=str)
@pytest.mark.parametrize("shared", [(1, 1), (2, 3)], ids=["shared", "each"])
def test_every_reducer(name, tile, shared):
    reducer = getattr(family, name)(*OPTIONS.get(name, list)())
    recipe = edges(shared)
    (got,) = regard.reduce(recipe, [reducer], tile=tile)
    (expected,) = regard.reduce(Given(recipe.weights()), [reducer])
    for part, wanted in zip(tensors(got), tensors(expected), strict=True):
        torch.testing.assert_close(part, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("tile", [None, (4, 5)], ids=str)
def test_an_empty_batch_gives_empty_answers(name, tile):
    reducer = getattr(family, name)(*OPTIONS.get(name, list)())
    recipe = Given(edges().weights())
    (full,) = regard.reduce(recipe, [reducer])
    if name == "ReceivedGradient":
        reducer = family.ReceivedGradient(None, torch.randn(0, 3, QUERIES, KEYS).double())
    (empty,) = regard.reduce(Given(recipe.matrix[:0]), [reducer], tile=tile)
    assert type(empty) is type(full)
    for part, of_two in zip(tensors(empty), tensors(full), strict=True):
        assert part.shape == (0, *of_two.shape[1:])
        assert part.dtype == of_two.dtype


@pytest.mark.parametrize("tile", [None, (4, 5)], ids=str)
def test_no_edges(tile):
    entropy, top = regard.reduce(edges(n_edges=0), [regard.Entropy(), regard.TopK(2)], tile=tile)
    assert not entropy.any() and not top.weights.any() and not top.keys.any()


def test_an_answer_inside_the_graph():
    recipe = edges()
    weights = recipe.edge_weights.requires_grad_()
    (entropy,) = regard.reduce(recipe, [regard.Entropy(differentiable=True)])
    (gradient,) = torch.autograd.grad(entropy.sum(), weights)
    assert gradient.isfinite().all() and gradient.any()


def test_signed_edges_have_sums_and_no_logarithms():
    recipe = edges()
    signed = replace(recipe, edge_weights=recipe.edge_weights - 0.02, of="signed")
    (received,) = regard.reduce(signed, [regard.ReceivedAttention()], tile=(4, 5))
    torch.testing.assert_close(received, signed.weights().sum(2))
    with pytest.raises(UnavailableError, match="signed weights have no logarithm"):
        regard.reduce(signed, [regard.Entropy()], tile=(4, 5))


LARGE = """
import resource, torch, regard
from regard.recipe import Edges
torch.manual_seed(0)
n, e = 20_000, 200_000
query, key = torch.randint(n, (2, e))
weights = torch.rand(e)
weights = weights / torch.zeros(n).index_add(0, query, weights)[query]
recipe = Edges.between(query, key, weights, queries=n, keys=n)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
received, entropy, top, support = regard.reduce(
    recipe, [regard.ReceivedAttention(), regard.Entropy(), regard.TopK(3), regard.EffectiveKeys()]
)
print((peak() - before) // 1024)
expected = torch.zeros(n).index_add(0, key, weights)
torch.testing.assert_close(received[0, 0], expected, atol=1e-5, rtol=1e-5)
own = query == 7
torch.testing.assert_close(top.weights[0, 0, 7], weights[own].topk(3).values)
torch.testing.assert_close(entropy[0, 0, 7], -(weights[own] * weights[own].log()).sum())
"""


def test_a_graph_of_twenty_thousand_nodes_is_reduced_in_seconds():
    """The matrix alone would have 1.6 GB."""
    start = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 400  # MB
    assert time.perf_counter() - start < 60  # 5 s on an idle core
