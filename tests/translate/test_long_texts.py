"""Texts of several sentences, or longer than a model reads: nothing is lost in silence."""

from dataclasses import replace

import pytest
import torch
from text_translators import checkpoint
from text_translators import translator as translator

from regard.translate.config import Config, DataConfig
from regard.translate.tokens import END
from regard.translate.translator import Translator

SENTENCES = ["I love you.", "We don't sleep.", "You love cats."]
TEXT = " ".join(SENTENCES)


def short(name="bahdanau", longest=4):
    """A translator that learned from at most so many words."""
    loaded = checkpoint(name)
    config = replace(loaded.config, data=DataConfig(longest=longest))
    return Translator(replace(loaded, config=config))


def test_sentences_are_translated_one_by_one_and_joined(translator):
    whole = translator(TEXT, longest=6)
    parts = [translator(sentence, longest=6) for sentence in SENTENCES]
    assert whole.source == TEXT
    assert whole.text == " ".join(part.text for part in parts if part.text)
    assert [part.text for part in whole.parts] == [part.text for part in parts]
    blocks = torch.block_diag(*(part.matrix.weights for part in parts))
    torch.testing.assert_close(whole.matrix.weights, blocks)
    assert whole.matrix.source == [name for part in parts for name in part.matrix.source]
    assert whole.matrix.target == [name for part in parts for name in part.matrix.target]


def test_rows_of_the_whole_keep_all_attention(translator):
    whole = translator(TEXT, longest=6, shortest=3)
    for record in whole.trace:
        weights = record.weights()[0]
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        assert weights.shape[2] == len(whole.words[0].pieces) == len(record.key_tokens)
        assert weights.shape[1] == len(whole.words[1].pieces) == len(record.query_tokens)
    ends = [share for part in whole.parts for share in part.at_the_end]
    torch.testing.assert_close(whole.at_the_end, ends)
    spaced = translator.between_spaces(whole)
    assert spaced.source == TEXT.split() and spaced.target == whole.text.split()
    assert spaced.weights.shape == (len(spaced.target), len(spaced.source))


def test_steps_end_with_the_whole(translator):
    *_, last = translator.steps(TEXT, longest=5)
    whole = translator(TEXT, longest=5)
    assert last.text == whole.text
    torch.testing.assert_close(last.matrix.weights, whole.matrix.weights)


def test_several_translations_and_a_prefix(translator):
    ranked = translator.translate([TEXT], n_best=2, beam=3, longest=6, prefix=["le petit"])[0]
    assert len(ranked) == 2 and all(each.text.startswith("le petit") for each in ranked)
    assert ranked[0].score >= ranked[1].score
    assert not ranked[0].parts[1].text.startswith("le petit le petit")


def test_a_prefix_begins_what_is_translated(translator):
    text = "- I love you."
    whole = translator(text, prefix="le petit", longest=6)
    assert whole.text.startswith("- le petit")
    *_, last = translator.steps(text, prefix="le petit", longest=6)
    assert last.text == whole.text


def test_without_splitting_a_text_is_one_sentence(translator):
    assert translator(TEXT, split=False, longest=4).parts == ()


def test_a_sentence_longer_than_the_model_learned_from_is_cut_and_says_so():
    translator = short()
    text = "the small cat sleeps, you love cats tonight"
    whole = translator(text, longest=4)
    assert [part.source for part in whole.parts] == [
        "the small cat sleeps,",
        "you love cats tonight",
    ]
    (remark,) = whole.remarks
    assert remark.startswith(
        "a sentence of 8 words was translated in 2 parts, as the model learned"
    )
    assert translator("I love you.", longest=4).remarks == ()


def test_a_word_that_is_too_long_is_copied(translator):
    word = "a" * 100_000
    for sentence in (word, f"I love you. {word}"):
        whole = translator(sentence, longest=4)
        assert whole.text.endswith(word)
        assert whole.remarks[0].startswith("a word of 100,000 characters was copied: aaa")
        assert whole.matrix.weights[-1].sum() == 0 and whole.matrix.target[-1] == word
    *_, last = translator.steps(f"{word} sleeps", longest=4)
    assert last.text.startswith(word)


@pytest.mark.parametrize("name", ["bahdanau", "encoder-dot"])
def test_a_copied_word_before_a_sentence_without_weights(name):
    translator = Translator(checkpoint(name))
    text = "a" * 100_000 + "! I love you."
    ((plain,),) = translator.translate([text], longest=4, weights=False)
    assert plain.text == translator(text, longest=4).text
    assert plain.matrix is None and plain.inside is None and not len(plain.trace)
    *_, last = translator.steps(text, longest=4, weights=False)
    assert last.text == plain.text


def test_long_lines_go_in_small_batches(translator, monkeypatch):
    cells = []
    searched = type(translator)._source_batch

    def batch(self, rows):
        cells.append(len(rows) * max(map(len, rows)) ** 2)
        return searched(self, rows)

    monkeypatch.setattr(type(translator), "_source_batch", batch)
    line = "you love cats " * 30
    translator.translate([line] * 40 + ["I love you."] * 200, longest=2, weights=False, batch=200)
    assert max(cells) <= 1 << 18 and len(cells) > 2


def test_a_stream_reads_texts_as_it_needs_them(translator):
    read = []

    def texts():
        for number in range(10):
            read.append(number)
            yield "I love you."

    stream = translator.stream(texts(), window=2, longest=3, weights=False)
    assert read == []
    next(stream)
    assert read == [0, 1]
    assert len(list(stream)) == 9


@pytest.mark.parametrize("name", ["none", "encoder-dot"])
def test_models_without_attention_to_the_source(name):
    whole = Translator(checkpoint(name))(TEXT, longest=4)
    assert whole.matrix is None and len(whole.parts) == 3
    assert (whole.inside is not None) == (name == "encoder-dot")


def test_settings_say_how_long_sentences_are():
    assert short(longest=7).limit == 7
    assert Config().data.longest == Translator(checkpoint()).limit


def test_bullets_and_marks_are_copied(translator):
    whole = translator("- you love cats\n- I love you. …\n🙂", longest=4)
    assert [part.source for part in whole.parts] == [
        "-", "you love cats", "-", "I love you.", "…", "🙂"
    ]  # fmt: skip
    assert [whole.parts[place].text for place in (0, 2, 4, 5)] == ["-", "-", "…", "🙂"]
    assert not any("copied" in remark for remark in whole.remarks)


def test_a_sentence_without_a_translation_is_told(translator):
    with torch.no_grad():  # a translator that says nothing
        translator.model.embeddings.bias[END] = 1000.0
    assert "the translation has no word for: I love you." in translator(TEXT).remarks
    assert translator("I love you.").remarks == ("the translation has no word for: I love you.",)


def test_an_unsure_sentence_in_a_long_text_is_told():
    sure = {"confidence": {"slope": 0.0, "offset": -2.0}}
    remarks = Translator(checkpoint("bahdanau", **sure))(TEXT, longest=4).remarks
    assert any(
        remark.startswith("the model is unsure of 3 of 3 sentences, most of (confidence 0.12): ")
        for remark in remarks
    )
