"""Words between spaces over a tokeniser's pieces, of both kinds of vocabulary."""

import pytest

from regard.translate.alignment import spaced_words, spaced_words_of
from regard.translate.tokens import END, UNKNOWN
from regard.translate.vocabulary import PieceVocabulary, WordVocabulary

TEXTS = [
    "I don't love you, Tom.",
    "Je ne t'aime pas, Tom !",
    "  « l'été »\u00a0: déjà\t18:30 ?  ",
    "e\u0301te\u0301 I\u0307STANBUL \u0130STANBUL (yes)...",
    "well-known 日本語 🙂 🙂🙂",
]
VOCABULARIES = {
    "words": WordVocabulary.train(TEXTS, size=100),
    "lower": WordVocabulary.train(TEXTS, size=100, lower=True),
    "spaces": WordVocabulary.train(TEXTS, size=100, cut="spaces"),
    "pieces": PieceVocabulary.train(TEXTS * 4, size=330),
    "lower pieces": PieceVocabulary.train(TEXTS * 4, size=330, lower=True),
}


def spelt(words, vocabulary, numbers):
    """Each word as its own pieces spell it."""
    groups = [[] for _ in words.names]
    for number, word in zip(numbers, words.pieces):
        groups[word].append(number)
    return ["".join(vocabulary.decode(group).split()) for group in groups]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_words_of_a_text(name, text):
    vocabulary = VOCABULARIES[name]
    numbers = vocabulary.encode(text)
    words = spaced_words(text, vocabulary)
    assert words.names == text.split() and len(words.pieces) == len(numbers)
    if UNKNOWN not in numbers:
        expected = [vocabulary.decode(vocabulary.encode(one)) for one in text.split()]
        assert spelt(words, vocabulary, numbers) == ["".join(one.split()) for one in expected]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_words_of_numbers(name, text):
    vocabulary = VOCABULARIES[name]
    numbers = vocabulary.encode(text)
    for end in ([], [END]):
        words = spaced_words_of([*numbers, *end], vocabulary)
        assert words.names == vocabulary.decode(numbers).split()
        assert spelt(words, vocabulary, numbers) == words.names
        assert not words.special


@pytest.mark.parametrize("name", VOCABULARIES)
def test_an_unknown_word_shifts_nothing(name):
    vocabulary = VOCABULARIES[name]
    tom = vocabulary.encode("Tom")
    numbers = [*tom, UNKNOWN, UNKNOWN, *tom]
    words = spaced_words_of(numbers, vocabulary)
    assert words.names == vocabulary.decode(numbers).split()
    assert words.names[words.pieces[0]] == words.names[words.pieces[-1]]
    assert words.pieces[-1] == len(words.names) - 1


@pytest.mark.parametrize("name", ["pieces", "lower pieces"])
def test_a_word_that_becomes_no_piece_keeps_its_place(name):
    words = spaced_words("I ▁ love", VOCABULARIES[name])
    assert words.names == ["I", "▁", "love"]
    assert words.pieces[0] == 0 and words.pieces[-1] == 2 and 1 not in words.pieces


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_word_at_all(name):
    assert spaced_words_of([END], VOCABULARIES[name]).names == []
    assert spaced_words_of([], VOCABULARIES[name]).pieces == []
