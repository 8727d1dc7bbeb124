"""Scores of a model with positions removed, and what is left of the asking: nothing."""

import copy
import functools

import pytest
import torch
from explain_models import CLS, Classifier, padded, untrained
from torch import nn
from torch.nn.modules import module as hooks

from regard import RegardError, explain
from regard.explain.aggregations import observe


def task_of(model=None, data=None, target=None, **options):
    options = {"special": [CLS], **options}
    return explain.Task(model or untrained(), data or padded(), target, **options)


def test_the_default_target_is_the_predicted_class_and_stays_so():
    model, data = untrained().eval(), padded()
    task = task_of(model, data)
    with torch.no_grad():
        shares = model(**data).softmax(-1)
        masked = {**data, "attention_mask": torch.zeros_like(data["attention_mask"])}
        masked["attention_mask"][:, 0] = 1
        without = model(**masked).softmax(-1)
    assert torch.equal(task.fixed, shares.argmax(-1))
    torch.testing.assert_close(task.original, shares.amax(-1), rtol=0, atol=1e-12)
    kept = without.gather(1, shares.argmax(-1, keepdim=True))[:, 0]
    assert (without.argmax(-1) != shares.argmax(-1)).any(), "or this test cannot tell"
    torch.testing.assert_close(task.scores(task.removable), kept, rtol=0, atol=1e-12)


def test_targets():
    model, data = untrained().eval(), padded()
    with torch.no_grad():
        logits = model(**data)
    labels = torch.tensor([0, 1, 0, 1, 1])
    for target, want in (
        (1, logits.softmax(-1)[:, 1]),
        (labels, logits.softmax(-1)[range(5), labels]),
        (lambda output: output[:, 0] - output[:, 1], logits[:, 0] - logits[:, 1]),
        (explain.Similarity(), torch.ones(5).double()),
        (explain.Similarity(logits.flip(0)), torch.cosine_similarity(logits, logits.flip(0))),
    ):
        torch.testing.assert_close(task_of(target=target).original, want, rtol=0, atol=1e-12)


def test_outputs_with_names_and_positions():
    logits = torch.randn(2, 4, 3).double()
    for output in ({"logits": logits}, (logits, "more")):
        task = explain.Task(
            lambda x, output=output: output, torch.ones(2, 4, 1), explain.Class(position=-1)
        )
        torch.testing.assert_close(task.original, logits[:, -1].softmax(-1).amax(-1))


def test_probabilities_must_be_called_so():
    shares = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
    with pytest.raises(RegardError, match="probabilities=True"):
        explain.Task(lambda x: shares, torch.ones(2, 3, 1))
    task = explain.Task(lambda x: shares, torch.ones(2, 3, 1), explain.Class(1, probabilities=True))
    assert task.original.tolist() == pytest.approx([0.1, 0.7])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (7, "classes from 0 to 1"),
        ("first", "expected None"),
        (lambda output: output, r"\(5, 2\), expected a tensor"),
        (lambda output: output[:2, 0], r"\(2,\), expected \(5,\)"),
        (torch.zeros(5, 1).long(), "expected a number or"),
        (explain.Similarity(torch.zeros(3, 2)), r"expected \(5, 2\)"),
    ],
)
def test_targets_that_are_refused(target, message, without_shape_checks):
    with pytest.raises(RegardError, match=message):
        task_of(target=target)


def test_the_size_of_batches_changes_nothing_and_alike_removals_run_once():
    calls = []
    model = untrained()

    def counted(**inputs):
        calls.append(len(inputs["input_ids"]))
        return model(**inputs)

    generator = torch.Generator().manual_seed(0)
    examples = torch.arange(5).repeat(4)
    scores = []
    for size in (3, 100):
        task = task_of(counted, batch_size=size)
        removed = torch.rand(10, 13, generator=generator.manual_seed(0)) < 0.4
        removed = torch.cat([removed, removed]) & task.removable[examples]
        calls.clear()
        scores.append(task.scores(removed, examples=examples))
        assert sum(calls) == 10 and max(calls) <= size
    torch.testing.assert_close(*scores, rtol=0, atol=1e-12)


