"""Unknown words and wrong numbers are copied from the source."""

import torch
from text_translators import checkpoint
from text_translators import translator as translator

from regard.translate.copying import copies, missing_numbers, needs_copies, with_copies
from regard.translate.tokens import UNKNOWN
from regard.translate.translator import Translator


def test_an_unknown_word_is_the_source_word_it_attends_to(translator):
    with torch.no_grad():  # a translator that says nothing but <unk>
        translator.model.embeddings.bias[UNKNOWN] = 1000.0
    raw = translator("the elephant sleeps", longest=4, copy=False)
    assert raw.text.split()[0] == "<unk>" and "<unk>" in raw.matrix.target
    copied = translator("the elephant sleeps", longest=4)
    assert "<unk>" not in copied.text
    chosen = [copied.matrix.source[place] for place in raw.matrix.weights.argmax(-1).tolist()]
    assert copied.matrix.target == chosen and copied.text == " ".join(chosen)
    assert translator.between_spaces(copied).target == copied.text.split()
    plain = translator.translate(["the elephant sleeps"], longest=4, weights=False)[0][0]
    assert plain.text == copied.text and plain.matrix is None


def test_without_attention_no_unknown_word_is_said():
    translator = Translator(checkpoint("none"))
    with torch.no_grad():
        translator.model.embeddings.bias[UNKNOWN] = 1000.0
    assert "<unk>" not in translator("the elephant sleeps", longest=4).text
    assert "<unk>" in translator("the elephant sleeps", longest=4, copy=False).text


def test_numbers_that_the_source_has_not_got_are_replaced():
    source, names = ["27", "cats", "in", "1999"], ["37", "chats", "en", "1999"]
    weights = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    assert needs_copies("27 cats in 1999", "37 chats en 1999")
    replaced = copies(names, source, weights)
    assert replaced == {0: "27"}
    assert with_copies("37 chats en 1999", names, replaced) == "27 chats en 1999"


def test_a_number_is_copied_once_and_only_where_one_is_missing():
    weights = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    assert copies(["5", "6"], ["3", "4"], weights) == {0: "3", 1: "4"}
    assert copies(["6", "chiens"], ["six", "dogs"], weights) == {}  # a number word
    assert copies(["6", "30"], ["at", "6:30"], weights) == {}
    assert not needs_copies("six girls", "6 filles") and not needs_copies("6:30", "6 h 30")


def test_missing_numbers_are_told(translator):
    assert missing_numbers("27 cats in 1999", "des chats en 1999") == ["27"]
    remarks = translator("you love 27 cats", longest=3).remarks
    assert "the translation lacks 27 of the source" in remarks


def test_bytes_that_spell_no_character_are_the_source_word():
    weights = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    names = ["Salut", "\ufffd", "\ufffd"]
    replaced = copies(names, ["Hello", "🍕"], weights)
    assert replaced == {1: "🍕", 2: ""}
    assert with_copies("Salut \ufffd\ufffd", names, replaced) == "Salut 🍕"
    assert needs_copies("Hello 🍕", "Salut \ufffd\ufffd")


def test_thousands_are_one_number_however_they_are_written():
    assert missing_numbers("3 000 euros or 1,200.50", "3000 euros ou 1 200,50") == []
    assert not needs_copies("3 000 euros", "3000 euros")
    weights = torch.eye(3)
    assert copies(["3000", "euros"], ["3", "000", "euros"], weights[:2]) == {}
    assert copies(["9000", "euros"], ["3,000", "euros"], weights[:2]) == {0: "3,000"}


def test_a_lost_address_is_told(translator):
    for text in ("you love me@mail.example.com", "you love https://example.com/a?b=1#c"):
        address = text.split()[-1]
        remarks = translator(text, longest=3).remarks
        assert any(address in remark for remark in remarks), remarks
