"""`training.precision = "64"`: parameters, logits, loss and gradient have all their digits."""

import torch
from toy_training import toy

import regard.translate.training.step as step_module
from regard.translate.training import train
from regard.translate.training.processes import new_fabric
from regard.translate.training.resuming import load_state


def test_logits_loss_and_gradient_are_float64(tmp_path, monkeypatch):
    found = []
    real, clip = step_module.last_cross_entropy, step_module.clip_grad_norm_

    def loss(logits, *others):
        found.append((logits.dtype, real(logits.detach().clone(), *others).dtype))
        return real(logits, *others)

    def gradient(parameters, most):
        found.append(tuple({parameter.grad.dtype for parameter in parameters}))
        assert any(not torch.equal(one.grad, one.grad.float().double()) for one in parameters)
        return clip(parameters, most)

    monkeypatch.setattr(step_module, "last_cross_entropy", loss)
    monkeypatch.setattr(step_module, "clip_grad_norm_", gradient)
    config = toy(tmp_path / "data", 'training.precision="64"', "training.steps=1")
    train(config, tmp_path / "run")
    assert found == [(torch.float64, torch.float64), (torch.float64,)]
    state = load_state(tmp_path / "run" / "last.safetensors")
    assert {one.dtype for one in state.weights.values() if one.is_floating_point()} == {
        torch.float64
    }


def test_the_gradient_is_that_of_plain_torch_in_float64():
    """Through a fabric and without one, to the last digits that float64 has."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 7)
    plain = torch.nn.Linear(5, 7).double()
    plain.load_state_dict(model.state_dict())
    x, target = torch.randn(4, 5, dtype=torch.float64), torch.tensor([1, 2, 3, 4])
    fabric = new_fabric("64")
    wrapped = fabric.setup(model)
    fabric.backward(step_module.last_cross_entropy(wrapped(x), target))
    torch.nn.functional.cross_entropy(plain(x), target, reduction="sum").backward()
    torch.testing.assert_close(model.weight.grad, plain.weight.grad, rtol=1e-13, atol=1e-14)