def test_training_mode_random_state_gradients_and_hooks_are_as_before():
    model = untrained().train()
    model.encoder.layers[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    task = task_of(model)
    first = task.scores(task.removable, explain.MeanEmbedding())
    observe(task)
    explain.integrated_gradients(task, steps=2)
    assert torch.equal(first, task.scores(task.removable, explain.MeanEmbedding())), "no dropout"
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_no_hooks(model)


def assert_no_hooks(model):
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_nothing_is_left_after_an_exception():
    model = untrained().train()
    task = task_of(model)

    def failing(inputs, removed):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        task.scores(task.removable, failing)
    model.classes.weight.data[:] = torch.nan
    with pytest.raises(RegardError, match="has the score nan"):
        task.scores(task.removable, explain.MeanEmbedding())
    model.classes = nn.Linear(3, 2)  # of the wrong size
    with pytest.raises(RuntimeError):
        task.scores(task.removable, explain.MeanEmbedding())
    assert model.training and model.encoder.training
    assert_no_hooks(model)


def test_a_function_around_a_model_is_run_in_eval_mode_too():
    class Holder:
        model = untrained().train()

    holder = Holder()
    want = task_of(holder.model)
    for function in (
        lambda **inputs: holder.model(**inputs),
        functools.partial(holder.model),
        holder.model.forward,
    ):
        task = task_of(function)
        torch.testing.assert_close(task.original, want.original, rtol=0, atol=0)
        assert task.modules == [holder.model]
        assert all(module.training for module in holder.model.modules())


def test_modules_that_a_function_calls_one_by_one():
    model = untrained().train()

    def parts(input_ids, attention_mask):
        hidden = model.embed(input_ids) + model.places
        return model.classes(model.encoder(hidden, None, attention_mask == 0)[:, 0])

    task = task_of(parts)
    torch.testing.assert_close(task.original, task_of(model).original)
    assert task.modules == [model.embed, model.encoder, model.classes]
    assert all(module.training for module in model.modules())


def test_the_embedding_is_found_and_can_be_named():
    model, data = untrained(), padded()
    task = task_of(model, data)
    assert task.embedding is model.embed
    torch.testing.assert_close(task.inputs.embeddings, model.embed(data["input_ids"]).detach())
    named = task_of(model, data, embedding=model.embed)
    torch.testing.assert_close(named.inputs.mean, task.inputs.mean)
    with pytest.raises(RegardError, match="Linear did not run"):
        task_of(model, data, embedding=nn.Linear(2, 2))


def test_no_embedding_is_said_when_it_is_needed():
    table = torch.randn(30, 2)
    task = explain.Task(lambda ids: table[ids].sum(1), torch.tensor([[3, 4, 5]]))
    assert task.embedding is None
    with pytest.raises(RegardError, match=r"embedding=model\.embed"):
        task.scores(task.removable, explain.MeanEmbedding())


def test_any_module_can_stand_for_the_positions():
    """As in a vision transformer, whose patches are made inside."""
    torch.manual_seed(0)
    patches = nn.Sequential(nn.Conv2d(1, 6, 2, stride=2), nn.Flatten(2))

    class Patched(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = copy.deepcopy(patches)
            self.turn = nn.Identity()
            self.classes = nn.Linear(6, 2)

        def forward(self, pictures):
            return self.classes(self.turn(self.cut(pictures).mT).relu().mean(1))

    model, pictures = Patched(), torch.randn(3, 1, 4, 4)
    task = explain.Task(model, pictures, 0, embedding=model.turn)
    assert task.removable.shape == (3, 4)
    zeroed = task.scores(task.removable, explain.ZeroEmbedding())
    want = model.classes(torch.zeros(6)).softmax(-1)[0].detach()
    torch.testing.assert_close(zeroed, want.double().expand(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    task = task_of(untrained().to(dtype))
    true = task_of(untrained())
    loose = 0.1 if dtype == torch.bfloat16 else 1e-4
    assert task.original.dtype == torch.float64
    for replacement in (explain.AttentionMask(), explain.MeanEmbedding()):
        got, want = (one.scores(one.removable, replacement) for one in (task, true))
        torch.testing.assert_close(got, want, rtol=0, atol=loose)


def test_an_example_of_padding_alone_has_no_value():
    data = padded()
    data["attention_mask"][2] = 0
    data["attention_mask"][2, 0] = 1
    task = task_of(Classifier(8, 2), data)
    value = explain.comprehensiveness(task, torch.rand(5, 13))
    assert value.isnan().tolist() == [False, False, True, False, False]


def test_inside_inference_mode():
    model, data = untrained(), padded()
    with torch.inference_mode():
        task = task_of(model, data)
        inside = explain.gradient_norm(task)
    torch.testing.assert_close(inside, explain.gradient_norm(task_of(model, data)))
