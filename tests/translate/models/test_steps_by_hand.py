"""The loops with gradients by hand against the plain loops, and against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from translator_laws import SOURCE, TARGET, model_of, same, sentences, targets

import regard
from regard.translate.models.additive_steps import AdditiveGRU, AdditiveSteps
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.cells import GRU, Cell
from regard.translate.models.decoders import PreviousState
from regard.translate.models.gru_steps import GRUSteps


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gru_gradients_are_finite_differences():
    torch.manual_seed(0)
    inputs = (drawn(3, 2, 12), drawn(12, 4), drawn(12), drawn(2, 4))
    assert torch.autograd.gradcheck(GRUSteps.apply, inputs)


def test_additive_gradients_are_finite_differences():
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True], [True, True, False], [False] * 3])
    gates, first = drawn(2, 3, 12), drawn(3, 4)
    matrices = (drawn(17, 4), drawn(17), drawn(12, 6), drawn(5))
    source = (drawn(3, 3, 5), drawn(3, 3, 6))

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return AdditiveSteps.apply(*inputs[:-1], mask, inputs[-1])

    assert torch.autograd.gradcheck(run, (gates, *matrices, *source, first))


def gradients(outputs: Tensor, module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    loss = (outputs * torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype)).sum()
    return list(torch.autograd.grad(loss, [*module.parameters(), *inputs]))


def test_gru_over_is_step_by_step():
    torch.manual_seed(0)
    cell = GRU(5, 4).double()
    inputs, first = drawn(3, 6, 5), drawn(3, 4)
    fast, (last,) = cell.over(cell.gates(inputs), (first,))
    slow, (expected,) = Cell.over(cell, cell.gates(inputs), (first,))
    same(fast, slow)
    same(last, expected)
    for one, other in zip(
        gradients(fast, cell, inputs, first), gradients(slow, cell, inputs, first)
    ):
        same(one, other)


@pytest.mark.parametrize("layers", [1, 2])
def test_bahdanau_over_is_step_by_step(layers):
    config = ModelConfig("bahdanau", embedding=6, hidden=8, layers=layers, dropout=0.0)
    model = model_of(lambda: build_model(config, SOURCE, TARGET))
    assert type(model.decoder) is AdditiveGRU
    source, mask = sentences()
    embedded = model.embeddings.target(targets())

    def decoded(how: type[PreviousState]) -> tuple[list[Tensor], ...]:
        encoded = model.encode(source, mask)
        made = how.over(model.decoder, encoded, embedded, weights=True)
        assert made.weights is not None
        both = torch.cat([made.features.flatten(), made.weights.flatten()])
        used = [*model.encoder.parameters(), *model.decoder.parameters()]
        generator = torch.Generator().manual_seed(0)
        loss = (both * torch.randn(both.shape, generator=generator, dtype=both.dtype)).sum()
        return [made.features, made.weights], list(torch.autograd.grad(loss, used))

    for fast, slow in zip(decoded(AdditiveGRU), decoded(PreviousState)):
        assert len(fast) == len(slow)
        for one, other in zip(fast, slow):
            same(one, other)


def test_a_sentence_without_a_token_gets_no_weight():
    config = ModelConfig("bahdanau", embedding=6, hidden=8, dropout=0.0)
    model = model_of(lambda: build_model(config, SOURCE, TARGET))
    source, mask = sentences()
    mask = mask & torch.tensor([[True], [False], [True]])
    decoded = model.decode(model.encode(source, mask), targets(), weights=True)
    assert (decoded.weights["cross"][1] == 0).all()
    decoded.features.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_gradients_of_gradients_are_refused():
    cell = GRU(5, 4).double()
    outputs, _ = cell.over(cell.gates(drawn(1, 2, 5)), (drawn(1, 4),))
    (grad,) = torch.autograd.grad(outputs.square().sum(), cell.from_state.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def bahdanau():
    torch.manual_seed(0)
    config = ModelConfig("bahdanau", embedding=6, hidden=8, layers=2)
    model = build_model(config, SOURCE, TARGET).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert type(model.decoder) is AdditiveGRU
    return model


def decoded(model: nn.Module) -> Tensor:
    source, mask = sentences()
    found: Tensor = model.decode(model.encode(source, mask), targets(len(source))).features
    return found


@pytest.mark.parametrize(
    "place", ["look", "look.mechanism", "look.mechanism.to_query", "cells.cells.0.from_state"]
)
def test_a_hook_hears_every_step(place):
    model, heard = bahdanau(), []
    expected = decoded(model)
    module = model.decoder.get_submodule(place)
    handle = module.register_forward_hook(lambda *_: heard.append(1))
    same(decoded(model), expected)
    assert len(heard) >= targets(1).shape[1]
    handle.remove()
    heard.clear()
    assert torch.equal(decoded(model), expected) and not heard


def test_a_hook_that_changes_the_query_changes_the_answer():
    model = bahdanau()
    expected = decoded(model)
    model.decoder.look.mechanism.to_query.register_forward_hook(lambda *given: given[-1] * 0)
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
