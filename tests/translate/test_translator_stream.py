"""Translations of many texts, one after the other, while the others wait."""

import pytest
from text_translators import translator as translator

from regard.errors import RegardError

TEXTS = ["the small cat sleeps", "I love you.", "", "we don't sleep tonight", "you love cats"]


@pytest.mark.parametrize("window", [1, 2, None])
def test_a_stream_has_the_same_translations_in_the_same_order(translator, window):
    whole = translator.translate(TEXTS, empty=True, longest=6)
    stream = translator.stream(TEXTS, window=window, batch=2, empty=True, longest=6)
    found = list(stream)
    assert [[one.text for one in some] for some in found] == [
        [one.text for one in some] for some in whole
    ]
    assert [one.source for some in found for one in some] == [text for text in TEXTS if text]


def test_a_stream_works_while_it_is_read(translator, monkeypatch):
    read = []
    taken = type(translator)._batch

    def batch(self, texts, *others):
        read.append(texts)
        return taken(self, texts, *others)

    monkeypatch.setattr(type(translator), "_batch", batch)
    stream = translator.stream(["I love you."] * 6, window=2, longest=4)
    assert read == []
    next(stream)
    next(stream)
    assert len(read) == 1
    next(stream)
    assert len(read) == 2
    with pytest.raises(RegardError, match="text 2 is empty"):
        list(translator.stream(["I love you.", ""], window=1, longest=4))
    with pytest.raises(RegardError, match="text 2 is empty"):
        translator.translate(["I love you.", ""], longest=4)
    assert len(read) == 3
    with pytest.raises(RegardError, match="window is 0, expected at least 1"):
        translator.stream(["I love you."], window=0)
