"""What a search refuses, and what it says."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
import torch
from searched_models import Flat, batch, search, search_steps, tiny

from regard.errors import DtypeError, RegardError, ShapeError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beam": 0}, r"search\.beam is 0, expected at least 1"),
        ({"n_best": 2}, "search: n_best is 2, expected at most the beam, 1; say a beam of 2"),
        ({"longest": -1}, r"search\.longest is -1, expected at least 0"),
        ({"shortest": 3, "longest": 3}, r"shortest is 3, expected less than search\.longest, 3"),
        (
            {"coverage_penalty": -1.0},
            "coverage_penalty is -1.0, expected a finite number, at least 0",
        ),
        (
            {"coverage_penalty": inf},
            "coverage_penalty is inf, expected a finite number, at least 0",
        ),
        (
            {"coverage_penalty": nan},
            "coverage_penalty is nan, expected a finite number, at least 0",
        ),
        ({"length_penalty": nan}, "length_penalty is nan, expected a finite number"),
        ({"length_penalty": -inf}, "length_penalty is -inf, expected a finite number"),
        ({"prefix": [[4], [], [4, 12]]}, r"prefix\[2\] holds 12, expected tokens below 12, the si"),
        ({"prefix": [[4]]}, "prefix has 1 entries, expected one a sentence, 3"),
        ({"prefix": [[4], [2], []]}, r"prefix\[1\] holds 2, expected tokens that can be said"),
        ({"prefix": [[4], [], [4, 4]], "longest": 1}, r"prefix\[2\] has 2 tokens, expected at mos"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(RegardError, match=text):
        search(tiny("bahdanau"), *batch(), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beam": 2.5}, r"search\.beam is 2\.5, expected a whole number"),
        ({"longest": 9.0}, r"search\.longest is 9\.0, expected a whole number"),
        ({"prefix": [[], [5.7], []]}, r"prefix\[1\] holds 5\.7, expected tokens that can be said"),
    ],
)
def test_fractions(options, text, without_shape_checks):
    with pytest.raises(RegardError, match=text):
        search(tiny("bahdanau"), *batch(), **options)


@pytest.mark.parametrize(
    ("row", "place"), [([0, 0, 5, 2], 0), ([5, 0, 6, 2], 1), ([5, 6, 0, 2], 2), ([0, 5, 6, 7], 0)]
)
def test_padding_stands_on_the_right(row, place):
    source = torch.tensor([[7, 8, 9, 2], row])
    wanted = rf"mask\[1\] is False at place {place}, before the last of its [23] tokens, expected p"
    with pytest.raises(RegardError, match=wanted):
        search(tiny("luong-general"), source, source != 0)
    with pytest.raises(RegardError, match=r"mask\[0\] is False"):
        next(search_steps(tiny("luong-general"), source[1:], source[1:] != 0))


def test_a_prefix_of_other_whole_numbers(without_shape_checks):
    source, mask = batch()
    model = tiny("bahdanau")
    plain = search(model, source, mask, prefix=[[5], [], [11]], longest=4)
    others = [list(np.array([5])), [], list(torch.tensor([11]))]
    found = search(model, source, mask, prefix=others, longest=4)
    assert [h[0].tokens for h in found] == [h[0].tokens for h in plain]


def test_wrong_tensors(without_shape_checks):
    source, mask = batch()
    model = tiny("bahdanau")
    with pytest.raises(ShapeError, match=r"source has shape \(6,\)"):
        search(model, source[0], mask[0])
    with pytest.raises(
        ShapeError, match=r"dtype torch\.uint8, expected \(sentence, source\) of tor"
    ):
        search(model, source.to(torch.uint8), mask)
    with pytest.raises(ShapeError, match=r"mask has shape \(3, 5\), expected \(3, 6\) as source"):
        search(model, source, mask[:, 1:])
    with pytest.raises(DtypeError, match=r"mask is torch\.int64, expected"):
        search(model, source, mask.long())
    with pytest.raises(RegardError, match="source has 3 sentences, expected 1"):
        next(search_steps(model, source, mask))


def test_a_sentence_without_tokens():
    source, mask = batch()
    mask[1] = False
    with pytest.raises(RegardError, match="sentence 1 has no tokens, expected at least its end"):
        search(tiny("transformer"), source, mask)


def test_no_attention_no_coverage():
    with pytest.raises(RegardError, match="has no attention from target to source; expected 0"):
        search(tiny("none"), *batch(), coverage_penalty=0.1)


@pytest.mark.parametrize("value", [nan, -inf, inf])
@pytest.mark.parametrize("beam", [1, 3])
def test_logits_that_are_no_numbers(value, beam):
    with pytest.raises(RegardError, match="sentence 0 has no hypothesis; the model's logits are N"):
        search(Flat(torch.full((6, 6), value)), *batch(), beam=beam)
