"""The truth itself, compared with the formula read one number at a time."""

import math
from itertools import product

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from regard.kernel.dense import attention


def by_hand(query, key, value, allowed, bias, scale, softcap, sink):
    """Output and weights of one head, in plain Python: lists of lists in and out."""
    output, weights = [], []
    for i, looker in enumerate(query):
        exponentials = []
        for j, looked_at in enumerate(key):
            score = scale * sum(a * b for a, b in zip(looker, looked_at))
            if softcap is not None:
                score = softcap * math.tanh(score / softcap)
            exponentials.append(math.exp(score + bias[i][j]) if allowed[i][j] else 0.0)
        total = sum(exponentials) + (0.0 if sink is None else math.exp(sink))
        row = [number / total if total else 0.0 for number in exponentials]
        weights.append(row)
        output.append([sum(w * v for w, v in zip(row, column)) for column in zip(*value)])
    return output, weights


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(lead, shared, queries, keys, width=3, value_width=5):
    return (
        random(*lead, queries, width, seed=1),
        random(*shared, keys, width, seed=2),
        random(*shared, keys, value_width, seed=3),
    )


@pytest.mark.parametrize("softcap", [None, 0.7], ids=["plain", "softcap"])
@pytest.mark.parametrize("with_sink", [False, True], ids=["", "sink"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (4, 4), (5, 3)])
@pytest.mark.parametrize(
    ("lead", "shared"),
    [((), ()), ((4,), (4,)), ((4,), (2,)), ((2, 4), (2, 1)), ((2, 1, 4), (2, 1, 4))],
    ids=["2d", "3d", "3d-grouped", "4d-grouped", "5d"],
)
def test_equals_the_formula(lead, shared, queries, keys, causal, with_sink, softcap):
    if with_sink and not lead:
        lead, shared = (1,), (1,)  # a sink belongs to a head
    query, key, value = problem(lead, shared, queries, keys)
    mask = random(*lead, queries, keys, seed=4) > -0.5
    bias = random(*lead, queries, keys, seed=5)
    sink = random(lead[-1], seed=6) if with_sink else None
    output, weights = attention(
        query, key, value, mask=mask, bias=bias, causal=causal, softcap=softcap, sink=sink
    )
    assert output.shape == (*lead, queries, value.shape[-1])
    assert weights.shape == (*lead, queries, keys)
    for place in product(*map(range, lead)):
        served = place
        if lead:
            served = (*place[:-1], place[-1] // (lead[-1] // shared[-1]))
        allowed = [
            [
                bool(mask[(*place, i, j)]) and (not causal or j - i <= keys - queries)
                for j in range(keys)
            ]
            for i in range(queries)
        ]
        expected = by_hand(
            query[place].tolist(),
            key[served].tolist(),
            value[served].tolist(),
            allowed,
            bias[place].tolist(),
            query.shape[-1] ** -0.5,
            softcap,
            None if sink is None else float(sink[place[-1]]),
        )
        for got, wanted in zip((output, weights), expected):
            torch.testing.assert_close(got[place], torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize(
    ("queries", "keys", "seen"),
    [
        (2, 4, [[1, 1, 1, 0], [1, 1, 1, 1]]),
        (3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (4, 2, [[0, 0], [0, 0], [1, 0], [1, 1]]),
    ],
)
def test_causal_is_aligned_at_the_bottom_right(queries, keys, seen):
    _, weights = attention(*problem((), (), queries, keys), causal=True)
    assert (weights > 0).int().tolist() == seen


def test_scale_replaces_the_root_of_the_width():
    query, key, value = problem((2,), (2,), 3, 4)
    scaled = attention(query, key, value, scale=0.25)[1]
    torch.testing.assert_close(scaled, (query @ key.mT * 0.25).softmax(-1))


@pytest.mark.parametrize("sink", [None, torch.tensor([0.3])], ids=["", "sink"])
def test_a_row_that_may_see_nothing_is_zero_with_finite_gradients(sink):
    inputs = [tensor.requires_grad_() for tensor in problem((1,), (1,), 3, 4)]
    mask = torch.tensor([[True] * 4, [False] * 4, [True, False, True, False]])
    output, weights = attention(*inputs, mask=mask, sink=sink)
    assert (weights[0, 1] == 0).all() and (output[0, 1] == 0).all()
    grads = torch.autograd.grad(output.square().sum() + weights.square().sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][0, 1] == 0).all() and grads[0][0, 0].abs().sum() > 0


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_nobody_sees_reaches_neither_output_nor_gradients(bad):
    query, key, value = problem((2,), (1,), 3, 4)
    mask = torch.tensor([[True, True, False, True]])
    clean = attention(query, key, value, mask=mask)
    key[:, 2], value[:, 2] = bad, bad
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    output, weights = attention(*inputs, mask=mask)
    torch.testing.assert_close((output, weights), clean)
    grads = torch.autograd.grad(output.square().sum() + weights.square().sum(), inputs)
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[:, 2] == 0).all() for grad in grads[1:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_takes_scores_beyond_its_own_range(dtype):
    query = (torch.full((1, 4, 64), 100.0) + random(1, 4, 64).float()).to(dtype)  # scores ~ 8e4
    value = random(1, 4, 64, seed=1).to(dtype)
    output, weights = attention(query, query, value)
    assert output.dtype == dtype and weights.dtype == torch.float32
    scores = query.double() @ query.double().mT / 8
    assert scores.max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(weights.double(), scores.softmax(-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(output, (weights @ value.float()).to(dtype))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_with_a_dead_row_a_sink_and_a_bias(check):
    mask = torch.tensor([[True, True, False], [False] * 3, [True] * 3])

    def run(query, key, value, bias, sink):
        plain = attention(query, key, value, mask=mask, bias=bias)
        sunk = attention(query, key, value, mask=mask, bias=bias, sink=sink, softcap=2.0)
        return *plain, *sunk

    inputs = *problem((2,), (1,), 3, 3, 2, 2), random(1, 3, 3, seed=7), random(2, seed=8)
    assert check(run, [tensor.requires_grad_() for tensor in inputs])


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("sink", [None, torch.zeros(2)], ids=["", "sink"])
def test_nothing_to_attend(queries, keys, sink):
    inputs = [tensor.requires_grad_() for tensor in problem((2,), (2,), queries, keys)]
    output, weights = attention(*inputs, causal=True, sink=sink)
    assert output.shape == (2, queries, 5) and weights.shape == (2, queries, keys)
    assert (output == 0).all()
    assert (torch.autograd.grad(output.sum(), inputs)[0] == 0).all()


def test_dropout_touches_the_output_and_not_the_weights():
    inputs = problem((2,), (2,), 6, 6)
    output, weights = attention(*inputs)
    torch.manual_seed(0)
    dropped, same = attention(*inputs, dropout=0.5)
    torch.manual_seed(0)
    kept = torch.nn.functional.dropout(weights, 0.5)
    assert torch.equal(same, weights) and torch.equal(dropped, kept @ inputs[2])
    assert not torch.equal(dropped, output)
