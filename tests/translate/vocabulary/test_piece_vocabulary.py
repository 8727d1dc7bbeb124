"""Pieces of words, by sentencepiece."""

import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN
from regard.translate.vocabulary import (
    PieceVocabulary,
    WordVocabulary,
    tidy,
    tokenise,
    vocabulary_from,
)

ENGLISH = "I love you we loved them she loves walking and talking in the garden don't it's"
FRENCH = "je t'aime nous aimons elle aime l'homme qu'il a vu dans le jardin aujourd'hui"


def sentences(words, count=300):
    chance = random.Random(0)
    return [" ".join(chance.choices(words.split(), k=6)) + "." for _ in range(count)]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def vocabulary(request):
    return PieceVocabulary.train(
        sentences(ENGLISH) + sentences(FRENCH), size=360, kind=request.param
    )


def test_the_first_four(vocabulary):
    assert vocabulary.pieces([PAD, BEGIN, END, UNKNOWN]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert 260 < len(vocabulary) <= 360


@settings(max_examples=60, deadline=None)
@given(text=st.text() | st.text(alphabet="abelove' .\u2581\u00a0\ud800<s>\0", max_size=20))
def test_every_text_comes_back(vocabulary, text):
    numbers = vocabulary.encode(text)
    assert not {PAD, BEGIN, END, UNKNOWN} & set(numbers)
    # What cannot come back: white space, decomposed letters, half surrogates, the mark of a space.
    expected = tidy(text.replace("\u2581", " ").encode("utf-8", "replace").decode())
    assert vocabulary.decode(numbers) == expected
    assert vocabulary.encode(vocabulary.decode(numbers)) == numbers


@settings(max_examples=60, deadline=None)
@given(text=st.text() | st.text(alphabet="abelove' t\u0301éI中.", max_size=20))
def test_words_have_every_piece(vocabulary, text):
    numbers = vocabulary.encode(text)
    words = vocabulary.words(text)
    assert words.tokens == vocabulary.pieces(numbers)
    assert len(words.pieces) == len(numbers)
    assert None not in words.pieces
    assert words.pieces == sorted(words.pieces)
    assert set(words.pieces) == set(range(len(words.names)))
    read = tidy(text.replace("\u2581", " ").encode("utf-8", "replace").decode())
    assert "".join("".join(words.names).split()) == "".join(tokenise(read))
    assert words == vocabulary.words_of(numbers)


def test_words_are_those_of_the_tokeniser(vocabulary):
    words = vocabulary.words("Je t'aime, l'homme 中 walked.")
    assert words.names == ["Je", "t'", "aime", ",", "l'", "homme", "中", "walked", "."]
    ones = torch.ones(1, len(words.pieces))
    assert words.sum(ones).sum() == len(words.pieces)


@pytest.mark.parametrize("text", ["I don't", "it's the garden's.", "t'aime l'ami"])
def test_words_that_share_a_piece_are_one(vocabulary, text):
    words = vocabulary.words(text)
    ends, said = set(), ""
    for piece in words.tokens:
        said += piece.replace("\u2581", "")
        ends.add(len(said))
    names = [""]
    for token in tokenise(text):
        names[-1] += token
        if sum(map(len, names)) in ends:
            names.append("")
    assert words.names == names[:-1]


def test_special_tokens_are_words_of_their_own(vocabulary):
    numbers = [BEGIN, *vocabulary.encode("I love"), END, PAD, PAD]
    words = vocabulary.words_of(numbers)
    assert words.names == ["<s>", "I", "love", "</s>", "<pad>", "<pad>"]
    assert words.special == {0, 3, 4, 5}
    assert len(words.pieces) == len(numbers)
    assert vocabulary.decode(numbers) == "I love"
    assert vocabulary.words_of([END]).names == ["</s>"]
    assert vocabulary.words_of([]).names == []


def test_bytes_that_are_no_text(vocabulary):
    euro = vocabulary.encode("€")[-3:]
    assert vocabulary.pieces(euro) == ["<0xE2>", "<0x82>", "<0xAC>"]
    assert vocabulary.decode(euro) == "€"
    assert "\ufffd" in vocabulary.decode(euro[:2])
    assert len(vocabulary.words_of(euro[:2]).pieces) == 2


def test_the_same_sentences_give_the_same_bytes():
    texts = sentences(ENGLISH)
    assert (
        PieceVocabulary.train(texts, size=300).model
        == PieceVocabulary.train(iter(texts), size=300).model
    )


def test_nothing_is_printed_and_no_file_is_left(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = PieceVocabulary.train(sentences(ENGLISH), size=300)
    made.encode("love")
    with pytest.raises(RegardError):
        PieceVocabulary.train(sentences(ENGLISH), size=200)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_kept_and_made_again_from_bytes(vocabulary):
    tensors = vocabulary.tensors()
    assert tensors["model"].dtype == torch.uint8
    again = vocabulary_from(json.loads(json.dumps(vocabulary.header())), tensors)
    assert isinstance(again, PieceVocabulary)
    assert again.model == vocabulary.model
    tensors["model"].zero_()
    assert vocabulary.encode("love") == again.encode("love")


def test_more_pieces_than_there_are(vocabulary):
    made = PieceVocabulary.train(["a b"] * 3, size=5000)
    assert len(made) < 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PieceVocabulary.train(sentences(ENGLISH), size=200),
            "size=200: too small for these sentences, expected at least 2[6-9][0-9]: their char",
        ),
        (
            lambda: PieceVocabulary.train([" ", ""], size=300),
            "size=300: there is no text to train pieces on",
        ),
        (
            lambda: PieceVocabulary.train(["a"], size=300, kind="word"),
            "kind='word', expected 'unigram' or 'bpe'",
        ),
        (lambda: PieceVocabulary(b"abc"), "these 3 bytes are no sentencepiece model"),
        (lambda: vocabulary_from({"kind": "pieces"}, {}), "kind 'pieces' lacks 'model'"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_piece_vocabulary(make, message):
    with pytest.raises(RegardError, match=message):
        make()


def test_a_model_with_other_numbers_is_refused():
    import io

    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(ENGLISH)),
        model_writer=written,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(RegardError, match=r"are the pieces \(-1, 1, 2, 0\) of this sentencepiece"):
        PieceVocabulary(written.getvalue())


def test_both_kinds_give_the_same_words():
    texts = sentences(FRENCH)
    pieces = PieceVocabulary.train(texts, size=340)
    whole = WordVocabulary.train(texts, size=340)
    for text in texts[:50]:
        assert pieces.words(text).names == whole.words(text).names


def test_lower_case_is_read_kept_and_restored(vocabulary):
    lower = PieceVocabulary.train(sentences(ENGLISH.upper()), size=340, lower=True)
    assert lower.encode("WE Loved them.") == lower.encode("we loved them.")
    assert lower.decode(lower.encode("WE Loved École.")) == "we loved école."
    assert lower.words("It's WE").names == ["it", "'s", "we"]
    assert len(lower.encode("loved")) < len(lower.encode("l o v e d"))  # learned in lower case
    again = vocabulary_from(json.loads(json.dumps(lower.header())), lower.tensors())
    assert again.lower and again.encode("WE Loved") == lower.encode("we loved")
    assert not vocabulary.lower and vocabulary.decode(vocabulary.encode("WE")) == "WE"


def test_a_header_without_case_keeps_the_case(vocabulary):
    again = vocabulary_from({"kind": "pieces"}, vocabulary.tensors())
    assert again.encode("WE Loved") == vocabulary.encode("WE Loved")


def test_long_sentences_are_learned_from():
    """Sentencepiece's own limit of 4192 bytes would leave them out without a word."""
    long = "zyxw " * 2000
    vocabulary = PieceVocabulary.train([long, "a b c d e f"], size=300)
    assert "▁zyxw" in vocabulary.pieces(vocabulary.encode("zyxw"))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_drawn_pieces_spell_the_same_texts(kind):
    texts = ["the small cat sleeps", "We don't sleep, 27 cats!", "naïve ▁ cafés"] * 3
    vocabulary = PieceVocabulary.train(texts * 3, size=340, kind=kind, lower=True)
    drawn = vocabulary.sampled(texts, alpha=0.3, seed=1)
    assert [vocabulary.decode(numbers) for numbers in drawn] == [
        vocabulary.decode(vocabulary.encode(text)) for text in texts
    ]
    assert len({tuple(numbers) for numbers in drawn[::3]}) > 1  # of one text
    assert vocabulary.sampled(texts, alpha=0.3, seed=1) == drawn
    assert vocabulary.sampled(texts, alpha=0.3, seed=2) != drawn
    assert vocabulary.encode(texts[0]) == vocabulary.encode(texts[0])
    assert vocabulary.sampled([], alpha=0.3, seed=1) == []
