"""A translation over a real socket: drafts as they come, the exact attention at the end."""

import base64
import json
import threading
from itertools import pairwise

import pytest
import torch
from serving import refused, running, small
from small_translators import LONG, LOVE, saved_translator, translator

from regard.cli.packaged import PackagedTranslator, shipped_translator
from regard.cli.serve import _of_translator, _served
from regard.translate.checkpoint import Checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.translator import Translator
from regard.translate.vocabulary import WordVocabulary
from regard.viewer import Scene
from regard.viewer.server import Draft, ServedModel

MODELS = ["bahdanau", "transformer"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translators")
    return [_served(saved_translator(folder / f"{n}.safetensors", n), set()) for n in MODELS]


@pytest.fixture(scope="module")
def here(served):
    with running([*served, small()]) as found:
        yield found


def events(here, model, text, path="/api/translate"):
    body = {"model": model, "text": text}
    with here.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in answer.iter_lines()]


def rows_of(text, heads, keys):
    data = bytearray(base64.b64decode(text))
    if not data:
        return torch.zeros(heads, 0, keys)
    return torch.frombuffer(data, dtype=torch.float16).reshape(heads, -1, keys).float()


def put_together(drafts):
    """What a reader knows after each draft: text, tokens, and the rows of every site."""
    known = []
    for draft in drafts:
        sites = draft["scene"]["sites"]
        new = [rows_of(rows, s["heads"], s["keys"]) for rows, s in zip(draft["rows"], sites)]
        old = [rows[:, : draft["known"]] for rows in known] or [one[:, :0] for one in new]
        known = [torch.cat(pair, 1) for pair in zip(old, new)]
        yield draft["text"], draft["scene"]["sequences"][0]["tokens"], known


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", [LOVE, LONG])
def test_drafts_are_the_steps_of_the_search(here, name, text):
    *drafts, done = events(here, name, text)
    assert {draft["event"] for draft in drafts} == {"draft"} and done["event"] == "done"
    assert [draft["step"] for draft in drafts] == list(range(1, len(drafts) + 1))
    longest = 2 * len(translator(name).checkpoint.source.encode(text)) + 12
    steps = {one.text: one for one in translator(name).steps(text, longest=longest)}
    for said, tokens, sites in put_together(drafts):
        trace = steps[said].trace
        assert len(sites) == len(trace)
        for got, record in zip(sites, trace):
            if record.query_tokens == tokens:  # one text may be several drafts: with an end, or not
                torch.testing.assert_close(got, record.weights()[0], atol=1e-3, rtol=1e-3)
    assert drafts[-1]["text"] == done["text"] == translator(name)(text).text


def test_only_new_rows_are_sent(here):
    *drafts, _ = events(here, "bahdanau", LONG)
    changed = [b for a, b in pairwise(drafts) if not b["text"].startswith(a["text"])]
    assert changed, "this sentence overtakes itself"
    for before, now in pairwise(drafts):
        old, new = (one["scene"]["sequences"][0]["tokens"] for one in (before, now))
        common = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), len(old))
        assert now["known"] >= min(common, len(new)), "rows of words that stay are not sent again"


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_is_exact_and_in_words(here, name):
    done = events(here, name, LOVE)[-1]
    found = translator(name)(LOVE)
    scene = here.client.get(f"/api/traces/{done['id']}").json()
    assert scene["steps"] == {"prompt": 0, "sequence": 0}
    assert [line["name"] for line in scene["sequences"]] == ["Translation", "Source"]
    base, mode = f"/api/traces/{done['id']}", {"bahdanau": "head", "transformer": "mean"}[name]
    for word, want in enumerate(found.matrix.weights):
        row = here.client.get(f"{base}/row?layer=0&mode={mode}&unit=words&row={word}").content
        got = torch.frombuffer(bytearray(row), dtype=torch.float32)[:-1]  # the end of the source
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


def test_attention_inside_the_encoder_stays_while_the_text_grows():
    name = "encoder-dot"
    with running([_of_translator(name, PackagedTranslator(name, translator(name)))]) as there:
        first, *drafts, done = events(there, name, LOVE)
        scene = there.client.get(f"/api/traces/{done['id']}").json()
    size = len(first["scene"]["sequences"][0]["tokens"])
    assert first["known"] == 0 and {draft["known"] for draft in drafts} == {size}
    assert done["text"] == translator(name)(LOVE).text == drafts[-1]["text"] != first["text"]
    assert len(scene["sequences"]) == 1 and scene["steps"] is None


def test_a_whole_translation_can_be_asked_for_at_once(here):
    scene = here.look("bahdanau", LOVE).json()
    assert scene["sequences"][1]["words"]["names"][:3] == ["I", "love", "you"]
    assert scene["start"] == "view=matrix&unit=words&layer=0&head=0"


def test_who_translates_is_told(here):
    models = {one["name"]: one for one in here.client.get("/api/models").json()["models"]}
    assert list(models) == [*MODELS, "small"]
    assert models["bahdanau"]["translates"] and not models["small"]["translates"]
    assert not models["bahdanau"]["generates"]


def test_the_sentence_that_is_offered_has_words_that_the_model_knows():
    source = WordVocabulary.train(["one two three four five"], size=30)
    model = build_model(ModelConfig("dot", embedding=8, hidden=8), len(source), len(source))
    loaded = PackagedTranslator("numbers", Translator(Checkpoint(Config(), source, source, model)))
    assert _of_translator("numbers", loaded).example == ""
    assert loaded.knows("two four") and not loaded.knows("six")


