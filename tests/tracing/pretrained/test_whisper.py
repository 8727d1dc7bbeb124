"""Whisper tiny.en on three seconds of real speech: cross-attention is an alignment in time."""

import numpy as np
import pytest
import torch
from loaders import whisper_tiny
from transformers import WhisperForConditionalGeneration

import regard

START, WITHOUT_TIMES = 50257, 50362
# " He was not an ill-disposed young man."
SAID = [679, 373, 407, 281, 2801, 12, 6381, 29813, 1862, 582, 13]
ENDS = 2.77  # seconds of speech in the file; the features are padded to thirty
FRAMES = 50  # encoder positions a second


@pytest.fixture(scope="module")
def model():
    return whisper_tiny()[0]


@pytest.fixture(scope="module")
def spoken():
    return whisper_tiny()[1]


def given(spoken):
    words = torch.tensor([[START, WITHOUT_TIMES, *SAID]])
    return {"input_features": spoken, "decoder_input_ids": words}


def test_the_model_hears_the_sentence(model, spoken):
    states, heard = model.model.encoder(spoken), [START, WITHOUT_TIMES]
    with torch.no_grad():
        for _ in SAID:
            words = torch.tensor([heard])
            logits = model(encoder_outputs=states, decoder_input_ids=words).logits
            heard.append(int(logits[0, -1].argmax()))
    assert heard[2:] == SAID


def test_cross_attention_follows_time(model, spoken):
    with torch.no_grad():
        trace = regard.trace(model, **given(spoken))
    record = trace["model.decoder.layers.2.encoder_attn"]
    assert record.attends == "cross" and tuple(record.shape) == (1, 6, 13, 1500)
    head = record.weights()[0, 4, 2:]  # (spoken token, encoder position)
    during = head[:, : int(ENDS * FRAMES)]
    place = (during * torch.arange(during.shape[1])).sum(-1) / during.sum(-1)
    assert np.corrcoef(place, np.arange(len(place)))[0, 1] > 0.9
    assert (place.diff() > -5).all(), "hardly ever back"


def test_weights_are_those_of_the_eager_twin(model, spoken):
    with torch.no_grad():
        plain = model(**given(spoken)).logits
        trace = regard.trace(model, **given(spoken))
        twin = WhisperForConditionalGeneration._from_config(
            model.config, attn_implementation="eager"
        ).eval()
        twin.load_state_dict(model.state_dict())
        want = twin(**given(spoken), output_attentions=True)
    assert torch.equal(trace.output.logits, plain)
    kinds = (trace.encoder_attentions, trace.decoder_attentions, trace.cross_attentions)
    theirs = (want.encoder_attentions, want.decoder_attentions, want.cross_attentions)
    for ours, true in zip(kinds, theirs):
        assert len(ours) == len(true) == 4
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(ours, true))


def test_generation_stitches_into_the_teacher_forced_map(model, spoken):
    """Whisper's own `generate` decodes step by step; the encoder runs once."""
    start = torch.tensor([[START, WITHOUT_TIMES]])
    with torch.no_grad():
        with regard.capture(model) as trace:
            said = model.generate(
                spoken, decoder_input_ids=start, max_new_tokens=len(SAID), do_sample=False
            )
        assert said[0].tolist() == SAID
        fed = torch.cat([start, said[:, :-1]], 1)
        forced = regard.trace(model, input_features=spoken, decoder_input_ids=fed)
    stitched = regard.stitch(trace, said)
    assert sorted(stitched.names()) == sorted(forced.names())
    for name in forced.names():
        got, want = stitched[name].weights(), forced[name].weights()
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0, msg=name)
