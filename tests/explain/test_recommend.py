"""Aggregations that are recommended: how they are read, which cannot be had, and what is left."""

import pytest
import torch
from explain_models import CLS, LABELS, padded, same, sentences, untrained
from torch import nn
from torch.nn.modules import module as hooks
from transformers import T5Config, T5ForConditionalGeneration

import regard
from regard import RegardError, explain
from regard.explain.aggregations import aggregated, observe


def test_a_model_without_attention_is_refused(additive):
    model, ids, _ = additive
    with (
        pytest.warns(regard.CaptureWarning, match="no attention was seen"),
        pytest.raises(RegardError, match="no attention was captured"),
    ):
        explain.recommend(model, ids, same, show=False)


def test_what_cannot_be_had_is_named_with_the_reason():
    """Ids looked up without a module: no gradient, and two modules behind the function."""
    table, attention, classes = torch.randn(30, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 2)

    def model(ids):
        x = table[ids].transpose(0, 1)
        return classes(attention(x, x, x, need_weights=False)[0].mean(0))

    ids = torch.randint(0, 30, (6, 5), generator=torch.Generator().manual_seed(0))
    with pytest.raises(RegardError, match="token=None for the mean over all"):
        explain.recommend(model, ids, show=False)
    way = explain.MaskToken(0)
    result = explain.recommend(model, ids, token=None, replacements=way, show=False)
    assert set(result.methods) == {"mean attention", "last layer", "rollout", "flow", "random"}
    reasons = result.unavailable
    assert "there is no gradient" in reasons["relevance"]
    assert "the function calls several" in reasons["ALTI"]
    assert "no embedding was found" in reasons["gradient norm"]
    assert "not computed: relevance: " in str(result)


def test_an_encoder_decoder_model_is_refused():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    ids = torch.randint(2, 50, (3, 7))
    data = {"input_ids": ids, "decoder_input_ids": torch.zeros(3, 1).long()}
    options = {"special": [], "show": False}
    with pytest.raises(RegardError, match="not over their positions"):
        explain.recommend(model, data, explain.Class(position=-1), **options)
    with pytest.raises(RegardError, match="no aggregation is available on this model"):
        explain.recommend(model, data, explain.Class(position=-1), token=None, **options)
    own = {"mine": torch.rand(3, 7)}
    result = explain.evaluate(model, data, own, explain.Class(position=-1), special=[])
    assert "integrated gradients" in result.methods and not result.unavailable


def test_a_model_that_cuts_its_graph_has_attention_all_the_same():
    model = untrained()

    @torch.no_grad()
    def cut(**inputs):
        return model(**inputs)

    result = explain.recommend(cut, padded(), token=0, special=[CLS], show=False)
    assert {"rollout", "ALTI", "random"} <= set(result.methods)
    assert "detaches its graph" in result.unavailable["gradient norm"]
    assert "there is no gradient" in result.unavailable["relevance"]


def test_the_rows_that_are_read():
    """At the first token; at the last real one; over all."""
    data = padded()
    model = untrained()
    task = explain.Task(model, data, special=[CLS])
    first = torch.zeros(5, 13).double()
    first[:, 0] = 1.0
    assert torch.equal(observe(task, "auto").read, first)
    assert torch.equal(observe(task, 0).read, first)
    lengths = data["attention_mask"].sum(1)
    last = observe(task, "last").read
    assert torch.equal(last.argmax(1), lengths - 1) and (last.sum(1) == 1).all()
    even = data["attention_mask"].double() / lengths[:, None]
    torch.testing.assert_close(observe(task, None).read, even)

    def pooled(input_ids, attention_mask):
        hidden = model.embed(input_ids) + model.places
        hidden = model.encoder(hidden, src_key_padding_mask=attention_mask == 0)
        real = attention_mask[..., None]
        return model.classes((hidden * real).sum(1) / real.sum(1))

    mean = explain.Task(pooled, data, special=[CLS])
    torch.testing.assert_close(observe(mean, "auto").read, even)
    with pytest.raises(RegardError, match="token=13"):
        observe(task, 13)


def test_attributions_are_those_of_the_aggregations(additive):
    model, data = untrained(), padded()
    task = explain.Task(model, data, special=[CLS])
    found, reasons = aggregated(task)
    assert not reasons
    seen = observe(task)
    places = torch.arange(5)
    for name, want in {
        "mean attention": regard.mean_attention(seen.trace, token=0),
        "last layer": regard.mean_attention(seen.trace, token=0, layers="last"),
        "rollout": regard.rollout(seen.trace, token=0),
        "relevance": regard.relevance(seen.trace, token=0),
        "gradient × attention": regard.gradient_attention(seen.trace),
    }.items():
        torch.testing.assert_close(found[name], want, rtol=0, atol=1e-10)
    ends, _ = aggregated(task, "last")
    lengths = data["attention_mask"].sum(1)
    want = regard.rollout(seen.trace)[places, lengths - 1]
    torch.testing.assert_close(ends["rollout"], want, rtol=0, atol=1e-10)
    over, why = aggregated(task, None)
    real = data["attention_mask"].double()
    want = torch.einsum("eq,eqk->ek", real / real.sum(1, keepdim=True), regard.rollout(seen.trace))
    torch.testing.assert_close(over["rollout"], want, rtol=0, atol=1e-10)
    assert "the same as mean attention" in why["received attention"]


def test_gradients_in_relevance_are_those_of_the_logit():
    """Written out: the gradient of the logit by each weight, from a model that returns weights."""
    torch.manual_seed(0)

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, 4)
            self.maps = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.classes = nn.Linear(4, 3)

        def forward(self, ids):
            x = self.embed(ids)
            query, key, value = (map(x) for map in self.maps)
            self.weights = (query @ key.mT).softmax(-1)
            return self.classes((x + self.weights @ value)[:, 0])

    model = Small().double()
    ids = torch.tensor([[1, 5, 7, 2], [3, 3, 8, 0]])
    found, _ = aggregated(explain.Task(model, ids))
    logits = model(ids)
    (gradient,) = torch.autograd.grad(logits.amax(-1).sum(), model.weights)
    product = (gradient * model.weights).clamp_min(0)
    want = torch.eye(4).double()[0] + product[:, 0]
    torch.testing.assert_close(found["relevance"], want.detach(), rtol=0, atol=1e-8)


def test_recommend_leaves_nothing_behind(capsys):
    model = untrained().train()
    model.requires_grad_(False)
    state = torch.get_rng_state()
    ids, _, _ = sentences(6, torch.Generator().manual_seed(0))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    extra = {"label tokens": torch.isin(ids, torch.tensor(LABELS)).double()}
    result = explain.recommend(model, data, special=[CLS], attributions=extra, show=False)
    assert capsys.readouterr().out == "" and "label tokens" in result.methods
    assert "relevance" in result.methods, "frozen parameters do not matter"
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_bfloat16_and_padding():
    model = untrained().to(torch.bfloat16)
    result = explain.recommend(model, padded(), special=[CLS], show=False)
    assert not result.unavailable or set(result.unavailable) <= {"norm attention", "ALTI"}
    for name in result.methods:
        assert not torch.tensor(result.interval(name)).isnan().any()