def test_letters_spelt_by_bytes_are_not_known():
    loaded = PackagedTranslator("small", translator())
    assert loaded.knows("the little story") and not loaded.knows("The little story")
    assert _of_translator("small", loaded).example == ""


def test_the_translator_of_the_package_has_a_sentence_to_begin_with():
    for name, sentence in (("english-french", "The cat is "), ("french-english", "Le chat dort ")):
        served = _of_translator(name, shipped_translator(name))
        assert served.example.startswith(sentence)


def ask(here, model="bahdanau", text=LOVE):
    return here.client.post("/api/translate", json={"model": model, "text": text})


def test_what_cannot_be_translated_is_refused_before_it_begins(here):
    refused(ask(here, text="  "), 422, "empty_text")
    refused(ask(here, text=7), 422, "wrong_value")
    told = refused(ask(here, "nobody"), 404, "not_found")
    assert told["message"] == f"there is no model 'nobody'; there are: {', '.join(MODELS)}, small"
    error = refused(ask(here, "small"), 422, "does_not_translate")
    assert error["message"] == "Small does not translate text"
    error = refused(ask(here, text="cat " * 500), 422, "too_many_tokens")
    assert error["limit"] == 200 and error["got"] > 200
    assert ask(here).status_code == 200


def test_a_source_beyond_what_the_model_reads_is_translated_in_parts(monkeypatch):
    monkeypatch.setattr(translator().model, "longest_source", 5)
    with running(
        [_of_translator("bahdanau", PackagedTranslator("bahdanau", translator()))]
    ) as here:
        *drafts, done = events(here, "bahdanau", LOVE)
    assert done["event"] == "done" and done["text"] == drafts[-1]["text"]
    sources = [draft["scene"]["sequences"][1]["words"]["names"] for draft in drafts]
    assert sources[0] == ["I", "love", "</s>"] and sources[-1][:3] == ["I", "love", "you"]


def test_the_longest_translation_follows_the_limits(served):
    with running(served, new_tokens=3) as here:
        *drafts, done = events(here, "bahdanau", LOVE)
        assert len(drafts[-1]["scene"]["sequences"][0]["tokens"]) == 3 and done["id"]
    with running(served, positions=6) as here:
        error = refused(ask(here), 422, "too_many_tokens")
        assert error["limit"] == 3


def rows_that_say(words):
    """(1, 1, word, 7): what each word looked at, which the word alone decides."""
    rows = [torch.rand(7, generator=torch.Generator().manual_seed(ord(word))) for word in words]
    return torch.stack(rows).softmax(-1)[None, None]


def scripted(*drafts, failing=None, then=lambda: None):
    """A translator that says these texts, one after the other."""

    def translate(text, most):
        try:
            for said in drafts:
                scene = Scene.of(rows_that_say(said.split()), prompt=0, title=said)
                yield Draft(said, scene)
                if said == failing:
                    raise ValueError("secret")
        finally:
            then()

    return ServedModel("scripted", "Scripted", "text", lambda text: None, translate=translate)


def test_words_that_change_are_sent_anew_and_those_that_do_not_are_not():
    texts = ["a", "a b", "a b", "a c", "a c d", "a b", "e b c d"]
    with running([scripted(*texts)]) as here:
        *drafts, done = events(here, "scripted", "x")
    assert [draft["text"] for draft in drafts] == ["a", "a b", "a c", "a c d", "a b", "e b c d"]
    assert [draft["known"] for draft in drafts] == [0, 1, 1, 2, 1, 0]
    for said, _, (rows,) in put_together(drafts):
        torch.testing.assert_close(rows[None], rows_that_say(said.split()), atol=1e-3, rtol=1e-3)
    assert done["text"] == "e b c d"


def test_an_error_on_the_way_is_the_last_event():
    with running([scripted("a", "a b", "a b c", failing="a b")]) as here:
        *drafts, last = events(here, "scripted", "x")
        assert [draft["text"] for draft in drafts] == ["a", "a b"]
        assert last["event"] == "error" and last["error"]["code"] == "model_failed"
        assert "secret" not in str(last)


def test_who_leaves_stops_the_translation():
    over = threading.Event()
    endless = [f"{'a ' * (n % 4 + 1)}"[:-1] for n in range(10_000)]
    with running([scripted(*endless, then=over.set), small()]) as here:
        body = {"model": "scripted", "text": "x"}
        with here.client.stream("POST", "/api/translate", json=body) as answer:
            assert json.loads(next(answer.iter_lines()))["event"] == "draft"
        assert over.wait(10)
        assert here.look().status_code == 200


def test_a_translation_that_says_nothing_new_is_stopped_all_the_same():
    """No event is sent, and yet the model must not go on for somebody who left, or for ever."""
    over = threading.Event()
    with running([scripted(*["a b"] * 100_000, then=over.set)], seconds=0.5) as here:
        last = events(here, "scripted", "x")[-1]
        assert last["error"]["code"] == "too_slow"
        assert over.wait(10)


def test_events_are_as_the_description_says(here):
    schemas = here.client.get("/openapi.json").json()["components"]["schemas"]
    *drafts, done = events(here, "bahdanau", LOVE)
    said = schemas["DraftEvent"]["properties"]
    for event in [*drafts, done]:
        assert set(event) <= set(said) and event["event"] in said["event"]["enum"]
    assert set(drafts[0]) == {"event", "step", "text", "scene", "known", "rows"}
    assert set(drafts[0]["scene"]) == set(schemas["Draft"]["required"])
