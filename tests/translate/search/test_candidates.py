"""The best candidates, against a plain sort of everything."""

from __future__ import annotations

import pytest
import torch

from regard.translate.search.candidates import best_candidates, largest, log_sum_exp


@pytest.mark.parametrize("size", [3, 64, 513, 700, 4001])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_largest_is_a_stable_sort(size, count):
    torch.manual_seed(size)
    for values in (
        torch.randn(5, size),
        torch.randint(-3, 3, (5, size)) / 2,
        -torch.zeros(2, size),
    ):
        found, places = largest(values, count)
        numbers = values.tolist()
        for row, chosen in enumerate(places.tolist()):
            ranked = sorted(range(size), key=lambda place: (-numbers[row][place], place))
            assert chosen == ranked[:count]
            assert found[row].tolist() == [numbers[row][place] for place in chosen]


def test_largest_with_infinities():
    values = torch.full((1, 2000), -torch.inf)
    values[0, 1500] = torch.inf
    values[0, 1990] = -1e30
    assert largest(values, 3)[1].tolist() == [[1500, 1990, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_sum_exp(dtype):
    logits = torch.randn(7, 50_000).to(dtype)
    logits[1] += 500  # beyond what exp can say in float32
    logits[2] -= 500
    expected = logits.double().logsumexp(1, keepdim=True)
    found = log_sum_exp(logits, logits.amax(1, keepdim=True))
    assert torch.allclose(found.double(), expected, atol=1e-4)


@pytest.mark.parametrize("forbidden", [(), (2,), (2, 3)])
def test_candidates_are_the_best_of_all_pairs(forbidden):
    torch.manual_seed(0)
    sentences, beams, size, count = 3, 2, 900, 5
    logits = torch.randn(sentences * beams, size, dtype=torch.float64)
    scores = torch.randn(sentences, beams, dtype=torch.float64)
    found = best_candidates(logits, scores, count, forbidden=forbidden)
    chances = logits.log_softmax(1)
    for sentence in range(sentences):
        every = [
            (float(scores[sentence, beam] + chances[row, token]), row, token)
            for beam in range(beams)
            for row in [sentence * beams + beam]
            for token in range(2, size)
            if token not in forbidden
        ]
        best = sorted(every, key=lambda candidate: -candidate[0])[:count]
        for place, (score, row, token) in enumerate(best):
            assert float(found.score[sentence, place]) == pytest.approx(score)
            assert int(found.row[sentence, place]) == row
            assert int(found.token[sentence, place]) == token


def test_what_is_never_said_counts_all_the_same():
    logits = torch.randn(2, 900)
    logits[:, 1] = 300.0
    found = best_candidates(logits, torch.zeros(2, 1), 1)
    expected = logits.double().log_softmax(1)[:, 2:].amax(1, keepdim=True)
    assert torch.allclose(found.score.double(), expected, atol=1e-4)


def test_a_forced_token_is_the_only_candidate():
    logits = torch.randn(4, 10)
    found = best_candidates(
        logits, torch.zeros(2, 2), 4, forbidden=(2,), forced=torch.tensor([7, -1])
    )
    alive = found.score[0] > -torch.inf
    assert alive.sum() == 2 and (found.token[0][alive] == 7).all()
    assert (found.score[1] > -torch.inf).all()
