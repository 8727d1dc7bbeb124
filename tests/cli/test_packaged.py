"""Packaged models of speech and images: what they take, what they refuse, what a page is told."""

import io
import wave

import pytest
import torch
from PIL import Image

from regard.cli import packaged
from regard.cli.models import look_at
from regard.cli.packaged.speech import RATE, samples_of
from regard.cli.packaged.vision import SIDE, _sized, _square, pixels
from regard.errors import RegardError


def sound(samples, *, rate=RATE, width=2, channels=1):
    """A WAV file in memory."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setframerate(rate)
        out.setsampwidth(width)
        out.writeframes(samples)
    return file.getvalue()


def picture(size=(6, 4), form="PNG", colour=(255, 0, 51), **options):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, form, **options)
    return file.getvalue()


def test_samples_are_numbers_from_minus_one_to_one():
    loud = samples_of(sound(b"\x00\x80\x00\x00\xff\x7f"))
    torch.testing.assert_close(loud, torch.tensor([-1.0, 0.0, 32767 / 32768]))
    quiet = samples_of(sound(b"\x00\x80\xff", width=1))
    torch.testing.assert_close(quiet, torch.tensor([-1.0, 0.0, 127 / 128]))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"no sound", "no WAV file"),
        (sound(b"\x00\x00", rate=8000), "8000 samples a second of 16 bits; expected 1, 16000 and"),
        (sound(b"\x00\x00\x00\x00", channels=2), "2 channels"),
        (sound(b""), "the sound is empty"),
    ],
    ids=["text", "rate", "channels", "empty"],
)
def test_a_sound_that_does_not_fit_is_refused(data, text):
    with pytest.raises(RegardError, match=text):
        samples_of(data)


def test_a_sound_may_not_be_longer_than_the_model_hears():
    with pytest.raises(RegardError, match=r"30\.1 seconds, at most 30 fit"):
        packaged.Listener("x", None, None, None).features(torch.zeros(int(30.1 * RATE)))


def test_whisper_writes_what_it_hears_and_names_its_times():
    heard = look_at("whisper", None)
    words, times = heard.words
    assert heard.prompt == 2 and words.tokens[:2] == ["<|start|>", "<|without times|>"]
    assert words.special == {0, 1}
    assert words.names[2:] == ["He", "was", "not", "an", "ill-disposed", "young", "man", "."]
    assert times.names[:2] == ["0.0 s", "0.1 s"] and times.names[-2:] == ["2.9 s", "silence"]
    cross = heard.trace["model.decoder.layers.2.encoder_attn"]
    assert cross.query_tokens == words.tokens and cross.key_tokens[7] == "0.14 s"
    merged = words.merge(cross.weights()[0], times)  # (head, word, tenth)
    torch.testing.assert_close(merged.sum(-1), torch.ones(merged.shape[:2]))
    silence = cross.weights()[0, :, 2, 150:].sum(-1)
    torch.testing.assert_close(merged[:, 2, -1], silence)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_an_image_file_becomes_numbers(form):
    image = pixels(picture(form=form))
    assert image.shape == (4, 6, 3)
    torch.testing.assert_close(image[1, 2], torch.tensor([1.0, 0.0, 0.2]), atol=0.02, rtol=0)


def test_an_image_is_turned_upright():
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held on its side
    assert pixels(picture(form="JPEG", exif=turned)).shape == (6, 4, 3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"<svg/>", "cannot be read as PNG or JPEG"),
        (picture()[:45], "cannot be read as PNG or JPEG"),
        (picture(form="GIF"), "cannot be read as PNG or JPEG"),
        (picture((6000, 4001)), "6000 × 4001 pixels, at most 24,000,000"),
    ],
    ids=["svg", "cut short", "gif", "large"],
)
def test_an_image_that_cannot_be_read_is_refused(data, text):
    with pytest.raises(RegardError, match=text):
        pixels(data)


def test_patches_lie_over_the_image_and_what_fills_up_the_square():
    half = _sized(torch.ones(30, 60, 3))
    assert half.shape == (SIDE // 2, SIDE, 3)
    square = _square(half)
    assert square.shape == (SIDE // 2, SIDE // 2, 3)
    assert (square[: SIDE // 4] == 1).all() and (square[SIDE // 4 :] == 0.5).all()


def test_a_model_that_generates_says_so():
    assert packaged.smollm2().generates
    assert not packaged.minilm().generates and not packaged.rxnmapper().generates
    with pytest.raises(RegardError, match="MiniLM does not generate text"):
        packaged.minilm().continued("see that girl run", 3)


def test_a_text_that_goes_on_has_its_prompt_and_rows_of_what_was_fed():
    llama = packaged.smollm2()
    result = llama.continued("The capital of France is", 3)
    assert result.prompt == 5
    names = ["The", "capital", "of", "France", "is", "Paris", ".", "↵"]
    assert result.words[0].names == names, "the last one too"
    assert result.written == " Paris.\n" and result.end is None
    assert all(record.shape[2:] == (8, 8) for record in result.trace)
    assert result.options()["prompt"] == 5 and "trace" not in result.options()
