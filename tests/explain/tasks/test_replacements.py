"""Each way to take positions out, against calling the model by hand."""

import pytest
import torch
from explain_models import CLS, padded, untrained
from transformers import BertConfig, BertForSequenceClassification

from regard import RegardError, explain


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    return BertForSequenceClassification(config).double().eval()


@pytest.fixture
def removed():
    data = padded()
    some = torch.rand(5, 13, generator=torch.Generator().manual_seed(3)) < 0.5
    return some & (data["attention_mask"] == 1) & (data["input_ids"] != CLS)


def shares(model, task, **inputs):
    with torch.no_grad():
        return model(**inputs).logits.softmax(-1).gather(1, task.fixed[:, None])[:, 0]


def test_mask_token(bert, removed):
    data = padded()
    task = explain.Task(bert, data, special=[CLS])
    by_hand = data["input_ids"].clone()
    by_hand[removed] = 22
    want = shares(bert, task, input_ids=by_hand, attention_mask=data["attention_mask"])
    assert torch.equal(task.scores(removed, explain.MaskToken(22)), want)


def test_out_of_attention(bert, removed):
    data = padded()
    task = explain.Task(bert, data, special=[CLS])
    mask = data["attention_mask"] * ~removed
    want = shares(bert, task, input_ids=data["input_ids"], attention_mask=mask)
    assert torch.equal(task.scores(removed, explain.AttentionMask()), want)
    assert isinstance(task.usual_replacement(), explain.AttentionMask)


@pytest.mark.parametrize("zero", [False, True])
def test_other_embeddings_are_those_of_inputs_embeds(bert, removed, zero):
    data = padded()
    task = explain.Task(bert, data, special=[CLS])
    table = bert.get_input_embeddings().weight.detach()
    held = table[data["input_ids"]]
    vector = torch.zeros(16).double() if zero else held[task.removable].mean(0)
    held[removed] = vector
    want = shares(bert, task, inputs_embeds=held, attention_mask=data["attention_mask"])
    way = explain.ZeroEmbedding() if zero else explain.MeanEmbedding()
    torch.testing.assert_close(task.scores(removed, way), want, rtol=0, atol=1e-12)
    given = explain.MeanEmbedding(vector)
    torch.testing.assert_close(task.scores(removed, given), want, rtol=0, atol=1e-12)


