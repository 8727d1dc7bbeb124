"""Trained models over a real socket: looking, generating, many at once."""

import base64
import json
import threading
import zlib

import httpx
import pytest
import torch
from serving import refused, running

import regard
from regard.cli import packaged

SENTENCE = "The animal did not cross the street because it was too tired"
PROMPT = "The cat sat on the mat. The cat sat on the"


@pytest.fixture(scope="module")
def here(minilm, smollm2):
    with running([minilm, smollm2]) as found:
        yield found


def floats(answer):
    assert answer.status_code == 200, answer.text
    return torch.frombuffer(bytearray(answer.content), dtype=torch.float32)


def chunk(here, name, said):
    """A chunk of a trace, as the page decodes it."""
    data = here.client.get(f"/api/traces/{name}/chunks/{said['id']}").content
    kinds = {"f32": (torch.float32, 4), "f16": (torch.float16, 2), "u8": (torch.uint8, 1)}
    dtype, width = kinds[said["dtype"]]
    planes = torch.frombuffer(bytearray(zlib.decompress(data)), dtype=torch.uint8)
    whole = planes.reshape(width, -1).t().contiguous().view(dtype)
    return whole.reshape(said["shape"])


def attention_of(text):
    loaded = packaged.minilm()
    encoded = loaded.encode(text)
    with torch.inference_mode():
        return regard.trace(loaded.model, **encoded.inputs)


def test_models_and_limits(here):
    found = here.client.get("/api/models").json()
    models = {model["name"]: model for model in found["models"]}
    assert list(models) == ["minilm", "smollm2"]
    assert not models["minilm"]["generates"] and models["smollm2"]["generates"]
    assert models["minilm"]["example"] == SENTENCE
    assert found["limits"]["queue"] == 16


def test_a_small_trace_is_sent_packed_and_rows_are_exact(here):
    found = here.look("minilm", SENTENCE).json()
    trace = attention_of(SENTENCE)
    assert [site["name"] for site in found["sites"]] == trace.names()
    assert found["sequences"][0]["words"]["names"][2] == "animal"
    assert found["sites"][3]["maps"][1]["kind"] == "dense"
    sent = chunk(here, found["id"], found["sites"][3]["maps"][1]["weights"])
    want = trace[3].weights()[0, 1]
    assert torch.equal(sent, want)
    base = f"/api/traces/{found['id']}"
    it = found["sequences"][0]["tokens"].index("it")
    animal = found["sequences"][0]["tokens"].index("animal")
    row = floats(here.client.get(f"{base}/row?layer=3&head=1&row={it}"))
    assert torch.equal(row, want[it])
    assert row[animal] > 0.5, "what this head is known for"
    column = floats(here.client.get(f"{base}/column?layer=3&head=1&column={animal}"))
    torch.testing.assert_close(column, want[:, animal], atol=1e-6, rtol=1e-5)
    tile = floats(here.client.get(f"{base}/tile?layer=3&head=1&row=0&column=0"))
    assert torch.equal(tile.reshape(want.shape), want)
    assert here.client.get("/api/traces").json()["traces"] == [], "others are not told of it"


def test_what_the_model_itself_refuses(here):
    error = refused(here.look("minilm", "word " * 600), 422, "model_refused")
    assert "602 tokens, at most 512 fit" in error["message"]
    assert here.look("minilm", "a word").status_code == 200


def generated(here, tokens=6, text=PROMPT):
    body = {"model": "smollm2", "text": text, "tokens": tokens}
    with here.client.stream("POST", "/api/generate", json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in answer.iter_lines()]


def rows_of(text, shape):
    data = bytearray(base64.b64decode(text))
    return torch.frombuffer(data, dtype=torch.float16).reshape(shape).float()


def test_the_map_grows_word_by_word(here):
    lines = generated(here)
    steps = [line for line in lines if line["event"] == "step"]
    prompt = [line for line in lines if line["event"] == "prompt"]
    begin, sites, done = lines[0], lines[1], lines[-1]
    assert [begin["event"], sites["event"], done["event"]] == ["begin", "sites", "done"]
    assert len(prompt) == len(sites["sites"]) == 30 and len(steps) == 6
    assert steps[0]["token"] == "Ġmat", "it goes on as it began"
    for step in steps:
        names, shares = zip(*step["likely"])
        assert names[0] == step["token"] and list(shares) == sorted(shares, reverse=True)
    count = len(begin["tokens"])
    loaded = packaged.smollm2()
    tokens = [*begin["tokens"], *(step["token"] for step in steps)]
    ids = torch.tensor([loaded.tokenizer.convert_tokens_to_ids(tokens)])
    with torch.inference_mode():
        whole = regard.trace(loaded.model, ids)  # all at once, without a cache
        probabilities = loaded.model(ids).logits[0, count - 1 :].softmax(-1)
    for step, expected in zip(steps, probabilities.max(-1).values.tolist()):
        assert step["likely"][0][1] == pytest.approx(expected, abs=1e-4)
    for layer in (0, 17, 29):
        want = whole[layer].weights()[0]
        got = rows_of(prompt[layer]["rows"], prompt[layer]["shape"])
        torch.testing.assert_close(got, want[:, :count, :count], atol=1e-3, rtol=1e-3)
        for number, step in enumerate(steps[1:]):
            keys = count + 1 + number
            assert step["keys"][layer] == keys
            got = rows_of(step["rows"][layer], (9, 1, keys))
            row = want[:, count + number, None, :keys]
            torch.testing.assert_close(got, row, atol=1e-3, rtol=1e-3)
    scene = here.client.get(f"/api/traces/{done['id']}").json()
    assert scene["steps"] == {"prompt": count, "sequence": 0}
    assert scene["sequences"][0]["tokens"] == tokens
    assert len(scene["sites"]) == 30 and scene["sites"][0]["queries"] == len(tokens)


def test_capture_is_over_when_a_generation_is_left(here):
    """Hooks and modes of an interrupted generation are gone, and the next answer is right."""
    from torch.nn.modules import module as hooks

    body = {"model": "smollm2", "text": PROMPT, "tokens": 100}
    with here.client.stream("POST", "/api/generate", json=body) as answer:
        for line in answer.iter_lines():
            if json.loads(line)["event"] == "step":
                break
    assert here.look("minilm", SENTENCE).status_code == 200
    assert not hooks._global_forward_pre_hooks
    assert next(line["token"] for line in generated(here) if line["event"] == "step") == "Ġmat"


def test_several_at_once(here):
    """Viewers of one trace and requests that run models, side by side."""
    name = here.look("minilm", SENTENCE).json()["id"]
    want = floats(here.client.get(f"/api/traces/{name}/row?layer=3&head=1&row=9"))
    wrong, answers = [], []

    def viewer():
        with httpx.Client(base_url=here.address, timeout=60) as client:
            for _ in range(10):
                row = floats(client.get(f"/api/traces/{name}/row?layer=3&head=1&row=9"))
                if not torch.equal(row, want):
                    wrong.append(row)

    def asker(text):
        with httpx.Client(base_url=here.address, timeout=60) as client:
            body = {"model": "minilm", "text": text}
            answers.append(client.post("/api/look", json=body).status_code)

    threads = [threading.Thread(target=viewer) for _ in range(8)]
    threads += [threading.Thread(target=asker, args=(f"text {i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == [] and answers == [200] * 6
