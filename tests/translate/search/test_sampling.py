"""Samples: drawn from the model's distribution, reproducible, and without a trace."""

import pytest
import torch
from searched_models import NAMES, Flat, batch, same, search, search_steps, tiny, told

from regard.errors import RegardError
from regard.translate.search import SearchOptions
from regard.translate.tokens import END, UNKNOWN

DRAWS = 1000
SEEN = torch.tensor([[7, END]])  # one sentence


def frequencies(logits, **options):
    """How often each token was drawn first."""
    model = Flat(logits.expand(len(logits), -1))
    samples = search(model, SEEN, SEEN > 0, n_best=DRAWS, sample=True, longest=1, **options)[0]
    first = torch.tensor([sample.tokens[0] for sample in samples])
    return torch.bincount(first, minlength=len(logits)) / DRAWS


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {2, 3, 4, 5, 6, 7}),
        ({"temperature": 0.5}, {2, 3, 4, 5, 6, 7}),
        ({"top_k": 3}, {4, 5, 6}),
        ({"top_p": 0.7}, {4, 5}),
        ({"top_k": 2, "top_p": 0.01, "temperature": 3.0}, {4}),
        ({"unknown": False, "shortest": 0}, {2, 4, 5, 6, 7}),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_probable(options, kept):
    # Padding and the beginning are the most probable of all, and never said.
    logits = torch.tensor([9.0, 9.0, 0.1, 0.2, 3.0, 2.5, 1.0, 0.5])
    tempered = logits / options.get("temperature", 1.0)
    allowed = torch.tensor([token in kept for token in range(len(logits))])
    expected = tempered.masked_fill(~allowed, -torch.inf).softmax(0)
    drawn = frequencies(logits, **options)
    error = (expected * (1 - expected) / DRAWS).sqrt()
    assert ((drawn - expected).abs() <= 4 * error).all(), (drawn, expected)


@pytest.mark.parametrize("name", NAMES)
def test_of_one_token_it_is_greedy_search(name):
    model = tiny(name)
    drawn = search(model, *batch(), sample=True, top_k=1, n_best=2, longest=7)
    for (greedy,), samples in zip(search(model, *batch(), longest=7), drawn):
        assert all(same(greedy, sample) for sample in samples)


@pytest.mark.parametrize("name", ["bahdanau", "transformer"])
def test_log_probability_and_weights_are_those_of_the_model(name):
    model, (source, mask) = tiny(name), batch()
    drawn = search(model, source, mask, sample=True, temperature=2.0, n_best=3, longest=7)
    for sentence, samples in enumerate(drawn):
        for sample in samples:
            total, weights = told(model, source, mask, sentence, sample.tokens)
            assert sample.log_probability == pytest.approx(total, abs=1e-4)
            for site, seen in weights.items():
                torch.testing.assert_close(sample.weights[site], seen, atol=1e-5, rtol=1e-4)


def test_the_seed_decides_and_the_batch_does_not():
    model, (source, mask) = tiny("transformer"), batch()
    options = {"sample": True, "n_best": 5, "longest": 9}
    drawn = [[s.tokens for s in each] for each in search(model, source, mask, **options)]
    again = [[s.tokens for s in each] for each in search(model, source, mask, **options)]
    other = [[s.tokens for s in each] for each in search(model, source, mask, **options, seed=1)]
    alone = [s.tokens for s in search(model, source[2:, :4], mask[2:, :4], **options)[0]]
    assert drawn == again and drawn != other and alone == drawn[2]
    assert len({tuple(tokens) for tokens in drawn[0]}) > 1
    fewer = search(model, source, mask, **(options | {"n_best": 2}))
    assert [s.tokens for s in fewer[0]] == drawn[0][:2]


def test_no_global_generator_is_touched():
    model = tiny("bahdanau")
    before = torch.get_rng_state()
    search(model, *batch(), sample=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_last_step_is_the_sample():
    model, (source, mask) = tiny("transformer"), batch((5,))
    *_, last = search_steps(model, source, mask, sample=True, longest=9)
    assert same(last, search(model, source, mask, sample=True, longest=9)[0][0])


def test_prefix_and_lengths_hold():
    options = {"sample": True, "n_best": 4, "unknown": False, "shortest": 3, "longest": 6}
    drawn = search(tiny("bahdanau"), *batch(), prefix=[[5, 6], [], [4]], **options)
    assert all(sample.tokens[:2] == [5, 6] for sample in drawn[0])
    assert all(sample.tokens[0] == 4 for sample in drawn[2])
    for samples in drawn:
        assert all(UNKNOWN not in each.tokens and 4 <= len(each.tokens) <= 6 for each in samples)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0.0, "sample": True}, "temperature is 0.0, expected a finite number abo"),
        ({"top_p": 0.0, "sample": True}, "top_p is 0.0, expected above 0 and at most 1"),
        ({"top_k": -1, "sample": True}, "top_k is -1, expected at least 0"),
        ({"top_k": 5}, r"search\.top_k is 5, which has no effect without search\.sample"),
        ({"seed": 5}, r"search\.seed is 5, which has no effect without search\.sample"),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(RegardError, match=text):
        SearchOptions(**options)


def test_the_greedy_options_of_sampling_ones():
    options = SearchOptions(sample=True, temperature=0.5, longest=9)
    assert options.greedy == SearchOptions(beam=1, longest=9)
