"""Attention makes a recurrent model say a sequence backwards; without it, it cannot.

The published figures are free-running accuracies at length 10, after 1200 steps of 64 sequences of
length 6 to 10 with GRUs of 48.
"""

from __future__ import annotations

import pytest
from reversal_toy import accuracy, trained

from regard.translate.models.build import names

PUBLISHED = {"dot": 0.97, "qkv": 0.99, "luong-general": 0.98, "bahdanau": 0.97, "tutorial": 0.91}
UNATTENDED = {"none", "encoder-dot", "encoder-qkv"}
OTHERS = set(names()) - UNATTENDED - set(PUBLISHED) - {"transformer"}


def test_attention_reverses_soon_and_no_attention_does_not():
    assert accuracy(trained("luong-general", steps=400, rate=5e-3), 10) > 0.95
    assert accuracy(trained("none", steps=300, rate=5e-3), 10) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(UNATTENDED))
def test_without_attention_about_half(name):
    model = trained(name)
    assert accuracy(model, 10) == pytest.approx(0.51, abs=0.12)
    assert accuracy(model, 14) == pytest.approx(0.25, abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_at_least_the_published_figure(name):
    assert accuracy(trained(name), 10) > PUBLISHED[name] - 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_other_attentions_reverse_too(name):
    assert accuracy(trained(name), 10) > 0.94
