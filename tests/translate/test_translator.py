"""The translator: text in, text and its alignment out."""

from dataclasses import replace

import pytest
import torch
from text_translators import ENGLISH, FRENCH, checkpoint
from text_translators import translator as translator

from regard.errors import RegardError, UnavailableError
from regard.translate.alignment import Head
from regard.translate.checkpoint import Checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.search import SearchOptions
from regard.translate.tokens import BEGIN, END
from regard.translate.translator import Translator
from regard.translate.vocabulary import PieceVocabulary, WordVocabulary


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


def test_a_prefix_is_a_text_wherever_there_is_one_text(translator):
    assert translator("I love you.", prefix="le petit").text.startswith("le petit")
    *_, last = translator.steps("I love you.", prefix="le petit")
    assert last.text == translator("I love you.", prefix="le petit").text


@pytest.mark.usefixtures("without_shape_checks")
def test_a_prefix_of_the_wrong_kind_is_named(translator):
    with pytest.raises(RegardError, match=r"prefix is one text, 'V', expected a list: one a text"):
        translator.translate(["I love you."], prefix="V")
    for call in (translator, lambda *a, **o: list(translator.steps(*a, **o))):
        with pytest.raises(RegardError, match=r"prefix is \['le'\], expected a text"):
            call("I love you.", prefix=["le"])


def test_steps_end_with_the_translation(translator):
    *before, last = list(translator.steps("the small cat sleeps", beam=3, longest=7))
    whole = translator("the small cat sleeps", beam=3, longest=7)
    assert last.text == whole.text and before
    torch.testing.assert_close(last.matrix.weights, whole.matrix.weights)
    for one in before:
        assert one.matrix.weights.shape == (len(one.matrix.target), 4)


def test_rows_sum_to_one_also_where_the_last_word_was_no_input_yet(translator):
    """Of a translation that is cut, or still growing, one more step is made for its last word."""
    chosen = Translator(translator.checkpoint, reading="input", end="kept")
    text = "the small cat sleeps"
    cut = chosen.translate([text, "I love you."], beam=3, n_best=2, shortest=2, longest=3)
    growing = list(chosen.steps(text, beam=3, shortest=5, longest=7))
    seen = 0
    for found in (*cut[0], *cut[1], *growing):
        said = [token for token in found.hypothesis.tokens if token != END]
        seen += len(said) == len(found.hypothesis.tokens)
        for record in found.trace:
            weights = record.weights()[0]
            assert weights.shape[1] == len(said) and record.kind == "distribution"
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
        torch.testing.assert_close(found.matrix.weights.sum(-1), torch.ones(len(said)))
    assert seen > 4


def test_the_row_of_a_last_word_is_that_of_a_teacher_forced_pass(translator):
    chosen = Translator(translator.checkpoint, reading="input")
    found = chosen("the small cat sleeps", shortest=2, longest=3)
    source = torch.tensor([[*chosen.checkpoint.source.encode(found.source), END]])
    encoded = chosen.model.encode(source, torch.ones_like(source, dtype=torch.bool))
    given = torch.tensor([[BEGIN, *found.hypothesis.tokens]])
    forced = chosen.model.decode(encoded, given, weights=True).weights
    for record in found.trace:
        expected = forced[record.name][0, :, 1:]
        assert expected.shape[1] == 3
        torch.testing.assert_close(record.weights()[0], expected, atol=1e-5, rtol=1e-5)


def test_links_name_the_strongest_source_word_of_each_target_word(translator):
    found = translator("I love you.", shortest=3, longest=6)
    strongest = found.matrix.weights.argmax(-1).tolist()
    assert found.links == {(source, target) for target, source in enumerate(strongest)}


def test_a_model_without_attention_says_so():
    found = Translator(checkpoint("none"))("I love you.", longest=4)
    assert found.matrix is None and len(found.trace) == 0
    with pytest.raises(UnavailableError, match="no attention from target to source"):
        _ = found.links


