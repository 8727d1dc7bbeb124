"""Texts cut into sentences, and sentences that are too long into parts."""

import pytest

from regard.translate.data.sentences import cut_in_parts, split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["I love you.", "Who are you?", "Stop!", "Well…", "It is 3.5."],
        ["Mr. Smith met Dr. No.", "He ran."],
        ["Qui êtes-vous ?", "Je t'aime.", "« Non ! » dit-il.", "Oui…"],
        ["J. K. Rowling wrote it.", "It is 5 p.m.", "Now go."],
        ["No. 5 is alive.", "No.", "I don't."],
        ['He said "Stop!" and left.', "Then... nothing.", "Wait... what? e.g. this."],
        ["It's me.", "(Really.)", "“Yes!” he said.", "Was it I?", "So am I.", "Ok?"],
        ["Call me at 5 p.m. tomorrow.", "I live in the U.S.", "It is big?!", "2 of us."],
        ["no capital and no stop"],
        ["!!!"],
        ["3.14 is not 2.71, www.example.org is no sentence"],
    ],
    ids=lambda sentences: sentences[0],
)
def test_sentences_end_at_marks(sentences):
    assert split_sentences(" ".join(sentences)) == sentences
    assert split_sentences("  \n".join(sentences) + "\n") == sentences


def test_marks_without_spaces_and_lines():
    assert split_sentences("今日は。元気ですか？はい") == ["今日は。", "元気ですか？", "はい"]
    assert split_sentences("Hello\n\nworld\r\n") == ["Hello", "world"]
    assert split_sentences("") == split_sentences(" \n ") == []


def test_every_letter_of_a_text_is_in_a_sentence():
    text = "A. b? “C!” D… e.g. 3.5 (f.) G.H. !? x.y ... Z"
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("most", [1, 3, 5])
def test_parts_fit_and_nothing_is_lost(most):
    sentence = "one two three, four five six; seven eight nine ten eleven twelve: thirteen"
    parts = cut_in_parts(sentence, lambda part: len(part.split()) <= most)
    assert all(1 <= len(part.split()) <= most for part in parts)
    assert " ".join(parts) == sentence


def test_parts_are_cut_at_commas_where_there_is_one_near_the_middle():
    assert cut_in_parts("a b c, d e f g", lambda part: len(part.split()) < 6) == [
        "a b c,",
        "d e f g",
    ]
    far = cut_in_parts("a, b c d e f g h i", lambda part: len(part.split()) < 6)
    assert far == ["a, b c d", "e f g h i"]
    assert cut_in_parts("longword", lambda part: False) == ["longword"]
