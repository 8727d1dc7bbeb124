"""Eval mode within a block."""

import pytest
import torch
from torch import nn

from regard.anatomy.modes import evaluation_mode


def modes(model):
    return [module.training for module in model.modules()]


def mixed():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Identity()))
    model[1].eval()
    model[1][0].train()
    return model


def test_every_module_has_its_own_mode_back():
    model = mixed()
    before = modes(model)
    with evaluation_mode(model):
        assert not any(modes(model))
        model[1].train()
    assert modes(model) == before


def test_so_it_has_after_an_error():
    model = mixed()
    before = modes(model)
    with pytest.raises(RuntimeError), evaluation_mode(model):
        raise RuntimeError
    assert modes(model) == before


def test_modules_of_a_function_change_as_they_are_called():
    first, second, other = mixed(), mixed(), mixed()
    before = modes(first)

    def function(x):
        return second(first(x))

    with evaluation_mode(function) as called:
        function(torch.zeros(2))
        assert called == [first, second]
        assert not any(modes(first) + modes(second)) and modes(other) == before
    assert modes(first) == modes(second) == before


def test_a_method_brings_its_module():
    model = mixed()
    with evaluation_mode(model.forward) as called:
        assert called == [model] and not any(modes(model))