@pytest.mark.parametrize("name", ["encoder-dot", "encoder-qkv"])
def test_a_model_with_attention_inside_its_encoder_shows_that(name, tmp_path):
    translator = Translator(checkpoint(name))
    assert translator.head is None and translator.inside == ["encoder"]
    texts = ["I love you.", "we sleep"]
    for found in (*(one[0] for one in translator.translate(texts)), *translator.steps(texts[0])):
        assert found.matrix is None
        words = translator.checkpoint.source.words(found.source).names
        assert found.inside.source == found.inside.target == words
        (record,) = found.trace
        assert (record.name, record.attends) == ("encoder", "self")
        assert record.query_tokens == record.key_tokens == [*words, "</s>"]
        source = torch.tensor([[*translator.checkpoint.source.encode(found.source), END]])
        mask = torch.ones_like(source, dtype=torch.bool)
        expected = translator.model.encode(source, mask, weights=True).weights["encoder"]
        torch.testing.assert_close(record.weights(), expected)
        torch.testing.assert_close(record.weights().sum(-1), torch.ones(1, 1, len(words) + 1))
        torch.testing.assert_close(found.inside.weights, expected[0, 0, :-1, :-1])
        with pytest.raises(UnavailableError, match="no attention from target to source"):
            _ = found.links
    page = found.save(tmp_path / "inside.html").read_text()
    assert "I love you. →" in page and "<iframe" in found._repr_html_()


def test_without_weights_there_is_text_alone(translator):
    found = translator("I love you.", weights=False)
    assert found.text == translator("I love you.").text
    assert found.matrix is None and not len(found.trace)
    with pytest.raises(UnavailableError, match="made with weights=False, so there is no align"):
        _ = found.links
    *_, last = translator.steps("I love you.", weights=False)
    assert last.text == found.text and last.matrix is None
    inner = Translator(checkpoint("encoder-dot"))("I love you.", weights=False)
    assert inner.inside is None and not len(inner.trace)


def test_words_between_spaces(translator):
    found = translator("we don't sleep.", prefix="Je t'aime.", longest=7)
    matrix = translator.between_spaces(found)
    assert matrix.source == ["we", "don't", "sleep."]
    assert matrix.target == found.text.split() and matrix.target[:2] == ["Je", "t'aime."]
    words = found.matrix  # we, do, n't, sleep, . and Je, t', aime, .
    assert words.source == ["we", "do", "n't", "sleep", "."]
    assert words.target[:4] == ["Je", "t'", "aime", "."]
    pooled = words.weights[1:4].mean(0)
    expected = torch.stack([pooled[0], pooled[1:3].sum(), pooled[3:].sum()])
    torch.testing.assert_close(matrix.weights[1], expected)
    for end in ("kept", "renormalised"):
        same = Translator(translator.checkpoint, end=end)
        again = same.between_spaces(same("we don't sleep.", prefix="Je t'aime.", longest=7))
        assert again.source == matrix.source and again.links() == matrix.links()
    for lacking in (translator("we", weights=False), Translator(checkpoint("none"))("we")):
        with pytest.raises(UnavailableError, match="so there is no alignment"):
            translator.between_spaces(lacking)


def test_the_head_is_the_checkpoints_or_the_callers():
    named = checkpoint("transformer", head={"site": "0.cross", "index": 1})
    assert Translator(named).head == Head("0.cross", 1)
    assert Translator(named, head=Head("0.cross", None)).head == Head("0.cross", None)
    with pytest.raises(RegardError, match=r"no site '7.cross'; there are 0.cross"):
        Translator(named, head=Head("7.cross", 0))
    with pytest.raises(RegardError, match=r"head 9 of '0.cross', expected 0 to 1"):
        Translator(named, head=Head("0.cross", 9))