def test_embeddings_as_inputs(bert, removed):
    data = padded()
    held = bert.get_input_embeddings().weight.detach()[data["input_ids"]]
    by_ids = explain.Task(bert, data, special=[CLS])
    features = {"inputs_embeds": held, "attention_mask": data["attention_mask"]}
    direct = explain.Task(bert, features, removable=by_ids.removable)
    for way in (explain.AttentionMask(), explain.MeanEmbedding(), explain.ZeroEmbedding()):
        torch.testing.assert_close(
            direct.scores(removed, way), by_ids.scores(removed, way), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("features", [False, True])
def test_deletion_is_the_shorter_text(bert, removed, features):
    data = padded()
    task = explain.Task(bert, data, special=[CLS])
    held = bert.get_input_embeddings().weight.detach()[data["input_ids"]]
    if features:
        inputs = {"inputs_embeds": held, "attention_mask": data["attention_mask"]}
        task = explain.Task(bert, inputs, removable=task.removable)
    got = task.scores(removed, explain.Deletion())
    for example in range(5):
        kept = (data["attention_mask"][example] == 1) & ~removed[example]
        with torch.no_grad():
            alone = bert(input_ids=data["input_ids"][example, kept][None]).logits.softmax(-1)
        want = alone[0, task.fixed[example]]
        torch.testing.assert_close(got[example], want, rtol=0, atol=1e-12)


def test_deletion_without_a_mask_needs_equal_lengths():
    task = explain.Task(lambda x: x.sum(1)[:, :2], torch.randn(2, 4, 3))
    even = torch.tensor([[True, False, False, True], [False, True, True, False]])
    assert task.scores(even, explain.Deletion()).shape == (2,)
    with pytest.raises(RegardError, match="attention_mask of ones"):
        task.scores(torch.eye(4)[:2] + torch.eye(4)[2:] * torch.tensor([[0], [1]]) > 0,
                    explain.Deletion())  # fmt: skip
    with pytest.raises(RegardError, match="no position at all"):
        task.scores(torch.ones(2, 4) > 0, explain.Deletion())


def test_one_of_your_own(bert, removed):
    def reversed_ids(inputs, removed):
        return inputs.with_ids(torch.where(removed, inputs.ids.flip(1), inputs.ids))

    data = padded()
    task = explain.Task(bert, data, special=[CLS])
    by_hand = torch.where(removed, data["input_ids"].flip(1), data["input_ids"])
    want = shares(bert, task, input_ids=by_hand, attention_mask=data["attention_mask"])
    assert torch.equal(task.scores(removed, reversed_ids), want)


def test_without_a_mask_the_mean_embedding_is_usual_and_attention_cannot_be_shut(removed):
    model = untrained()
    task = explain.Task(lambda ids: model(ids, torch.ones_like(ids)), padded()["input_ids"])
    assert isinstance(task.usual_replacement(), explain.MeanEmbedding)
    with pytest.raises(RegardError, match="give one that lets all through"):
        task.scores(removed, explain.AttentionMask())


def test_attention_over_nothing_is_said(bert):
    data = padded()
    model = untrained()
    task = explain.Task(model, data, removable=data["attention_mask"] == 1)
    assert isinstance(task.usual_replacement(), explain.MeanEmbedding), "nothing would be left"
    with pytest.raises(RegardError, match=r"out of attention\) has the score nan"):
        task.scores(task.removable, explain.AttentionMask())


def test_the_mean_is_over_all_batches():
    from regard.explain.tasks.task import tasks_of

    data, model = padded(), untrained()
    whole = explain.Task(model, data, special=[CLS]).inputs.mean
    for tasks in (
        tasks_of(model, data, special=[CLS], batch_size=2),
        tasks_of(
            model, [{k: v[i : i + 2] for k, v in data.items()} for i in (0, 2, 4)], special=[CLS]
        ),
    ):
        assert len(tasks) == 3
        for task in tasks:
            torch.testing.assert_close(task.inputs.mean, whole, rtol=0, atol=1e-12)


def test_forbidden_is_out_of_attention_for_all_others(bert, removed):
    """Read at a token that is never removed, both are the same; nothing else has changed."""
    data = padded()
    task = explain.Task(bert, data, special=[CLS])
    forbidden = task.scores(removed, explain.Forbid())
    torch.testing.assert_close(forbidden, task.scores(removed, explain.AttentionMask()))
    assert not torch.allclose(forbidden, task.original)
    assert torch.equal(task.scores(removed & False, explain.Forbid()), task.original)


def test_forbidden_needs_no_mask_and_takes_layers(bert, removed):
    ids = padded()["input_ids"]
    task = explain.Task(lambda ids: bert(input_ids=ids).logits, ids, special=[CLS])
    everywhere = task.scores(removed, explain.Forbid())
    last = task.scores(removed, explain.Forbid(where="*layer.1.*"))
    want = shares(bert, task, input_ids=ids, attention_mask=(~removed).long())
    torch.testing.assert_close(everywhere, want)
    assert not torch.allclose(last, everywhere) and not torch.allclose(last, task.original)


def test_forbidden_where_nothing_attends(bert, removed):
    task = explain.Task(bert, padded(), special=[CLS])
    with pytest.raises(RegardError, match=r"allow\(.*where='layers' matches none of 2 sites"):
        task.scores(removed, explain.Forbid(where="layers"))
    linear = torch.nn.Sequential(torch.nn.Embedding(23, 2), torch.nn.Flatten(1))
    plain = explain.Task(linear, padded()["input_ids"], special=[CLS])
    with pytest.raises(RegardError, match="the model has no attention that can be seen"):
        plain.scores(removed, explain.Forbid())
