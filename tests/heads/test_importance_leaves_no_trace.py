"""Head importance leaves the model and the random numbers as they were, in every mode."""

import pytest
import torch
from head_models import LENGTH, WIDTH, MultiHeadOnly, built, encoder, hidden_loss, words
from torch import nn

from regard.heads.importance import head_importance


def state(model):
    """What must be as before."""
    return (
        [module.training for module in model.modules()],
        [parameter.requires_grad for parameter in model.parameters()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [sorted(vars(module)) for module in model.modules()],
        [parameter.clone() for parameter in model.parameters()],
        torch.get_rng_state(),
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    )


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return one == other


@pytest.mark.parametrize("method", ["gradient", "leave_out", "gates"])
@pytest.mark.parametrize("which", ["torch", "bert"])
def test_the_model_is_as_it_was(method, which, monkeypatch):
    from regard.heads import gates

    learn = gates.learn_gates
    monkeypatch.setattr(gates, "learn_gates", lambda *a, **k: learn(*a, **k, steps=2))
    if which == "torch":
        model, inputs = encoder(enable_nested_tensor=False), torch.randn(2, LENGTH, WIDTH).double()
        loss = lambda output, inputs: output[:, 0].square().sum(-1)
    else:
        model, inputs, loss = built("bert"), words("bert"), hidden_loss
    model.train()
    some = next(iter(model.parameters()))
    some.requires_grad_(False)
    last = list(model.parameters())[-1]
    last.grad = torch.ones_like(last)
    next(model.children()).eval()
    before = state(model)
    head_importance(model, [inputs, inputs], loss, method)
    assert same(before, state(model))

    count = 0

    def fails(output, inputs):
        nonlocal count
        count += 1
        if count == 2:
            raise RuntimeError("stop")
        return loss(output, inputs)

    with pytest.raises(RuntimeError, match="stop"):
        head_importance(model, [inputs, inputs], fails, method)
    assert same(before, state(model))


class Noisy(nn.Module):
    """Draws random numbers whatever the mode."""

    def __init__(self):
        super().__init__()
        self.attend = MultiHeadOnly(4)

    def forward(self, x):
        return self.attend(x + torch.randn_like(x))


def test_random_numbers_are_the_same_with_and_without_a_head():
    model = Noisy()
    with torch.no_grad():
        model.attend.attend.out_proj.weight[:, :4] = 0  # head 0 says nothing
    chance = torch.get_rng_state()
    data = [torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))]
    loss = lambda output, inputs: output.square().sum((1, 2))
    head_importance(model, data, loss, "gradient")
    assert torch.equal(chance, torch.get_rng_state())
    found = head_importance(model, data, loss, "leave_out")
    assert torch.equal(chance, torch.get_rng_state())
    assert found.scores[0, 0] == 0 and (found.scores[0, 1:] != 0).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inside_a_block_without_gradients(mode):
    model, inputs = built("bert"), words("bert")
    want = head_importance(model, [inputs], hidden_loss).scores
    with mode():
        got = head_importance(model, [inputs], hidden_loss).scores
    torch.testing.assert_close(got, want)


@pytest.mark.compiled
def test_a_compiled_model():
    model, inputs = built("bert"), words("bert")
    want = head_importance(model, [inputs], hidden_loss)
    compiled = torch.compile(model, backend="eager")
    compiled(**inputs)
    got = head_importance(compiled, [inputs], hidden_loss)
    assert got.names == want.names
    torch.testing.assert_close(got.scores, want.scores)
