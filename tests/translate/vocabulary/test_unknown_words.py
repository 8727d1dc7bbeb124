"""Words that a vocabulary has no token for."""

from regard.translate.alignment import Sentence
from regard.translate.vocabulary import PieceVocabulary, WordVocabulary
from regard.translate.vocabulary.contract import unknown_words

TEXTS = ["the small cat sleeps", "we don't sleep"]


def unknown(text, vocabulary):
    return unknown_words(vocabulary.encode(text), vocabulary.words(text))


def test_whole_words():
    vocabulary = WordVocabulary.train(TEXTS, size=40)
    assert unknown("the small cat", vocabulary) == [] == unknown("", vocabulary)
    assert unknown("The cat don't love me", vocabulary) == ["The", "love", "me"]


def test_pieces_spell_strange_letters_by_bytes():
    vocabulary = PieceVocabulary.train(TEXTS * 4, size=300)
    assert unknown("the cats", vocabulary) == [] == unknown("", vocabulary)
    assert unknown("the 猫 sleeps", vocabulary) == ["猫"]


def test_words_between_spaces():
    sentence = Sentence.spaced("the cats! sleep", WordVocabulary.train(TEXTS, size=40))
    assert unknown_words(sentence.numbers, sentence.words) == ["cats!"]
