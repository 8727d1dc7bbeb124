"""Attention that is no softmax, recorded on request: `capture(rules=...)`."""

import pytest
import torch
from capture_models import words
from torch import nn

import regard


class Unnormalised(nn.Module):
    """Two heads, whose weights are a function of the scores, place by place."""

    def __init__(self, weigh):
        super().__init__()
        self.project, self.weigh = nn.Linear(8, 24), weigh

    def forward(self, x):
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, -1)
        )
        self.weights = self.weigh(query @ key.mT / 2)
        return (self.weights @ value).transpose(1, 2).flatten(2)


def by_hand(scores):
    return 1 / (1 + torch.exp(-scores))


SPELLINGS = {
    "torch.sigmoid": (torch.sigmoid, "sigmoid"),
    "sigmoid by hand": (by_hand, "reciprocal"),
    "sigmoid by hand, reciprocal": (lambda s: (1 + (-s).exp()).reciprocal(), "reciprocal"),
    "relu": (torch.relu, "relu"),
}


@pytest.mark.parametrize("rules", ["any", None], ids=["any", "by name"])
@pytest.mark.parametrize(("weigh", "rule"), SPELLINGS.values(), ids=SPELLINGS)
def test_what_stands_between_the_products(weigh, rule, rules):
    model, x = Unnormalised(weigh), words(2, 5, 8)
    expected = model(x)
    with regard.capture(model, rules=rules or rule) as trace:
        assert torch.equal(model(x), expected)
    (record,) = trace
    assert record.kind == "signed" and record.attends == "self" and trace.notes == []
    torch.testing.assert_close(record.weights(), model.weights)


@pytest.mark.parametrize(("weigh", "rule"), SPELLINGS.values(), ids=SPELLINGS)
def test_a_note_has_the_rule(weigh, rule):
    model = Unnormalised(weigh)
    with (
        pytest.warns(regard.CaptureWarning, match=rf"capture\(rules='{rule}'\) records it"),
        regard.capture(model) as trace,
    ):
        model(words(2, 5, 8))
    assert len(trace) == 0


@pytest.mark.parametrize("rules", [(), "any"], ids=["default", "any"])
def test_a_sigmoid_by_hand_that_is_normalised_is_a_distribution(rules):
    def weigh(scores):
        gates = by_hand(scores)
        return gates / gates.sum(-1, keepdim=True)

    model = Unnormalised(weigh)
    with regard.capture(model, rules=rules) as trace:
        model(words(2, 5, 8))
    (record,) = trace
    assert record.kind == "distribution"
    torch.testing.assert_close(record.weights(), model.weights)


def test_a_statistic_that_such_weights_do_not_have():
    model = Unnormalised(torch.sigmoid)
    with regard.capture(model, rules="sigmoid") as trace:
        model(words(2, 5, 8))
    said = (
        "Unnormalised: Entropy: signed weights have no logarithm, as they may be negative"
        r".*rules=.*take weights\(\)"
    )
    with pytest.raises(regard.errors.UnavailableError, match=said):
        trace.reduce(regard.HeadMean(), regard.Entropy())
