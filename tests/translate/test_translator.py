"""The translator: text in, text and its alignment out."""

import pytest
import torch

from regard.errors import RegardError, UnavailableError
from regard.translate.alignment import Head
from regard.translate.checkpoint import Checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build
from regard.translate.tokens import END
from regard.translate.translator import Translator
from regard.translate.vocabulary import WordVocabulary

ENGLISH = ["I love you.", "the small cat sleeps", "we don't sleep", "you love cats"]
FRENCH = ["Je t'aime.", "le petit chat dort", "nous ne dormons pas", "tu aimes les chats"]


def checkpoint(name="bahdanau", **extra):
    source = WordVocabulary.train(ENGLISH, size=40)
    target = WordVocabulary.train(FRENCH, size=40)
    torch.manual_seed(0)
    config = Config(model=ModelConfig(name=name, embedding=16, hidden=16, layers=1, heads=2))
    model = build(config.model, len(source), len(target)).eval()
    return Checkpoint(config, source, target, model, extra)


@pytest.fixture(params=["bahdanau", "transformer"])
def translator(request):
    return Translator(checkpoint(request.param))


def test_words_stand_on_both_sides_of_the_matrix(translator):
    found = translator("I love you.", shortest=3, longest=6)
    assert found.source == "I love you." and found.text
    assert found.matrix.source == ["I", "love", "you", "."]
    assert len(found.matrix.target) == found.matrix.weights.shape[0]
    assert found.matrix.weights.shape[1] == 4


def test_rows_are_those_of_the_head_without_the_end_of_the_source(translator):
    found = translator("I love you.", shortest=3, longest=6)
    head = translator.head.of(found.hypothesis.weights)
    said = [token for token in found.hypothesis.tokens if token != END]
    shifted = int(translator.reading == "input")
    assert shifted == (translator.checkpoint.config.model.name == "transformer")
    expected = head[shifted : shifted + len(said), :-1]
    torch.testing.assert_close(found.matrix.weights[: len(expected)], expected)


def test_the_trace_has_every_head_and_the_tokens_of_both_sides(translator):
    found = translator("I love you.", shortest=3, longest=6)
    assert list(found.trace.keys()) == list(translator.model.sites)
    record = found.trace[0]
    assert record.attends == "cross"
    assert record.key_tokens == ["I", "love", "you", ".", "</s>"]
    assert record.shape.heads == translator.model.sites[record.name]


def test_a_batch_gives_what_each_text_gives_alone(translator):
    texts = ["the small cat sleeps", "I love you.", "we don't sleep tonight"]
    together = translator.translate(texts, beam=3, batch=2)
    for text, found in zip(texts, together):
        alone = translator(text, beam=3)
        assert found[0].source == text and found[0].text == alone.text
        torch.testing.assert_close(found[0].matrix.weights, alone.matrix.weights)


def test_several_translations_come_best_first(translator):
    found = translator.translate(["we don't sleep"], beam=4, n_best=3)[0]
    scores = [one.score for one in found]
    assert len(found) == 3 and scores == sorted(scores, reverse=True)


def test_a_prefix_is_said_first(translator):
    found = translator.translate(["I love you."], prefix=["le petit"])[0][0]
    assert found.text.startswith("le petit")


def test_steps_end_with_the_translation(translator):
    *before, last = list(translator.steps("the small cat sleeps", beam=3, longest=7))
    whole = translator("the small cat sleeps", beam=3, longest=7)
    assert last.text == whole.text and before
    torch.testing.assert_close(last.matrix.weights, whole.matrix.weights)
    for one in before:
        assert one.matrix.weights.shape == (len(one.matrix.target), 4)


def test_links_name_the_strongest_source_word_of_each_target_word(translator):
    found = translator("I love you.", shortest=3, longest=6)
    strongest = found.matrix.weights.argmax(-1).tolist()
    assert found.links == {(source, target) for target, source in enumerate(strongest)}


def test_a_model_without_attention_says_so():
    found = Translator(checkpoint("none"))("I love you.", longest=4)
    assert found.matrix is None and len(found.trace) == 0
    with pytest.raises(UnavailableError, match="no attention from target to source"):
        _ = found.links


def test_the_head_is_the_checkpoints_or_the_callers():
    named = checkpoint("transformer", head={"site": "0.cross", "index": 1})
    assert Translator(named).head == Head("0.cross", 1)
    assert Translator(named, head=Head("0.cross", None)).head == Head("0.cross", None)
    with pytest.raises(RegardError, match=r"no site '7.cross'; there are 0.cross"):
        Translator(named, head=Head("7.cross", 0))
    with pytest.raises(RegardError, match=r"head 9 of '0.cross', expected 0 to 1"):
        Translator(named, head=Head("0.cross", 9))


def test_wrong_input_is_named(translator):
    with pytest.raises(RegardError, match="text 2 is empty"):
        translator.translate(["I love you.", " "])
    with pytest.raises(RegardError, match="1 texts, but 2 prefixes"):
        translator.translate(["I love you."], prefix=["a", "b"])
    with pytest.raises(RegardError, match="one text, expected a list"):
        translator.translate("I love you.")
    assert translator.translate([]) == []


def test_a_text_beyond_what_the_model_reads_is_refused():
    config = Config(model=ModelConfig(name="tutorial", embedding=8, hidden=8, longest=3))
    source = WordVocabulary.train(ENGLISH, size=40)
    target = WordVocabulary.train(FRENCH, size=40)
    model = build(config.model, len(source), len(target)).eval()
    with pytest.raises(RegardError, match=r"text 1 has 5 tokens with its end, .* at most 4"):
        Translator(Checkpoint(config, source, target, model))("the small cat sleeps")


def test_what_is_shown(translator):
    found = translator("I love you.", shortest=3, longest=6)
    assert repr(found) == f"Translation('I love you.' → {found.text!r}, score {found.score:.2f})"
    assert "<html" in found._repr_html_() or "<iframe" in found._repr_html_()
    name = translator.checkpoint.config.model.name
    assert repr(translator) == f"Translator({name}, reads {translator.head})"
    silent = Translator(checkpoint("none"))
    assert repr(silent) == "Translator(none, no attention to the source)"
    assert silent("I love you.", longest=4)._repr_html_() is None


def test_a_page_of_a_translation(translator, tmp_path):
    found = translator("I love you.", shortest=3, longest=6)
    assert found.head == translator.head
    path = found.save(tmp_path / "love.html", title="Love")
    assert "<title>Love" in path.read_text()
    with pytest.raises(UnavailableError, match="no attention from target to source"):
        Translator(checkpoint("none"))("I love you.", longest=4).save(tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
