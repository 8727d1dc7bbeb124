"""Every model of the registry, searched, against teacher forcing and against every sequence."""

from __future__ import annotations

import math

import pytest
import torch
from searched_models import (
    NAMES,
    SIZE,
    Flat,
    batch,
    every_sequence,
    same,
    search,
    search_steps,
    tiny,
    told,
    told_all,
)

from regard.translate.search.beams import coverage_term
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN

NEVER = -30.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam", [1, 4])
def test_what_was_found_is_what_teacher_forcing_says(name, beam):
    model = tiny(name)
    source, mask = batch()
    found = search(model, source, mask, beam=beam, n_best=beam, longest=7, coverage_penalty=0.0)
    assert len(found) == 3
    for place, hypotheses in enumerate(found):
        assert 1 <= len(hypotheses) <= beam
        for hypothesis in hypotheses:
            chance, weights = told(model, source, mask, place, hypothesis.tokens)
            length = len(hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(chance, abs=1e-4)
            assert hypothesis.score == pytest.approx(chance / ((5 + length) / 6) ** 0.6, abs=1e-4)
            assert hypothesis.weights.keys() == weights.keys() == model.sites.keys()
            for site, seen in hypothesis.weights.items():
                assert seen.shape == (model.sites[site], length, source.shape[1])
                real = int(mask[place].sum())
                assert torch.allclose(seen[..., :real], weights[site][..., :real], atol=1e-5)
                assert (seen[..., real:] == 0).all()
                if model.kind == "distribution":
                    assert torch.allclose(seen.sum(-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_sentence_gets_the_same_alone_as_beside_others(name):
    model = tiny(name)
    source, mask = batch((6, 1, 4, 2))
    together = search(model, source, mask, beam=3, n_best=2, longest=6)
    for place, hypotheses in enumerate(together):
        real = int(mask[place].sum())
        alone = search(
            model,
            source[place : place + 1, :real],
            mask[place : place + 1, :real],
            beam=3,
            n_best=2,
            longest=6,
        )[0]
        assert all(same(a, b) for a, b in zip(hypotheses, alone, strict=True))
        for one, other in zip(hypotheses, alone):
            for site, seen in one.weights.items():
                assert torch.allclose(seen[..., :real], other.weights[site], atol=1e-5)


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "none", "local-p"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("shortest", [0, 2])
def test_a_wide_beam_finds_the_best_of_all_sequences(name, alpha, shortest):
    model = tiny(name, size=7)
    source, mask = batch((5, 2))
    longest = 4
    found = search(
        model,
        source,
        mask,
        beam=4**longest,
        n_best=3,
        longest=longest,
        shortest=shortest,
        length_penalty=alpha,
    )
    for place, hypotheses in enumerate(found):
        sequences = every_sequence(7, longest, shortest)
        chances, _ = told_all(model, source, mask, place, sequences)
        truth = [
            (chance / ((5 + len(tokens)) / 6) ** alpha, tokens)
            for chance, tokens in zip(chances, sequences)
        ]
        truth.sort(key=lambda pair: -pair[0])
        for hypothesis, (score, tokens) in zip(hypotheses, truth, strict=False):
            assert hypothesis.tokens == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-5)
        assert len(hypotheses) == 3


@pytest.mark.parametrize("name", ["transformer", "luong-general"])
def test_the_coverage_penalty_is_the_papers(name):
    model = tiny(name, size=7)
    source, mask = batch((5, 3))
    longest, beta = 3, 0.7
    found = search(model, source, mask, beam=4**longest, longest=longest, coverage_penalty=beta)
    for place, (best,) in enumerate(found):
        sequences = every_sequence(7, longest)
        chances, weights = told_all(model, source, mask, place, sequences)
        heads = torch.cat(list(weights.values()), dim=1)  # (sequence, head, target, source)
        truth = []
        for chance, tokens, seen in zip(chances, sequences, heads):
            covered = seen.mean(0).sum(0)[: int(mask[place].sum())].clamp(max=1.0)
            score = chance / ((5 + len(tokens)) / 6) ** 0.6 + beta * covered.log().sum().item()
            truth.append((score, tokens))
        score, tokens = max(truth)
        assert best.tokens == tokens
        assert best.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_is_the_best_next_token_at_every_step(name):
    model = tiny(name)
    source, mask = batch()
    for place, (hypothesis,) in enumerate(search(model, source, mask, longest=6)):
        tokens = hypothesis.tokens
        assert len(tokens) == 6 or tokens[-1] == END
        for step, token in enumerate(tokens):
            others = [[*tokens[:step], other] for other in range(END, SIZE)]
            chances, _ = told_all(model, source, mask, place, others)
            assert chances.index(max(chances)) + END == token


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_prefix_is_said_and_counted(name):
    model = tiny(name)
    source, mask = batch()
    prefix = [[5, 9], [], [UNKNOWN, 7, 4]]
    found = search(
        model, source, mask, beam=3, n_best=2, longest=6, prefix=prefix, unknown=False, shortest=1
    )
    for place, hypotheses in enumerate(found):
        assert len(hypotheses) == 2
        for hypothesis in hypotheses:
            forced = prefix[place]
            assert hypothesis.tokens[: len(forced)] == forced
            assert UNKNOWN not in hypothesis.tokens[len(forced) :]
            chance, weights = told(model, source, mask, place, hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(chance, abs=1e-4)
            real = int(mask[place].sum())
            for site, seen in hypothesis.weights.items():
                assert torch.allclose(seen[..., :real], weights[site][..., :real], atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_watching_ends_with_what_the_search_finds(beam):
    model = tiny("transformer")
    source, mask = batch((5,))
    options = {"beam": beam, "longest": 8, "coverage_penalty": 0.2}
    seen = list(search_steps(model, source, mask, **options))
    assert same(seen[-1], search(model, source, mask, **options)[0][0])
    for step, hypothesis in enumerate(seen):
        assert 1 <= len(hypothesis.tokens) <= step + 1
        chance, weights = told(model, source, mask, 0, hypothesis.tokens)
        assert hypothesis.log_probability == pytest.approx(chance, abs=1e-4)
        for site, matrix in hypothesis.weights.items():
            assert torch.allclose(matrix, weights[site], atol=1e-5)


def test_special_tokens_are_never_said_and_the_end_not_too_early():
    table = torch.zeros(8, 8)
    table[:, [PAD, BEGIN]] = 9.0
    table[:, END], table[:, UNKNOWN], table[:, 5] = 6.0, 5.0, 4.0
    source, mask = batch((3, 2))
    for beam in (1, 3):
        best = search(Flat(table), source, mask, beam=beam, shortest=3, longest=9)[0][0]
        assert best.tokens == [UNKNOWN, UNKNOWN, UNKNOWN, END]
        best = search(Flat(table), source, mask, beam=beam, shortest=2, unknown=False)[0][0]
        assert best.tokens == [5, 5, END]
    chance = table[0].log_softmax(0)[END]  # of all tokens, also those never said
    best = search(Flat(table), source, mask)[0][0]
    assert best.tokens == [END] and best.log_probability == pytest.approx(float(chance))


def test_equal_candidates_come_in_the_order_of_their_numbers():
    source, mask = batch((2,))
    for size in (9, 5000):
        found = search(Flat(torch.zeros(size, size)), source, mask, beam=3, n_best=3, longest=2)[0]
        assert [h.tokens for h in found] == [[END], [3, END], [3, 3]]


def test_sentences_leave_when_they_are_done():
    table = torch.full((12, 12), NEVER)
    for token in range(4, 11):
        table[token, token + 1] = 0.0  # counts up and ends after 11
    table[11, END] = 0.0
    table[BEGIN, 4] = 0.0
    model = Flat(table)
    source, mask = batch((3, 3, 3))
    found = search(model, source, mask, prefix=[[10], [8], [11]])
    assert [len(h[0].tokens) for h in found] == [3, 5, 2]
    assert model.rows == [3, 3, 2, 1, 1]


def test_greedy_says_the_longest_and_is_cut():
    table = torch.full((6, 6), NEVER)
    table[:, 5] = 0.0
    source, mask = batch((4, 1))
    assert search(Flat(table), source, mask, longest=1)[0][0].tokens == [5]
    found = search(Flat(table), source, mask)
    assert [len(h[0].tokens) for h in found] == [18, 12]  # twice the source, and 10


def test_no_sentences_no_hypotheses():
    for name in ("transformer", "bahdanau"):
        empty = torch.zeros(0, 4, dtype=torch.long)
        assert search(tiny(name), empty, empty.bool(), beam=2) == []


def test_a_search_is_repeatable_and_leaves_the_model_as_it_was():
    model = tiny("transformer", dropout=0.5).train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    source, mask = batch()
    before = torch.get_rng_state()
    first, second = (search(model, source, mask, beam=3, longest=6) for _ in range(2))
    assert all(same(a[0], b[0]) for a, b in zip(first, second, strict=True))
    next(iter(search_steps(model, source[:1], mask[:1])))
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()
    assert not next(iter(first[0][0].weights.values())).requires_grad


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-9), (torch.bfloat16, 0.3)])
def test_other_precisions(dtype, near):
    model = tiny("transformer").to(dtype)
    source, mask = batch()
    for place, (best,) in enumerate(search(model, source, mask, beam=3, longest=6)):
        chance, weights = told(model, source, mask, place, best.tokens)
        assert best.log_probability == pytest.approx(chance, abs=near)
        seen = best.weights["1.cross"][..., : int(mask[place].sum())].double()
        told_seen = weights["1.cross"][..., : int(mask[place].sum())].double()
        assert torch.allclose(seen, told_seen, atol=near)


def test_weights_only_where_asked():
    source, mask = batch()
    assert search(tiny("transformer"), source, mask, weights=False)[0][0].weights == {}
    best = search(tiny("transformer"), source, mask, weights=False, coverage_penalty=0.5)[0][0]
    assert best.weights == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_that_was_never_looked_at_counts_as_a_millionth(dtype):
    seen = torch.tensor([[0.5, 0.0, 1e-9, 3.0]], dtype=dtype)
    mask = torch.tensor([[True, True, True, True]])
    expected = 0.2 * (math.log(0.5) + 2 * math.log(1e-6))
    assert coverage_term(seen, mask, 0.2).item() == pytest.approx(expected)
