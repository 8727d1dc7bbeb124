"""Texts all in capitals are read in small letters, and translated in capitals."""

import pytest
import torch
from text_translators import checkpoint

from regard.translate.translator import Translator


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "encoder-qkv"])
def test_capitals_are_read_as_small_letters_and_written_again(name):
    translator = Translator(checkpoint(name))
    text = "YOU LOVE CATS. I love you. THE CAT SLEEPS!"
    whole = translator(text, longest=4, shortest=3)
    small = translator("You love cats. I love you. The cat sleeps!", longest=4, shortest=3)
    first, second, third = (part.text for part in small.parts)
    assert whole.text == " ".join([first.upper(), second, third.upper()])
    assert [part.source for part in whole.parts] == text.replace(". ", ".\n").splitlines()
    assert [part.read_as for part in whole.parts] == ["You love cats.", None, "The cat sleeps!"]
    matrices = (whole.matrix, small.matrix) if whole.head else (whole.inside, small.inside)
    assert torch.equal(matrices[0].weights, matrices[1].weights)
    assert matrices[0].source[:2] == ["YOU", "LOVE"]
    *_, grown = translator.steps(text, longest=4, shortest=3)
    assert grown.text == whole.text
    if whole.head:
        spaced = translator.between_spaces(whole)
        assert spaced.source == text.split() and spaced.target == whole.text.split()


@pytest.mark.parametrize("text", ["OK.", "I love you.", "XYZZY PLUGH"])
def test_other_texts_are_read_as_they_are(text):
    """An acronym, a sentence, and words that are as unknown in small letters."""
    assert Translator(checkpoint())(text, longest=4).read_as is None