def test_a_remembered_head_brings_its_reading():
    named = checkpoint("transformer", head={"site": "0.cross", "index": 1, "reading": "output"})
    assert Translator(named).reading == "output"
    assert Translator(named, reading="input").reading == "input"
    assert Translator(named, head=Head("0.cross", 0)).reading == "input"
    with pytest.raises(RegardError, match=r"names the head 'first', expected its site and index"):
        Translator(checkpoint("transformer", head="first"))


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_reading_or_end_is_refused_at_once():
    with pytest.raises(RegardError, match="reading='foo', expected 'output' or 'input'"):
        Translator(checkpoint(), reading="foo")
    with pytest.raises(RegardError, match="end='foo', expected 'left out', 'renormalised' or"):
        Translator(checkpoint(), end="foo")


def test_a_text_that_becomes_no_token_is_empty(translator):
    pieces = PieceVocabulary.train(ENGLISH * 4, size=300)
    model = build_model(translator.checkpoint.config.model, len(pieces), 40).eval()
    source = replace(translator.checkpoint, source=pieces, model=model)
    with pytest.raises(RegardError, match="text 1 is empty, expected a sentence: '▁'"):
        Translator(source)("▁")


def test_an_empty_translation_has_no_page(translator, tmp_path):
    chosen = Translator(translator.checkpoint, reading="input")
    real = chosen("I love you.", longest=2)
    ended = replace(
        real.hypothesis,
        tokens=[END],
        weights={site: one[:, :1] for site, one in real.hypothesis.weights.items()},
    )
    seen = chosen._source_batch([chosen._encoded("I love you.")])
    found = chosen._reader.read(["I love you."], [[ended]], seen, True)[0][0]
    assert found.text == "" and found.matrix.target == [] and found.links == frozenset()
    with pytest.raises(UnavailableError, match="the translation is empty, so no word of it"):
        found.save(tmp_path / "empty.html")


def test_wrong_input_is_named(translator):
    for batch in (0, -1):
        with pytest.raises(RegardError, match=f"batch is {batch}, expected at least 1"):
            translator.translate(["I love you."], batch=batch)
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
    model = build_model(config.model, len(source), len(target)).eval()
    translator = Translator(Checkpoint(config, source, target, model))
    with pytest.raises(RegardError, match=r"has 5 tokens with its end, .* at most 4; split=True"):
        translator("the small cat sleeps", split=False)
    assert [part.source for part in translator("the small cat sleeps").parts] == [
        "the small",
        "cat sleeps",
    ]


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


def test_what_is_no_text_is_refused(translator, without_shape_checks):
    with pytest.raises(
        RegardError, match=r"text is a list, expected one text; .translate\(texts\)"
    ):
        translator(["I love you.", "we sleep"])
    with pytest.raises(RegardError, match=r"a call gives the best translation; .translate\("):
        translator("I love you.", n_best=3)
    with pytest.raises(RegardError, match="text 1 is int, expected a text"):
        translator(3)
    with pytest.raises(RegardError, match="text 2 is NoneType, expected a text"):
        translator.translate(["I love you.", None])


def test_an_empty_text_may_have_no_translation(translator):
    found = translator.translate(["I love you.", "", " ", "you love cats"], empty=True, longest=6)
    alone = translator.translate(["I love you.", "you love cats"], longest=6)
    assert [len(one) for one in found] == [1, 0, 0, 1]
    assert [found[0][0].text, found[3][0].text] == [one[0].text for one in alone]
    with pytest.raises(RegardError, match="text 2 is empty, expected a sentence"):
        translator.translate(["I love you.", ""])


def test_texts_may_come_one_by_one(translator, without_shape_checks):
    texts = ["I love you.", "you love cats"]
    found = translator.translate(iter(texts), longest=6)
    assert [one[0].source for one in found] == texts
    with pytest.raises(RegardError, match="texts is 3, expected a list of texts"):
        translator.translate(3)


