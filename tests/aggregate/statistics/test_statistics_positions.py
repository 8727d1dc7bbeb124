"""What head statistics are given: cross-attention, tokens and special ones, and what is refused."""

import math

import pytest
import torch
from statistics_loops import softmaxed

import regard
from regard.aggregate.statistics.head_statistics import head_statistics
from regard.aggregate.statistics.token_positions import is_special
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.recipe import Given


def test_cross_attention_has_no_positions():
    weights = softmaxed(0, 2, 2, 7, 5)
    (found,) = head_statistics(weights)
    for name in ("distance", "previous", "next", "itself", "local", "positional", "induction"):
        assert bool(getattr(found, name).isnan().all())
    assert found.offsets is None
    torch.testing.assert_close(found.sink, weights[..., 0].mean((0, 2)))
    entropy = -torch.xlogy(weights, weights).sum(-1).mean((0, 2))
    torch.testing.assert_close(found.evenness, entropy / math.log(5))
    (same_size,) = head_statistics(softmaxed(0, 2, 2, 5, 5), cross=True)
    assert bool(same_size.previous.isnan().all())
    real = torch.tensor([[1] * 7, [1] * 3 + [0] * 4])  # of the queries
    (some,) = head_statistics(weights, real=real)
    want = (weights[0, :, :, 0].sum(-1) + weights[1, :, :3, 0].sum(-1)) / 10
    torch.testing.assert_close(some.sink, want)
    with pytest.raises(ShapeError, match="cross=False, but 7 queries for 5 keys"):
        head_statistics(weights, cross=False)


def test_a_sink_of_cross_attention_is_set_aside():
    weights = softmaxed(0, 1, 2, 7, 5)
    weights[..., 0] += 9  # of 10
    weights /= weights.sum(-1, keepdim=True)
    (statistics,) = head_statistics(weights)
    received = weights[..., 1:].sum((0, 2))
    assert bool((statistics.aside > 0.85).all())
    torch.testing.assert_close(
        statistics.rest["peak"], received.amax(-1) / received.sum(-1), check_dtype=False
    )
    assert bool(statistics.rest["previous"].isnan().all())


def test_words_tell_special_tokens():
    special = ["[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "<|endoftext|>", "<|im_start|>", "[PAD]"]
    special += ["<bos>", "<｜begin▁of▁sentence｜>", "<start_of_turn>"]
    plain = ["the", "##ing", "▁the", "Ġthe", "[UNK]", "[MASK]", "<", "[NH]", "[Na+]", "|", "<div>"]
    assert all(map(is_special, special)) and not any(map(is_special, plain))
    weights = softmaxed(0, 1, 2, 4, 4)
    (found,) = head_statistics(weights, tokens=["[CLS]", "a", "b", "[SEP]"])
    torch.testing.assert_close(found.special, weights[0][..., [0, 3]].sum(-1).mean(-1))
    (numbers,) = head_statistics(weights, tokens=[5, 6, 7, 8])
    assert bool(numbers.special.isnan().all())


@pytest.mark.parametrize(
    "special",
    [[0, -1], torch.tensor([0, 3]), torch.tensor([True, False, False, True])],
    ids=["list", "tensor", "mask"],
)
def test_special_tokens_can_be_given(special):
    weights = softmaxed(0, 2, 2, 4, 4)
    (found,) = head_statistics(weights, special=special)
    torch.testing.assert_close(found.special, weights[..., [0, 3]].sum(-1).mean((0, 2)))


def test_tokens_as_words_numbers_and_from_the_record():
    weights = softmaxed(0, 2, 2, 6, 6)
    words = [list("abcabc"), list("xyzzzx")]
    numbers = torch.tensor([[1, 2, 3, 1, 2, 3], [8, 9, 7, 7, 7, 8]])
    (one,), (two,) = (head_statistics(weights, tokens=t) for t in (words, numbers))
    torch.testing.assert_close(one.duplicate, two.duplicate)
    layer = torch.nn.MultiheadAttention(8, 2)
    x = torch.randn(6, 1, 8)
    trace = regard.trace(layer.eval(), x, x, x).with_tokens(list("abcabc"))
    (told,) = head_statistics(trace)
    (given_,) = head_statistics(trace, tokens=torch.tensor([0, 1, 2, 0, 1, 2]))
    torch.testing.assert_close(told.induction, given_.induction)
    assert told.repeats == 3 and not bool(told.induction.isnan().any())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"window": 0}, RegardError, "window=0, expected a whole number of positions from 1"),
        ({"window": 2.5}, RegardError, "window=2.5"),
        ({"real": torch.ones(5)}, ShapeError, r"real is \(1, 5\), expected \(4,\) or \(2, 4\)"),
        ({"real": torch.ones(3, 4)}, ShapeError, r"real is \(3, 4\)"),
        ({"real": torch.full((4,), 2)}, RegardError, "expected a boolean tensor"),
        ({"tokens": torch.ones(4)}, ShapeError, r"tokens are torch.float32 \(4,\), expected whole"),
        ({"tokens": ["a", "b"]}, ShapeError, r"tokens is \(1, 2\), expected \(4,\) or \(2, 4\)"),
        ({"tokens": [["a"], ["a", "b"]]}, ShapeError, "different numbers of positions"),
        ({"tokens": "text"}, RegardError, "tokens='text', expected words or numbers"),
        ({"special": [4]}, RegardError, "special: position 4 is outside the 4 keys"),
        ({"special": "[CLS]"}, RegardError, r"special='\[CLS\]', expected positions"),
        ({"special": torch.ones(3).bool()}, ShapeError, r"special is \(1, 3\)"),
        ({"part": "encoder"}, RegardError, "chooses from a Trace"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_makes_no_sense_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        head_statistics(softmaxed(0, 2, 1, 4, 4), **options)


@pytest.mark.parametrize("kind", ["signed", "gate"])
def test_weights_that_are_no_shares_are_refused(kind):
    with pytest.raises(UnavailableError, match=f"layer 0: {kind} weights are no shares"):
        head_statistics(torch.randn(1, 2, 3, 3), kind=kind)


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0)])
def test_an_attention_of_nothing_is_refused(shape):
    with pytest.raises(ShapeError, match="layer 0: there is nothing in an attention"):
        head_statistics(torch.zeros(shape))


def test_a_record_without_a_recipe_is_refused():
    layer = torch.nn.MultiheadAttention(8, 2).eval()
    x = torch.randn(6, 1, 8)
    with torch.no_grad(), regard.capture(layer, keep=[regard.Entropy()]) as trace:
        layer(x, x, x)
    with pytest.raises(UnavailableError, match="only reductions were kept"):
        head_statistics(trace)


def test_given_weights_are_left_as_they_are():
    weights = softmaxed(0, 1, 2, 5, 5)
    before = weights.clone()
    head_statistics(Given(weights), tokens=list("abcab"))
    assert torch.equal(weights, before)
