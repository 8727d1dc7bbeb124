"""What a search refuses, and what it says."""

from __future__ import annotations

import pytest
import torch
from searched_models import Flat, batch, tiny

from regard.errors import DtypeError, RegardError, ShapeError
from regard.translate.search import search, search_steps


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beam": 0}, "search: beam is 0, expected at least 1"),
        ({"n_best": 2}, "search: n_best is 2, expected at most the beam, 1"),
        ({"longest": 0}, "search: longest is 0, expected at least 1"),
        ({"shortest": 3, "longest": 3}, "shortest is 3, expected less than longest, 3"),
        ({"coverage_penalty": -1.0}, "coverage_penalty is -1.0, expected 0 or more"),
        ({"prefix": [[4]]}, "prefix has 1 entries, expected one a sentence, 3"),
        ({"prefix": [[4], [2], []]}, r"prefix\[1\] holds 2, expected tokens that can be said"),
        ({"prefix": [[4], [], [4, 4]], "longest": 1}, r"prefix\[2\] has 2 tokens, expected at mos"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(RegardError, match=text):
        search(tiny("bahdanau"), *batch(), **options)


def test_wrong_tensors(without_shape_checks):
    source, mask = batch()
    model = tiny("bahdanau")
    with pytest.raises(ShapeError, match=r"source has shape \(6,\)"):
        search(model, source[0], mask[0])
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


def test_logits_that_are_no_numbers():
    with pytest.raises(RegardError, match="sentence 0 has no hypothesis; the model's logits are N"):
        search(Flat(torch.full((6, 6), torch.nan)), *batch())