def test_an_unknown_option_is_named_with_the_nearest(translator):
    for call in (translator, lambda text, **options: translator.translate([text], **options)):
        with pytest.raises(RegardError, match=r"^translate: there is no option beams; did you mea"):
            call("I love you.", beams=3)
        with pytest.raises(RegardError, match=r"option n_bests; did you mean n_best\?"):
            call("I love you.", n_bests=3)
    with pytest.raises(RegardError, match=r"^translate: there is no option x; there are: beam, le"):
        translator("I love you.", x=1)
    with pytest.raises(RegardError, match=r"^steps: there is no option n_best; "):
        list(translator.steps("I love you.", n_best=2))


def test_a_path_is_no_checkpoint(without_shape_checks):
    with pytest.raises(RegardError, match=r"expected a Checkpoint; Translator.load\(path\) reads"):
        Translator("best.safetensors")


def test_a_head_goes_by_its_name_too(without_shape_checks):
    made = checkpoint("transformer")
    assert Translator(made, head="0.cross:1").head == Head("0.cross", 1)
    assert Translator(made, head="0.cross").head == Head("0.cross", None)
    assert Translator(checkpoint(), head="cross").head == Head("cross", 0)
    for given, message in (
        ("foo", r"head foo, expected one of 0.cross:0, 0.cross:1, 0.cross$"),
        (3, r"head is 3, expected a Head or a name such as 'cross:0'"),
    ):
        with pytest.raises(RegardError, match=message):
            Translator(made, head=given)
    with pytest.raises(RegardError, match="head cross:0: no attention of this model goes from"):
        Translator(checkpoint("none"), head="cross:0")


def test_a_prefix_of_unknown_words_is_refused(translator):
    with pytest.raises(RegardError, match=r"prefix 1 is 'le Zaphod', .* no tokens for: Zaphod"):
        translator("I love you.", prefix="le Zaphod")
    with pytest.raises(RegardError, match="prefix 2 is 'Zaphod dort'"):
        translator.translate(["I love you."] * 2, prefix=["le", "Zaphod dort"])


def test_translations_of_a_text_are_different():
    """The same text in other pieces is no second translation."""
    loaded = Translator.load()
    texts = ["It's raining cats and dogs, isn't it?", "I love you."]
    for found in loaded.translate(texts, n_best=5, weights=False):
        said = [one.text for one in found]
        assert len(set(said)) == len(said) > 2
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
    hypotheses = [one.hypothesis for one in loaded.translate(texts[:1], n_best=3)[0]]
    double = replace(hypotheses[1], tokens=hypotheses[0].tokens, score=-9.0)
    assert loaded._distinct([hypotheses[0], double, hypotheses[2]]) == [
        hypotheses[0], hypotheses[2]
    ]  # fmt: skip


def test_the_end_is_no_word_to_be_linked(translator):
    kept = Translator(translator.checkpoint, end="kept")("I love you.", shortest=3, longest=6)
    words = len(kept.words[1].without_special().names)
    assert len(kept.matrix.source) == 5
    assert all(source < 4 and target < words for source, target in kept.links)
    assert kept.links < kept.matrix.links() or kept.links == kept.matrix.links()


def test_samples_are_as_many_as_wanted_and_reproducible(translator):
    options = {"sample": True, "n_best": 8, "temperature": 1.5, "longest": 6}
    samples = [sample.text for sample in translator.translate(["I love you."], **options)[0]]
    assert len(samples) == 8 and len(set(samples)) > 1
    texts = ["you love cats", "I love you."]  # in a batch
    again = translator.translate(texts, **options)[1]
    assert [sample.text for sample in again] == samples
    assert translator("I love you.", **(options | {"n_best": 1})).text == samples[0]


def test_a_checkpoint_that_samples_can_be_asked_to_search():
    stored = checkpoint("transformer")
    config = replace(stored.config, search=SearchOptions(sample=True, temperature=2.0))
    sampling = Translator(replace(stored, config=config))
    searched = Translator(stored)("I love you.")
    assert sampling("I love you.", sample=False).score == pytest.approx(searched.score)
    with pytest.raises(RegardError, match=r"temperature is 3\.0, which has no effect without"):
        sampling("I love you.", sample=False, temperature=3.0)
