"""bertviz and circuitsvis take what a trace gives, in one call."""

import json
import re

import bertviz
import pytest
import torch
from capture_models import Attention, Stack, words
from circuitsvis import attention as circuitsvis
from torch import nn
from transformers import BertConfig, BertModel

import regard

#: bertviz leaves its script file for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)

TOKENS = ["[CLS]", "see", "that", "girl", "run"]


def attention():
    torch.manual_seed(0)
    model = Stack(Attention(), Attention(False), Attention())
    return regard.trace(model, words(1, len(TOKENS), 8))


def encoder_and_decoder():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True).eval()
    return regard.trace(model, words(1, 5, 8), words(1, 3, 8))


def drawn(page):
    """What bertviz wrote into its page: the attentions by name."""
    found = re.search(r'"attention": (\[\{.*?\}\]), "', page.data)
    assert found
    return {part["name"]: part for part in json.loads(found.group(1))}


@pytest.mark.parametrize("view", [bertviz.head_view, bertviz.model_view])
def test_bertviz(view):
    trace = attention()
    page = view(trace.attentions, TOKENS, html_action="return")
    (part,) = drawn(page).values()
    torch.testing.assert_close(
        torch.tensor(part["attn"]), torch.cat(trace.attentions), atol=1e-6, rtol=1e-6
    )
    assert part["left_text"] == part["right_text"] == TOKENS


@pytest.mark.parametrize("view", [bertviz.head_view, bertviz.model_view])
def test_bertviz_of_an_encoder_and_a_decoder(view):
    trace = encoder_and_decoder()
    page = view(
        encoder_attention=trace.encoder_attentions,
        decoder_attention=trace.decoder_attentions,
        cross_attention=trace.cross_attentions,
        encoder_tokens=TOKENS,
        decoder_tokens=TOKENS[:3],
        html_action="return",
    )
    parts = drawn(page)
    assert set(parts) == {"Encoder", "Decoder", "Cross"}
    torch.testing.assert_close(
        torch.tensor(parts["Cross"]["attn"]),
        torch.cat(trace.cross_attentions),
        atol=1e-6,
        rtol=1e-6,
    )


def test_bertviz_of_a_model_of_transformers():
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertModel(config).eval()
    with torch.no_grad():
        trace = regard.trace(model, torch.tensor([[1, 4, 5, 6, 2]]))
    (part,) = drawn(bertviz.head_view(trace.attentions, TOKENS, html_action="return")).values()
    assert torch.tensor(part["attn"]).shape == (2, 2, 5, 5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda weights: circuitsvis.attention_patterns(tokens=TOKENS, attention=weights),
        lambda weights: circuitsvis.attention_heads(attention=weights, tokens=TOKENS),
    ],
    ids=["patterns", "heads"],
)
def test_circuitsvis(draw):
    trace = attention()
    page = str(draw(trace.attentions[1][0]))
    found = re.search(r'"attention": (\[\[\[.*?\]\]\])', page)
    torch.testing.assert_close(
        torch.tensor(json.loads(found.group(1))), trace[1].weights()[0], atol=1e-6, rtol=1e-6
    )
    assert '"see"' in page


def test_circuitsvis_takes_a_record_in_one_call():
    record = attention()[0]
    assert str(circuitsvis.attention_patterns(TOKENS, record.weights()[0]))


def test_the_tokens_of_a_trace_are_the_viewers():
    trace = attention().with_tokens(TOKENS)
    page = bertviz.head_view(trace.attentions, trace[0].query_tokens, html_action="return")
    (part,) = drawn(page).values()
    assert part["left_text"] == TOKENS
