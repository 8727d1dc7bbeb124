"""A translation as a page: what its manifest says, and which mistakes are named."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_translators import LOVE, saved_translator, silent_translator, translator

import regard.viewer
from regard.aggregate import Words
from regard.cli.packaged import PackagedTranslator
from regard.cli.packaged.translation import look_result, run_name
from regard.cli.serve import _served
from regard.errors import RegardError
from regard.translate.alignment import Head
from regard.translate.config import SearchOptions
from regard.translate.translator import Translator
from regard.viewer import page
from regard.viewer.scene import _FIELDS

MODELS = ["bahdanau", "transformer"]
SQUARE, CROSS = torch.eye(3).expand(1, 1, 3, 3), torch.rand(1, 2, 4, 3).softmax(-1)


def manifest(made):
    found = re.search(r'id="manifest">(.*?)</script>', made.html, re.DOTALL)
    return json.loads(found[1])["scenes"][0]


@pytest.mark.parametrize("name", MODELS)
def test_both_texts_are_named_and_in_words(name):
    model = translator(name)
    found = model(LOVE)
    scene = manifest(look_result("a title", found).page())
    target, source = scene["sequences"]
    assert (target["name"], source["name"]) == ("Translation", "Source")
    assert source["words"]["names"] == ["I", "love", "you", "very", "much", ".", "</s>"]
    assert source["special"][-1] and not any(source["special"][:-1])
    said = [n for n in target["words"]["names"] if n != "</s>"]
    assert said == found.matrix.target
    assert scene["title"] == "a title"
    assert scene["steps"] == {"prompt": 0, "sequence": 0}, "all of it was written"
    assert scene["sites"][0]["queries"] == len(target["tokens"])


def test_the_head_that_aligns_is_shown_first():
    checkpoint = translator("transformer").checkpoint
    chosen = Translator(checkpoint, head=Head("1.cross", 1))
    for model, start in (
        (translator("bahdanau"), "view=matrix&unit=words&layer=0&head=0"),
        (translator("transformer"), "view=matrix&unit=words&layer=0&mode=mean"),
        (chosen, "view=matrix&unit=words&layer=1&head=1"),
    ):
        assert manifest(look_result("x", model(LOVE)).page())["start"] == start


def test_steps_end_with_the_whole_translation():
    loaded = PackagedTranslator("x", translator())
    *before, last = loaded.steps(LOVE, 200)
    assert last.written == translator()(LOVE).text and len(before) > 3
    assert loaded.look(LOVE).written == last.written
    assert loaded.tokens(LOVE) == len(last.words[0].pieces) - 1
    *_, cut = loaded.steps(LOVE, 3)
    assert len(cut.words[1].pieces) == 3


def test_a_model_without_such_attention_is_refused():
    wanted = r"none: the model \(none\) has no attention from target to source, nor any inside its"
    with pytest.raises(RegardError, match=wanted):
        PackagedTranslator("none", translator("none"))


def test_attention_inside_the_encoder_alone_is_shown():
    model = translator("encoder-dot")
    *before, last = PackagedTranslator("x", model).steps(LOVE, 200)
    assert last.written == model(LOVE).text and len(before) > 1
    scene = manifest(last.page())
    (text,) = scene["sequences"]
    assert text["words"]["names"] == ["I", "love", "you", "very", "much", ".", "</s>"]
    assert scene["start"] == "view=matrix&unit=words" and scene["steps"] is None
    (site,) = scene["sites"]
    assert site["queries"] == site["keys"] == len(text["tokens"])


def test_a_translation_of_no_word_is_refused(without_shape_checks):
    """Its drafts may have said nothing so far; one that ends so has nothing to show."""
    model = silent_translator("transformer")
    with pytest.raises(RegardError, match="the translation of this text is empty"):
        list(PackagedTranslator("x", model).steps(LOVE, 10))
    silent, real = model(LOVE), translator("transformer")

    def spoken(*found):
        steps = lambda text, longest: iter(found)
        return SimpleNamespace(
            head=real.head, model=real.model, checkpoint=real.checkpoint, steps=steps
        )

    with pytest.raises(RegardError, match="the translation of this text is empty"):
        list(PackagedTranslator("x", spoken(real(LOVE), silent)).steps(LOVE, 10))
    assert len(list(PackagedTranslator("x", spoken(silent, real(LOVE))).steps(LOVE, 10))) == 1


def test_a_checkpoint_has_the_name_of_its_run(tmp_path):
    assert run_name(Path("/runs/en-fr/best.safetensors")) == "en-fr"
    assert run_name(Path("/runs/en-fr/average.safetensors")) == "en-fr"
    assert run_name(Path("my-model.safetensors")) == "my-model"
    path = saved_translator(tmp_path / "small.safetensors")
    loaded = PackagedTranslator.of_checkpoint(path)
    assert loaded.title == "small" and loaded.look(LOVE).written == translator()(LOVE).text


def test_a_server_names_what_it_cannot_load(tmp_path):
    path = saved_translator(tmp_path / "small.safetensors")
    with pytest.raises(RegardError, match=r"small.safetensors: two models are named 'small'"):
        _served(path, {"small"})
    with pytest.raises(RegardError, match=r"nothing.safetensors"):
        _served(tmp_path / "nothing.safetensors", set())
    silent = saved_translator(tmp_path / "silent.safetensors", "none")
    with pytest.raises(RegardError, match=r"silent: the model \(none\) has no attention"):
        _served(silent, set())
    assert _served(path, set()).shown()["translates"]


@pytest.mark.parametrize(
    ("name", "title"),
    [("english-french", "English to French"), ("french-english", "French to English")],
)
def test_a_translator_that_ships_is_served_by_name(name, title):
    served = _served(name, set())
    assert served.title == title
    *_, last = served.translate(served.example, 200)
    assert last.text == Translator.load(name)(served.example).text
    assert [line.name for line in last.scene.lines] == ["Translation", "Source"]


def test_wrong_names_and_starts_are_told(without_shape_checks):
    with pytest.raises(RegardError, match=r"names=\('a',\), expected two"):
        page(CROSS, names=("a",))
    with pytest.raises(RegardError, match="but queries and keys are of one text"):
        page(SQUARE, names=("a", "b"))
    with pytest.raises(RegardError, match="there is no field 'veiw', expected view, part, layer"):
        page(CROSS, start="unit=words&veiw=lines")


def test_every_field_of_a_link_can_be_started_with():
    state = (Path(regard.viewer.__file__).parent / "frontend/state/state.js").read_text()
    start = re.search(r"return \{(.*?)\n  \};", state, re.DOTALL)[1]
    assert set(re.findall(r"(\w+): ", re.sub(r"\{.*?\}", "0", start))) == set(_FIELDS)


def test_a_prompt_of_no_token_is_of_cross_attention_alone():
    assert manifest(page(CROSS, prompt=0))["steps"]["prompt"] == 0
    with pytest.raises(RegardError, match="prompt=0, expected a number of tokens from 1 to 3"):
        page(SQUARE, prompt=0)


def test_what_is_not_said_stays_as_it_was():
    scene = manifest(page(CROSS, words=Words.each(["a", "b", "c", "d"])))
    assert scene["start"].startswith("view=matrix&part=0&") and scene["steps"] is None
    assert [line["name"] for line in scene["sequences"]] == [None, None]


@pytest.mark.parametrize("text", ["Tom", "Paris", "Internet"])
def test_a_text_that_is_its_own_translation_has_two_lines(text, tmp_path):
    """Both sides have the same tokens, of one vocabulary."""
    found = Translator.load()(text)
    assert found.text == text
    scene = manifest(page(found.trace, **found.page_options))
    assert [line["name"] for line in scene["sequences"]] == ["Translation", "Source"]
    assert found.save(tmp_path / "same.html").stat().st_size > 1000
    *_, last = PackagedTranslator("x", Translator.load()).steps(text, 50)
    assert last.written == text and len(manifest(last.page())["sequences"]) == 2


def test_words_of_other_texts_are_still_refused():
    found = translator("bahdanau")(LOVE)
    options = found.page_options | {"words": [*found.words, Words.each(["a"] * 40)]}
    with pytest.raises(RegardError, match="words of 40 pieces fit no attention"):
        page(found.trace, **options)


def test_a_notebook_shows_the_head_that_aligns():
    checkpoint = translator("transformer").checkpoint
    found = Translator(checkpoint, head=Head("1.cross", 1))(LOVE)
    shown = html.unescape(found._repr_html_())
    assert "view=matrix&unit=words&layer=1&head=1" in shown
    assert '"name":"Translation"' in shown.replace('": "', '":"')
    empty = silent_translator("transformer")(LOVE)
    assert empty.text == "" and empty._repr_html_() is None


def test_the_server_keeps_the_limit_of_the_checkpoint():
    model = translator()
    limited = replace(
        model.checkpoint, config=replace(model.checkpoint.config, search=SearchOptions(longest=3))
    )
    *_, last = PackagedTranslator("x", Translator(limited)).steps(LOVE, 200)
    assert last.written == Translator(limited)(LOVE).text
    assert len(last.words[1].pieces) == 3


def test_models_that_are_not_served_are_told_how(tmp_path):
    with pytest.raises(
        RegardError, match=r"nope: expected minilm, .*english-french, french-english, mobilesam"
    ):
        _served("nope", set())
    with pytest.raises(RegardError, match=r"a checkpoint is served with --translator .*x\.safeten"):
        _served("x.safetensors", set())
    for name in ("best", "average"):
        saved_translator(tmp_path / f"{name}.safetensors", "bahdanau")
    first = _served(tmp_path / "best.safetensors", set())
    second = _served(tmp_path / "average.safetensors", {first.name})
    assert second.name == f"{first.name} (average)"
