"""Decoders over a whole target: equal to their steps, and every call of a module is seen."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from translator_laws import SOURCE, TARGET, model_of, same, sentences, targets

import regard
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.decoders import stepwise


@pytest.mark.parametrize("layers", [1, 2])
def test_bahdanau_over_is_step_by_step(layers):
    config = ModelConfig("bahdanau", embedding=6, hidden=8, layers=layers, dropout=0.0)
    model = model_of(lambda: build_model(config, SOURCE, TARGET))
    source, mask = sentences()
    embedded = model.embeddings.target(targets())

    def decoded(at_once: bool) -> tuple[list[Tensor], ...]:
        inputs = model.encode(source, mask), embedded
        over = model.decoder.over if at_once else partial(stepwise, model.decoder)
        steps = over(*inputs, weights=True)
        (weights,) = steps.weights.values()
        both = torch.cat([steps.features.flatten(), weights.flatten()])
        used = [*model.encoder.parameters(), *model.decoder.parameters()]
        generator = torch.Generator().manual_seed(0)
        loss = (both * torch.randn(both.shape, generator=generator, dtype=both.dtype)).sum()
        return [steps.features, weights], list(torch.autograd.grad(loss, used))

    for whole, stepped in zip(decoded(True), decoded(False)):
        assert len(whole) == len(stepped)
        for value, expected in zip(whole, stepped):
            same(value, expected)


def test_a_sentence_without_a_token_gets_no_weight():
    config = ModelConfig("bahdanau", embedding=6, hidden=8, dropout=0.0)
    model = model_of(lambda: build_model(config, SOURCE, TARGET))
    source, mask = sentences()
    mask = mask & torch.tensor([[True], [False], [True]])
    decoded = model.decode(model.encode(source, mask), targets(), weights=True)
    assert (decoded.weights["cross"][1] == 0).all()
    decoded.features.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def bahdanau():
    torch.manual_seed(0)
    config = ModelConfig("bahdanau", embedding=6, hidden=8, layers=2)
    model = build_model(config, SOURCE, TARGET).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def decoded(model: nn.Module) -> Tensor:
    source, mask = sentences()
    features: Tensor = model.decode(model.encode(source, mask), targets(len(source))).features
    return features


@pytest.mark.parametrize(
    "path", ["look", "look.mechanism", "look.mechanism.to_query", "cells.cells.0.from_state"]
)
def test_a_hook_hears_every_step(path):
    model, heard = bahdanau(), []
    expected = decoded(model)
    module = model.decoder.get_submodule(path)
    module.register_forward_hook(lambda *_: heard.append(1))
    same(decoded(model), expected)
    assert len(heard) >= targets(1).shape[1]


def test_a_hook_that_changes_the_query_changes_the_answer():
    model = bahdanau()
    expected = decoded(model)
    model.decoder.look.mechanism.to_query.register_forward_hook(lambda *call: call[-1] * 0)
    assert (decoded(model) - expected).abs().max() > 0.01


def test_a_capture_has_the_site_and_its_gradient():
    model = bahdanau()
    with regard.capture(model, attached=True) as trace:
        decoded(model)
    steps = targets(1).shape[1]
    sites = [record.name for record in trace if record.name.startswith("decoder")]
    assert len(sites) == steps
    assert {name.partition("#")[0] for name in sites} == {"decoder.look.mechanism"}
    assert all(trace[name].weights().requires_grad for name in sites[1:])
    with regard.capture(model, grad=True) as trace:
        decoded(model).square().sum().backward()
    for name in sites[1:]:
        assert trace[name].gradient().isfinite().all()
