"""Gradients through edited attention, against eager float64 twins."""

from __future__ import annotations

import pytest
import torch
from dense_edit import Spec, dense_edit
from families import FAMILIES, Family
from test_edit_families import hidden, noise
from torch import Tensor, nn

import regard
from regard.editing import EditWarning, bias, forbid, replace, scale

SPECS = [
    Spec("bias", noise(4)),
    Spec("scale", 0.7, heads=[1]),
    Spec("forbid", queries=[3, 4, 5], keys=[1]),
    Spec("replace", "uniform", queries=[2], heads=[0]),
    Spec("multiply", 0.5, keys=[2], heads=[3], renormalise=False),
    Spec("scale_values", 0.5, keys=[0]),
]


def loss_of(outputs: list[Tensor]) -> Tensor:
    """A weighted sum, in which no gradient cancels."""
    total = torch.zeros((), dtype=outputs[0].dtype)
    for output in outputs:
        weights = torch.arange(output.numel(), dtype=torch.float64).sin().to(output.dtype)
        total = total + (output * weights.view_as(output)).sum()
    return total


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor], bound: float = 3e-5) -> None:
    assert ours.keys() == theirs.keys()
    scale = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        error = float((ours[name] - gradient).abs().max()) / max(
            float(gradient.abs().max()), 1e-2 * scale
        )
        assert error < bound, (name, error)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_of_all_parameters(name: str, implementation: str) -> None:
    family = FAMILIES[name]
    model, twin = family.build(implementation), family.build("eager").double()
    inputs = family.inputs()
    with regard.edit(model, *[spec.change() for spec in SPECS]):
        loss_of(hidden(model(**inputs))).backward()
    with dense_edit(twin, SPECS):
        loss_of(hidden(twin(**inputs))).backward()
    close(gradients(model), gradients(twin))


def test_of_inputs_and_of_a_bias() -> None:
    family = FAMILIES["llama"]
    model, twin = family.build("sdpa"), family.build("eager").double()
    states = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(0))
    added = noise(4)[..., :6, :6].clone()
    ours = [tensor.clone().requires_grad_() for tensor in (states, added)]
    theirs = [tensor.double().requires_grad_() for tensor in (states, added)]
    with regard.edit(model, bias(ours[1])):
        loss_of(hidden(model(inputs_embeds=ours[0]))).backward()
    with dense_edit(twin, [Spec("bias", theirs[1])]):
        loss_of(hidden(twin(inputs_embeds=theirs[0]))).backward()
    for mine, other in zip(ours, theirs):
        assert (mine.grad - other.grad).abs().max() < 3e-5 * other.grad.abs().max()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_finite_where_nothing_is_left(implementation: str) -> None:
    model = FAMILIES["bert"].build(implementation)
    inputs = FAMILIES["bert"].inputs()
    with regard.edit(model, forbid(queries=[1], heads=[2])), regard.capture(model) as trace:
        loss_of(hidden(model(**inputs))).backward()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(model).values())
    for record in trace:
        assert not record.weights()[:, 2, 1].any()


def training(family: Family, implementation: str) -> nn.Module:
    model = family.build(implementation)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.1
    return model.train()


def test_with_dropout() -> None:
    """The same noise falls on the changed weights."""
    family = FAMILIES["bert"]
    model, twin = training(family, "eager"), training(family, "eager")
    inputs, plain = family.inputs(), []
    for each, around in (
        (model, regard.edit(model, *[spec.change() for spec in SPECS])),
        (twin, dense_edit(twin, SPECS)),
    ):
        with around:
            torch.manual_seed(5)
            outputs = hidden(each(**inputs))
            plain.append(outputs[0])
            loss_of(outputs).backward()
    assert (plain[0] - plain[1]).abs().max() < 1e-5
    close(gradients(model), gradients(twin), 1e-4)


def test_with_dropout_in_the_fused_operator() -> None:
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind()
    allowed = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    allowed[..., 1] = False

    class Fused(nn.Module):
        def forward(self, mask=None):
            return nn.functional.scaled_dot_product_attention(query, key, value, mask, 0.5)

    model = Fused()
    torch.manual_seed(3)
    truth = model(allowed)
    torch.manual_seed(3)
    with regard.edit(model, forbid(keys=1)):
        output = model()
    torch.testing.assert_close(output, truth)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_under_autocast(implementation: str) -> None:
    family = FAMILIES["llama"]
    model, twin = family.build(implementation), family.build("eager").double()
    inputs = family.inputs()
    specs = [SPECS[1], SPECS[2]]
    with (
        regard.edit(model, *[spec.change() for spec in specs]),
        torch.autocast("cpu", torch.bfloat16),
    ):
        output = hidden(model(**inputs))[0]
        loss_of([output.float()]).backward()
    with dense_edit(twin, specs):
        truth = hidden(twin(**inputs))[0]
        loss_of([truth]).backward()
    assert (output - truth).abs().mean() < 0.05
    ours, theirs = gradients(model), gradients(twin)
    norms = [sum(float((g - theirs[n]).norm() ** 2) for n, g in ours.items())]
    norms.append(sum(float(g.norm() ** 2) for g in theirs.values()))
    assert norms[0] < 0.05 * norms[1]


CHANGES = [replace("uniform", heads=0), scale(0.5), forbid(queries=3, keys=[0, 1])]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(implementation: str, reentrant: bool) -> None:
    family = FAMILIES["llama"]
    model, twin = (family.build(implementation).train() for _ in range(2))
    inputs = {"inputs_embeds": torch.randn(2, 8, 64).requires_grad_()}
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for each in (model, twin):
        with regard.edit(each, *CHANGES):
            loss_of(hidden(each(**inputs, use_cache=False))).backward()
    close(gradients(model), gradients(twin), 1e-6)


def test_checkpointing_with_the_backward_pass_outside_is_noticed() -> None:
    model = FAMILIES["llama"].build("sdpa").train()
    inputs = {"inputs_embeds": torch.randn(2, 8, 64).requires_grad_()}
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with (
        pytest.warns(EditWarning, match="call backward\\(\\) inside the block"),
        regard.edit(model, *CHANGES),
    ):
        model(**inputs, use_cache=False)
