"""Dropout by 16 bits an element, beside what dropout must be."""

from __future__ import annotations

import pytest
import torch

from regard.translate.models.dropout import Dropout, dropped


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    x = torch.full((1001, 201), 2.0)
    y = Dropout(rate).train()(x)
    share = (y == 0).double().mean().item()
    assert share == pytest.approx(rate, abs=0.006)
    rounded = round(rate * 65536) / 65536
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 2 / (1 - rounded)))


def test_dropout_gradient_is_its_mask_and_the_seed_decides_it():
    x = torch.randn(7, 5, 3, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = dropped(x, 0.3, True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)
    torch.manual_seed(3)
    torch.testing.assert_close(dropped(x, 0.3, True), y, rtol=0, atol=0)
    assert not torch.equal(dropped(x, 0.3, True), y)


def test_dropout_leaves_alone_what_it_should():
    x = torch.randn(4, 3)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert (Dropout(1.0).train()(x) == 0).all()
    assert Dropout(0.5).train()(torch.empty(0, 3)).shape == (0, 3)
    assert Dropout(0.5).train()(x.bfloat16()).dtype == torch.bfloat16
