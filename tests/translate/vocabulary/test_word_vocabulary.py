"""Words by number."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN
from regard.translate.vocabulary import Vocabulary, WordVocabulary, tokenise, vocabulary_from

SENTENCES = ["Je t'aime.", "Je mange une pomme, et toi ?", "Où es-tu ?", "je mange"]
texts = st.text() | st.text(alphabet="abLl' \".,!?é\u0301", max_size=30)


@pytest.fixture
def vocabulary():
    return WordVocabulary.train(SENTENCES, size=100)


def test_the_first_four_and_the_order(vocabulary):
    assert vocabulary.entries[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    counts = {
        word: sum(tokenise(text).count(word) for text in SENTENCES)
        for word in vocabulary.entries[4:]
    }
    assert list(counts) == sorted(counts, key=lambda word: (-counts[word], word))
    assert len(vocabulary) == 4 + len({word for text in SENTENCES for word in tokenise(text)})


def test_size_and_least():
    assert WordVocabulary.train(SENTENCES, size=7).entries[4:] == ["?", "Je", "mange"]
    assert WordVocabulary.train(SENTENCES, size=100, least=2).entries[4:] == ["?", "Je", "mange"]
    lower = WordVocabulary.train(SENTENCES, size=5, lower=True)
    assert lower.entries[4:] == ["je"]
    assert lower.encode("JE") == [4]


def test_the_same_sentences_in_another_order_give_the_same(vocabulary):
    again = WordVocabulary.train(reversed(SENTENCES), size=100)
    assert again.header() == vocabulary.header()


def test_encode_and_decode(vocabulary):
    for text in SENTENCES:
        assert vocabulary.decode(vocabulary.encode(text)) == text
    numbers = vocabulary.encode("Je bois ?")
    assert numbers[1] == UNKNOWN
    assert vocabulary.decode(numbers) == "Je <unk> ?"
    assert vocabulary.pieces([PAD, BEGIN, *numbers, END]) == [
        "<pad>", "<s>", "Je", "<unk>", "?", "</s>",
    ]  # fmt: skip
    assert vocabulary.decode([BEGIN, *numbers, END, numbers[0], PAD]) == "Je <unk> ?"
    assert vocabulary.encode("") == []
    assert vocabulary.decode([]) == ""


@settings(max_examples=60, deadline=None)
@given(texts, st.booleans())
def test_numbers_come_back(text, lower):
    vocabulary = WordVocabulary.train([text], size=1000, lower=lower)
    numbers = vocabulary.encode(text)
    assert UNKNOWN not in numbers
    assert vocabulary.encode(vocabulary.decode(numbers)) == numbers


@settings(max_examples=60, deadline=None)
@given(texts)
def test_numbers_come_back_where_spaces_cut(text):
    vocabulary = WordVocabulary.train([text], size=1000, cut="spaces")
    numbers = vocabulary.encode(text)
    assert vocabulary.encode(vocabulary.decode(numbers)) == numbers
    assert vocabulary.pieces(numbers) == vocabulary.words(text).names


def test_names_of_special_tokens_in_a_text_are_unknown_words():
    vocabulary = WordVocabulary.train(["a <s> <unk> b <pad>"], size=100, cut="spaces")
    assert vocabulary.entries[4:] == ["a", "b"]
    assert vocabulary.encode("a <s> </s> <pad>") == [4, UNKNOWN, UNKNOWN, UNKNOWN]


def test_words_are_pieces(vocabulary):
    words = vocabulary.words("Je t'adore.")
    assert words.names == ["Je", "t'", "adore", "."]
    assert words.pieces == [0, 1, 2, 3]
    assert len(words.pieces) == len(vocabulary.encode("Je t'adore."))
    made = vocabulary.words_of([*vocabulary.encode("Je t'adore."), END, PAD])
    assert made.names == ["Je", "t'", "<unk>", ".", "</s>", "<pad>"]
    assert made.special == {4, 5}
    assert made.without_special().names == ["Je", "t'", "<unk>", "."]


@pytest.mark.parametrize("options", [{}, {"lower": True}, {"cut": "spaces"}])
def test_kept_and_made_again(options):
    vocabulary = WordVocabulary.train(SENTENCES, size=12, **options)
    header = json.loads(json.dumps(vocabulary.header()))
    again = vocabulary_from(header, vocabulary.tensors())
    assert isinstance(again, Vocabulary)
    assert again.header() == vocabulary.header()
    for text in SENTENCES:
        assert again.encode(text) == vocabulary.encode(text)
        assert again.decode(again.encode(text)) == vocabulary.decode(vocabulary.encode(text))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordVocabulary.train([], size=4), "size=4, expected more than 4"),
        (lambda: WordVocabulary([], cut="bytes"), "cut='bytes', expected 'words' or 'spaces'"),
        (
            lambda: WordVocabulary(["a", "b", "a"]),
            "these words are in the vocabulary more than once: ['a']",
        ),
        (
            lambda: WordVocabulary(["<s>"]),
            "these words are in the vocabulary more than once: ['<s>']",
        ),
        (
            lambda: vocabulary_from({"kind": "letters"}, {}),
            "a vocabulary of kind 'letters', expected one of words, pieces",
        ),
        (
            lambda: vocabulary_from({"kind": "words"}, {}),
            "the vocabulary of kind 'words' lacks 'space before'",
        ),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_vocabulary(make, message):
    with pytest.raises(RegardError) as caught:
        make()
    assert str(caught.value) == message


def test_an_unknown_word_does_not_tear_the_others_apart():
    texts = ["Je t'aime, mais l'homme ne m'aime pas.", "Qu'est-ce que c'est ?"] * 2
    vocabulary = WordVocabulary.train(texts, size=40)
    numbers = vocabulary.encode("Je t'aime, mais l'Zaphod ne m'aime pas.")
    assert vocabulary.decode(numbers) == "Je t'aime, mais l'<unk> ne m'aime pas."
    assert vocabulary.decode([*vocabulary.encode("Zaphod, qu'est-ce que c'est ?")]).startswith(
        "<unk>, "
    )
