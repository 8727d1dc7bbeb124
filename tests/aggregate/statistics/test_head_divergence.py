"""Divergences between heads against the definition, and groups against naive joining."""

import math

import pytest
import torch
from torch import nn

import regard
from regard.aggregate.statistics import head_divergence as similarity
from regard.aggregate.statistics.head_divergence import HeadDivergence, head_divergence
from regard.errors import RegardError, ShapeError, UnavailableError


def made(seed, batch=2, heads=3, queries=6, keys=6):
    random = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(batch, heads, queries, keys, generator=random).double()).softmax(-1)


def kullback_leibler(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0)


def jensen_shannon(p, q):
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    middle = [(a + b) / 2 for a, b in zip(p, q)]
    return (kullback_leibler(p, middle) + kullback_leibler(q, middle)) / 2


def loops(first, second, real=None):
    """Two heads (batch, query, key), a row at a time."""
    found = [
        jensen_shannon(first[b, i].tolist(), second[b, i].tolist())
        for b in range(first.shape[0])
        for i in range(first.shape[1])
        if (real is None or real[b, i]) and first[b, i].sum() > 0 and second[b, i].sum() > 0
    ]
    return sum(found) / len(found)


@pytest.fixture(params=[1, 1 << 18], ids=["row by row", "one strip"])
def strip(request, monkeypatch):
    monkeypatch.setattr(similarity, "_STRIP", request.param)


@pytest.mark.usefixtures("strip")
def test_heads_of_one_layer():
    weights = made(0)
    found = head_divergence(weights)
    assert found.heads == [(0, 0), (0, 1), (0, 2)]
    for i in range(3):
        for j in range(3):
            want = loops(weights[:, i], weights[:, j])
            assert float(found.matrix[i, j]) == pytest.approx(want, abs=1e-10)


@pytest.mark.usefixtures("strip")
def test_heads_of_several_layers():
    low, high = made(0, heads=2), made(1, heads=3)
    apart = head_divergence([low, high]).matrix
    together = head_divergence([low, high], between_layers=True)
    assert together.heads == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert bool(apart[:2, 2:].isnan().all()) and not bool(apart[2:, 2:].isnan().any())
    every = torch.cat([low, high], 1)
    for i in range(5):
        for j in range(5):
            want = loops(every[:, i], every[:, j])
            assert float(together.matrix[i, j]) == pytest.approx(want, abs=1e-10)
    torch.testing.assert_close(apart[:2, :2], together.matrix[:2, :2])


@pytest.mark.usefixtures("strip")
def test_padding_and_rows_of_nothing_are_left_out():
    weights = made(2)
    weights[0, 1, 3] = 0.0
    real = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    found = head_divergence(weights, real=real).matrix
    for i in range(3):
        for j in range(3):
            want = loops(weights[:, i], weights[:, j], real)
            assert float(found[i, j]) == pytest.approx(want, abs=1e-10)


def test_the_ends_of_the_scale():
    eye = torch.eye(5)
    found = head_divergence(torch.stack([eye, eye.roll(1, 1), eye])[None]).matrix
    assert float(found[0, 1]) == pytest.approx(math.log(2), abs=1e-6)
    assert float(found[0, 2]) == pytest.approx(0.0, abs=1e-6)
    assert bool((found >= 0).all()) and bool((found == found.T).all())
    assert head_divergence(eye[None, None]).matrix.tolist() == [[0.0]]


def test_a_trace_is_compared_by_the_numbers_of_its_layers():
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    with torch.no_grad():
        trace = regard.trace(model, torch.randn(2, 7, 16))
    found = head_divergence(trace[1:], between_layers=True)
    assert found.heads == [(1, 0), (1, 1), (2, 0), (2, 1)]
    weights = [record.weights().double() for record in trace]
    want = loops(weights[1][:, 1], weights[2][:, 0])
    assert float(found.matrix[1, 2]) == pytest.approx(want, abs=1e-5)


def test_planted_groups_are_found():
    torch.manual_seed(0)
    n, kinds = 12, []
    for plan in (torch.eye(n), torch.eye(n).roll(1, 1), torch.full((n, n), 1 / n)):
        noise = torch.rand(3, n, n).softmax(-1)
        kinds.append(0.95 * plan + 0.05 * noise)
    heads = torch.cat(kinds)[[0, 3, 6, 1, 4, 7, 2, 5, 8]]
    groups = head_divergence(heads[None]).cluster(0.1)
    assert groups == [[(0, k), (0, k + 3), (0, k + 6)] for k in range(3)]


def naive(matrix, limit):
    """Average linkage by its definition: means over the original pairs, from scratch each time."""
    groups = [[i] for i in range(len(matrix))]
    while len(groups) > 1:
        pairs = [
            (float(matrix[a][:, b].mean()), x, y)
            for x, a in enumerate(groups)
            for y, b in enumerate(groups)
            if x < y
        ]
        nearest, x, y = min(pairs)
        if nearest > limit:
            break
        groups[x] += groups.pop(y)
    return sorted(sorted(group) for group in groups)


@pytest.mark.parametrize("limit", [0.0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.69])
def test_groups_are_those_of_naive_joining(limit):
    random = torch.Generator().manual_seed(3)
    points = torch.rand(14, 2, generator=random).double()
    matrix = (points[:, None] - points).norm(dim=-1) / 2
    found = HeadDivergence([(0, head) for head in range(14)], matrix)
    assert sorted([h for _, h in group] for group in found.cluster(limit)) == naive(matrix, limit)


def test_links_are_numbered_as_a_dendrogram_wants_them():
    matrix = torch.tensor([[0.0, 0.1, 0.4], [0.1, 0.0, 0.6], [0.4, 0.6, 0.0]])
    links = HeadDivergence([(0, 0), (0, 1), (0, 2)], matrix).links()
    assert [(link.first, link.second, link.size) for link in links] == [(0, 1, 2), (3, 2, 3)]
    assert [link.divergence for link in links] == pytest.approx([0.1, 0.5])


def test_heads_that_were_not_compared_stay_apart():
    layers = [torch.eye(4).expand(1, 2, 4, 4)] * 2
    assert head_divergence(layers).cluster(0.6) == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert len(head_divergence(layers, between_layers=True).cluster(0.6)) == 1


@pytest.mark.usefixtures("without_shape_checks")
def test_what_makes_no_sense_is_refused():
    with pytest.raises(ShapeError, match="layer 1: batch 2, 5 × 5, expected batch 2, 6 × 6"):
        head_divergence([made(0), made(0, queries=5, keys=5)], between_layers=True)
    with pytest.raises(UnavailableError, match="signed weights are no shares"):
        head_divergence(torch.randn(1, 2, 3, 3), kind="signed")
    with pytest.raises(RegardError, match="limit=2, expected from 0 to ln 2"):
        head_divergence(made(0)).cluster(2)
