"""Gradients by the embeddings, against differences; and Captum's, where it is installed."""

import pytest
import torch
from captum import attr
from explain_models import CLS, padded, untrained
from torch import nn

from regard import RegardError, explain


@pytest.fixture(scope="module")
def model():
    return untrained().eval()


@pytest.fixture(scope="module")
def task(model):
    return explain.Task(model, padded(), special=[CLS])


class Embedded(nn.Module):
    """The rest of the classifier, over embeddings."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, embeddings, attention_mask):
        hidden = embeddings + self.model.places[: embeddings.shape[1]]
        hidden = self.model.encoder(hidden, src_key_padding_mask=attention_mask == 0)
        return self.model.classes(hidden[:, 0])


def test_gradients_are_those_of_the_logit_by_differences(model, task):
    mask = padded()["attention_mask"]
    held = model.embed(padded()["input_ids"]).detach()
    rest = Embedded(model)
    size = 1e-5
    gradient = torch.zeros_like(held)
    with torch.no_grad():
        for position in range(held.shape[1]):
            for feature in range(held.shape[2]):
                sides = []
                for sign in (1, -1):
                    moved = held.clone()
                    moved[:, position, feature] += sign * size
                    sides.append(rest(moved, mask).gather(1, task.fixed[:, None])[:, 0])
                gradient[:, position, feature] = (sides[0] - sides[1]) / (2 * size)
    norm, product = gradient.square().sum(-1).sqrt(), (gradient * held).sum(-1)
    torch.testing.assert_close(explain.gradient_norm(task), norm, rtol=0, atol=1e-7)
    torch.testing.assert_close(explain.input_gradient(task), product, rtol=0, atol=1e-7)
    assert norm.max() > 0.1


def test_integrated_gradients_add_up_to_the_difference():
    torch.manual_seed(0)
    first, second = torch.randn(2, 4, 3).double()
    x, start = torch.randn(2, 5, 4, 3).double()

    def smooth(x):
        return (x * first).sum((1, 2)).tanh() * (x * second).sum((1, 2)).exp()

    task = explain.Task(smooth, x, lambda total: total)
    got = explain.integrated_gradients(task, steps=500, baseline=start)
    want = smooth(x) - smooth(start)
    torch.testing.assert_close(got.sum(1), want, rtol=1e-3, atol=1e-4)
    assert (got.sum(1) - smooth(x)).abs().max() > 0.1, "or the baseline could not be told"


def test_the_baseline_is_zero_where_positions_may_be_removed(model, task):
    held = model.embed(padded()["input_ids"]).detach()
    start = held.masked_fill(task.removable[..., None], 0.0)
    usual = explain.integrated_gradients(task, steps=4)
    same = explain.integrated_gradients(task, steps=4, baseline=start)
    torch.testing.assert_close(usual, same, rtol=0, atol=1e-12)
    assert (usual[~task.removable] == 0).all()
    everywhere = explain.integrated_gradients(task, steps=4, baseline=torch.zeros(8))
    assert (everywhere[:, 0] != 0).all()


def test_integrated_gradients_of_a_linear_model_are_exact():
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    x = torch.randn(2, 4, 3)
    task = explain.Task(lambda x: (x * weight).sum((1, 2)), x, lambda total: total)
    for steps in (1, 7):
        got = explain.integrated_gradients(task, steps=steps)
        torch.testing.assert_close(got, (x * weight).sum(-1))
    torch.testing.assert_close(explain.input_gradient(task), (x * weight).sum(-1))


def test_a_model_that_changes_its_input_in_place():
    x = torch.randn(2, 3, 4)
    kept = x.clone()
    task = explain.Task(lambda x: x.mul_(2).sum((1, 2)), x, lambda total: total)
    torch.testing.assert_close(explain.gradient_norm(task), torch.full((2, 3), 4.0))
    assert torch.equal(x, kept)


def test_what_is_refused(task, without_shape_checks):
    with pytest.raises(RegardError, match="steps=0"):
        explain.integrated_gradients(task, steps=0)
    with pytest.raises(RegardError, match=r"baseline is \(3,\)"):
        explain.integrated_gradients(task, baseline=torch.zeros(3))
    cut = explain.Task(lambda x: x.detach().sum((1, 2)), torch.randn(2, 3, 4), lambda total: total)
    with pytest.raises(RegardError, match="detaches its graph"):
        explain.gradient_norm(cut)


def test_captum_gives_the_same_and_is_accepted(model, task):
    rest, mask = Embedded(model), padded()["attention_mask"]
    held = model.embed(padded()["input_ids"]).detach()
    start = held.masked_fill(task.removable[..., None], 0.0)
    found = attr.IntegratedGradients(rest).attribute(
        held,
        baselines=start,
        target=task.fixed,
        additional_forward_args=(mask,),
        n_steps=16,
        method="riemann_middle",
        internal_batch_size=5,
    )
    assert found.dim() == 3
    ours = explain.integrated_gradients(task, steps=16)
    torch.testing.assert_close(found.sum(-1), ours, rtol=0, atol=1e-8)
    saliency = attr.InputXGradient(rest).attribute(
        held.clone().requires_grad_(), target=task.fixed, additional_forward_args=(mask,)
    )
    torch.testing.assert_close(saliency.sum(-1), explain.input_gradient(task), rtol=0, atol=1e-8)
    result = explain.evaluate(model, padded(), {"captum": found}, special=[CLS])
    same = explain.comprehensiveness(task, ours)
    torch.testing.assert_close(result.of("captum").values["comprehensiveness"], same)
