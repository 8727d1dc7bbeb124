"""The tokeniser: which tokens, nothing lost, and text that is written as people do."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.translate.vocabulary import Spacing, detokenise, tidy, tokenise
from regard.translate.vocabulary.tokenise import token_spans

texts = st.text() | st.text(alphabet="abLlntsqujAI' ’\"-.,:!?()«»123é\u0301  ", max_size=30)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Je t'aime.", "Je t' aime ."),
        ("L’homme qu’elle n’a pas vu", "L’ homme qu’ elle n’ a pas vu"),
        ("Jusqu'à aujourd'hui, d'accord ?", "Jusqu' à aujourd'hui , d' accord ?"),
        ("S'il y a lieu, c'est-à-dire", "S' il y a lieu , c' est-à-dire"),
        ("I don't; I can't, it's John's.", "I do n't ; I ca n't , it 's John 's ."),
        ("We'll, you're, I'd, I've, I'M", "We 'll , you 're , I 'd , I 've , I 'M"),
        ("five o'clock", "five o'clock"),
        ("rock'n't a-n't", "rock ' n't a - n't"),
        ("the dogs' house", "the dogs ' house"),
        ("3.50 or 1,000 at 10:30.", "3.50 or 1,000 at 10:30 ."),
        ("well-known -- (yes)...", "well-known -- ( yes ) ..."),
        ("at 5 p.m. in the U.S.A., Mr. X", "at 5 p.m. in the U.S.A. , Mr . X"),
        ('"Oh!?" 50%', '" Oh ! ? " 50 %'),
        ("l' homme n't 's", "l' homme n't 's"),
        ("中文字 ok", "中 文 字 ok"),
        ("cafe\u0301 हिन्दी", "cafe\u0301 हिन्दी"),
        ("", ""),
        (" \u202f\n", ""),
    ],
)
def test_which_tokens(text, tokens):
    assert tokenise(text) == tokens.split()


@settings(max_examples=60, deadline=None)
@given(texts)
def test_nothing_but_white_space_is_lost(text):
    assert "".join(tokenise(text)) == "".join(text.split())


@settings(max_examples=60, deadline=None)
@given(texts)
def test_tokens_lie_where_they_are_said_to(text):
    spans = token_spans(text)
    assert [text[start:end] for start, end in spans] == tokenise(text)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))  # noqa: RUF007


@settings(max_examples=60, deadline=None)
@given(texts)
@example("l ' a")
@example("p . m .")
@example("1 , 000")
@example("do n't n ' t")
@example("d'n'tl'N'T d' @")
@example("12:30'n't $ a-n’t (")
def test_text_of_tokens_has_these_tokens_again(text):
    tokens = tokenise(text)
    assert tokenise(detokenise(tokens)) == tokens
    french = Spacing({"!": True, ".": True, "-": False}, {"-": False, ",": False})
    assert tokenise(detokenise(tokens, french)) == tokens


@pytest.mark.parametrize(
    "text",
    [
        "I don't know, it's John's (or his brother's).",
        'He said: "Go away!" and "Never come back."',
        "It costs $5 or 50%, and/or nothing...",
        "L'homme qu'elle n'a pas vu, aujourd'hui.",
        "He 'really' said it.",
        "The dogs' house",
        "¿Cómo estás? ¡Bien!",
    ],
)
def test_text_is_written_as_people_do(text):
    assert detokenise(tokenise(text)) == text


def test_spacing_is_learned():
    sentences = ["Va !", "Où ? Là, là !", "« Oui », dit-il : non.", "Tu viens?", "Oui ? Non ?"]
    french = Spacing.learned((text, token_spans(text)) for text in sentences)
    for text in ("Ça va ?", "« Ah ! Oh ! », dit-elle.", "Un : deux."):
        assert detokenise(tokenise(text), french) == text
    assert detokenise(tokenise("Ça va ?")) == "Ça va?"


def test_spacing_is_learned_between_words_and_marks_alone():
    sentences = ['"Who?"', '"What?"', "Who? Me.", "(a), b", "(c), d", "e , f"]
    learned = Spacing.learned((text, token_spans(text)) for text in sentences)
    for text in ("Why? You.", '"Why?" You.', "one , two"):
        assert detokenise(tokenise(text), learned) == text


@settings(max_examples=60, deadline=None)
@given(texts)
def test_tidy_text_is_tidy(text):
    assert tidy(tidy(text)) == tidy(text)
    assert "  " not in tidy(text)
    assert tidy(f" {text}\t\n") == tidy(text)


def test_tidy():
    assert tidy(" Va\u202f!\u00a0 e\u0301 ") == "Va ! é"
