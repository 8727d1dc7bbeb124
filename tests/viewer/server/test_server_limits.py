"""Every limit refuses with its reason, and the server is well afterwards."""

import io
import struct
import threading
import time
import zlib

import httpx
import pytest
from PIL import Image
from serving import Slow, refused, running, scene, small, until

from regard.errors import RegardError
from regard.viewer.server import Limits, ServedModel
from regard.viewer.server.limits import Refusal
from regard.viewer.server.models.served_model import PromptTokens, Step
from regard.viewer.server.models.uploaded_image import checked_image


def test_characters():
    with running([small()], characters=20) as here:
        error = refused(here.look(text="x" * 21), 413, "too_many_characters")
        assert (error["limit"], error["got"]) == (20, 21)
        assert "21 characters; at most 20" in error["message"]
        assert here.look(text="x" * 20).status_code == 200


def test_tokens():
    with running([small()], tokens=3) as here:
        error = refused(here.look(text="a b c d"), 422, "too_many_tokens")
        assert (error["limit"], error["got"]) == (3, 4)
        assert here.look(text="a b c").status_code == 200


def test_body_with_and_without_a_length():
    with running([small()], body_bytes=1000) as here:
        error = refused(here.look(text="x" * 2000), 413, "too_many_bytes")
        assert error["limit"] == 1000 and error["got"] > 2000

        def pieces():
            for _ in range(2000):
                sent.append(1)
                yield b"x" * 100_000  # 200 MB, if somebody took it

        sent = []
        kind = {"content-type": "application/json"}
        try:
            answer = here.client.post("/api/look", content=pieces(), headers=kind)
        except httpx.WriteError:  # refused while it was still being sent
            pass
        else:
            error = refused(answer, 413, "too_many_bytes")
            assert error["got"] <= 1000 + 1_000_000, "it is not held"
        assert here.look().status_code == 200


def test_bodies_that_are_not_ours():
    with running([small()]) as here:
        post = here.client.post
        kind = {"content-type": "application/json"}
        refused(post("/api/look", content=b"{", headers=kind), 400, "not_json")
        refused(post("/api/look", content=b"[" * 100_000, headers=kind), 400, "not_json")
        refused(post("/api/look", json=[1]), 422, "wrong_value")
        refused(post("/api/look", data={"model": "small"}), 415, "wrong_content_type")
        refused(post("/api/look", json={"model": "small"}), 422, "wrong_value")
        refused(post("/api/look", json={"model": "small", "text": 7}), 422, "wrong_value")
        refused(here.look(text=" \n"), 422, "empty_text")
        half = b'{"model": "small", "text": "a\\ud83d"}'  # as a browser sends half of an emoji
        for path in ("look", "generate", "translate"):
            answer = post(f"/api/{path}", content=half, headers=kind)
            error = refused(answer, 422, "not_unicode")
            assert "half of a surrogate pair, at character 1" in error["message"]
        refused(here.look(model="other"), 404, "not_found")
        refused(post("/api/look", json={"model": ["small"], "text": "a"}), 404, "not_found")
        assert here.look().status_code == 200


def test_a_full_queue():
    slow = Slow()
    with running([small(look=slow.look)], queue=2) as here:
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(here.look().status_code))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        until(lambda: here.waiting == 3)
        answer = here.look()
        error = refused(answer, 503, "queue_full")
        assert answer.headers["retry-after"] == "2"
        assert (error["limit"], error["got"]) == (2, 3)
        assert here.client.get("/api/models").status_code == 200, "others are answered meanwhile"
        slow.go.set()
        for thread in threads:
            thread.join(10)
        assert answers == [200, 200, 200]
        assert here.look().status_code == 200


def test_who_has_gone_does_not_fill_the_queue():
    slow = Slow()
    with running([small(look=slow.look)], queue=1) as here:
        first = threading.Thread(target=here.look)
        first.start()
        assert slow.started.wait(5)
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                here.look(timeout=0.2)
            until(lambda: here.waiting == 1)
        slow.go.set()
        first.join(10)
        assert here.look().status_code == 200


def test_time():
    slow = Slow()
    with running([small(look=slow.look), small("quick")], seconds=0.5) as here:
        start = time.monotonic()
        error = refused(here.look(), 504, "too_slow")
        assert 0.4 < time.monotonic() - start < 3
        assert error["limit"] == 0.5
        refused(here.look("quick"), 504, "too_slow")  # the thread is still busy
        slow.go.set()
        deadline = time.monotonic() + 5
        while here.look("quick").status_code != 200:
            assert time.monotonic() < deadline
        assert here.traces.all(), "what is answered is kept"
        assert len(here.traces.all()) == 1, "a result that nobody waits for is dropped"


def test_a_client_that_goes_away_leaves_the_queue():
    slow, seen = Slow(), []

    def noted(text):
        seen.append(text)
        return scene(2)

    with running([small(look=slow.look), small("quick", look=noted)]) as here:
        first = threading.Thread(target=here.look)
        first.start()
        assert slow.started.wait(5)
        with pytest.raises(httpx.ReadTimeout):
            here.look("quick", "gone", timeout=0.2)
        until(lambda: here.waiting == 1)
        slow.go.set()
        first.join(10)
        assert here.look("quick", "still there").status_code == 200
        assert seen == ["still there"]


def test_models_that_fail():
    def refuses(text):
        raise RegardError("the text has 600 tokens, at most 512 fit")

    def fails(text):
        raise KeyError("/secret/path.py")

    models = [small("refuses", look=refuses), small("fails", look=fails), small()]
    with running(models) as here:
        error = refused(here.look("refuses"), 422, "model_refused")
        assert error["message"] == "Refuses: the text has 600 tokens, at most 512 fit"
        error = refused(here.look("fails"), 500, "model_failed")
        assert "KeyError" in error["message"] and "secret" not in error["message"]
        assert here.look().status_code == 200


def test_kept_traces_the_one_not_asked_for_longest_goes_first():
    with running([small()], [scene(4)], traces=2) as here:
        pinned = here.client.get("/api/traces").json()["traces"]
        names = [here.look().json()["id"] for _ in range(2)]
        assert here.client.get(f"/api/traces/{names[0]}").status_code == 200
        names.append(here.look().json()["id"])
        there = [here.client.get(f"/api/traces/{name}").status_code for name in names]
        assert there == [200, 404, 200]
        refused(here.client.get(f"/api/traces/{names[1]}/row?row=0"), 404, "not_found")
        assert here.client.get(f"/api/traces/{pinned[0]['id']}").status_code == 200


def test_kept_traces_by_bytes():
    with running([small()], trace_bytes=1) as here:
        names = [here.look().json()["id"] for _ in range(2)]
        there = [here.client.get(f"/api/traces/{name}").status_code for name in names]
        assert there == [404, 200], "the newest is there, whatever its size"


def png(width=8, height=8, kind="PNG"):
    data = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 10)).save(data, kind)
    return data.getvalue()


def seeing(seen):
    return ServedModel("eye", "Eye", "image", lambda data: (seen.append(data), scene(4))[1])


def test_images():
    seen = []
    with running([seeing(seen), small()], image_bytes=50_000, image_pixels=10_000) as here:

        def post(data, kind="image/png", model="eye"):
            headers = {"content-type": kind}
            return here.client.post(f"/api/image?model={model}", content=data, headers=headers)

        error = refused(post(png(200, 100)), 413, "too_many_pixels")
        assert (error["limit"], error["got"]) == (10_000, 20_000)
        refused(post(b"x" * 60_000), 413, "too_many_bytes")
        refused(post(b"not an image"), 415, "not_an_image")
        refused(post(png(kind="GIF")), 415, "not_an_image")
        noise = io.BytesIO()
        Image.effect_noise((90, 90), 50).save(noise, "PNG")
        refused(post(noise.getvalue()[:2000]), 422, "broken_image")
        refused(post(png(), kind="text/plain"), 415, "wrong_content_type")
        refused(post(png(), model="small"), 422, "wrong_kind")
        refused(post(png(), model="nobody"), 404, "not_found")
        refused(here.look("eye"), 422, "wrong_kind")
        assert seen == []
        assert post(png()).status_code == 200
        assert post(png(kind="JPEG"), "image/jpeg").status_code == 200
        assert seen == [png(), png(kind="JPEG")]


def test_decompression_bombs():
    """A few bytes that say they are 40 gigapixels."""
    bomb = bytearray(png())
    bomb[16:24] = struct.pack(">II", 200_000, 200_000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    with running([seeing([])], image_pixels=10**12) as here:
        answer = here.client.post(
            "/api/image?model=eye", content=bytes(bomb), headers={"content-type": "image/png"}
        )
        refused(answer, 413, "too_many_pixels")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_filters_of_warnings_are_left_alone():
    """They are one for all threads: an image between pillow's limits is refused by our own."""
    large = bytearray(png())
    large[16:24] = struct.pack(">II", 10_000, 10_000)
    large[29:33] = struct.pack(">I", zlib.crc32(large[12:29]))
    with pytest.raises(Refusal, match="100,000,000 pixels; at most 24,000,000") as caught:
        checked_image(bytes(large), Limits())
    assert caught.value.got == 10**8


def stepping(steps):
    """A model that generates for as long as it is let, and notes each step."""
    import torch

    def generate(text, count):
        yield PromptTokens(["a"], [False])
        try:
            for number in range(count):
                steps.append(number)
                time.sleep(0.02)
                yield Step("b", {"layer.0": torch.ones(1, 1, number + 1)})
            yield scene(3)
        finally:
            steps.append("closed")

    return small("steps", generate=generate)


def test_generation_has_limits_of_its_own():
    with running([stepping([]), small()], new_tokens=5, positions=8) as here:

        def post(text="a", tokens=2, model="steps"):
            body = {"model": model, "text": text, "tokens": tokens}
            return here.client.post("/api/generate", json=body)

        assert refused(post(tokens=6), 422, "wrong_value")["limit"] == 5
        refused(post(tokens=0), 422, "wrong_value")
        refused(post(tokens=True), 422, "wrong_value")
        refused(post(tokens="2"), 422, "wrong_value")
        error = refused(post("a b c d e f g", 3), 422, "too_many_tokens")
        assert (error["limit"], error["got"]) == (5, 7)
        refused(post(model="small"), 422, "does_not_generate")
        lines = [httpx.Response(200, text=line).json() for line in post().text.splitlines()]
        assert [line["event"] for line in lines] == [
            *("begin", "sites", "prompt", "step", "step", "done")
        ]
        assert [line["keys"] for line in lines if line["event"] == "step"] == [None, [2]]


def test_generation_stops_in_time():
    steps = []
    with running([stepping(steps), small()], seconds=0.5) as here:
        body = {"model": "steps", "text": "a", "tokens": 200}
        lines = here.client.post("/api/generate", json=body).text.splitlines()
        last = httpx.Response(200, text=lines[-1]).json()
        assert last["event"] == "error" and last["error"]["code"] == "too_slow"
        assert here.look().status_code == 200
        assert steps[-1] == "closed" and len(steps) < 60


def test_generation_stops_when_the_client_goes():
    steps = []
    with running([stepping(steps), small()]) as here:
        body = {"model": "steps", "text": "a", "tokens": 200}
        with here.client.stream("POST", "/api/generate", json=body) as answer:
            for number, _ in enumerate(answer.iter_lines()):
                if number == 6:
                    break
        assert here.look().status_code == 200
        assert steps[-1] == "closed" and len(steps) < 60


def test_a_slow_client_is_waited_for():
    """The model runs a few steps ahead of who reads, not all of them."""
    import torch

    ahead = []

    def generate(text, count):
        for number in range(count):
            ahead.append(number)
            yield Step("b", {"layer.0": torch.ones(1, 64, 100_000)})  # 16 MB in base64

    with running([small("wide", generate=generate)]) as here:
        body = {"model": "wide", "text": "a", "tokens": 30}
        with here.client.stream("POST", "/api/generate", json=body) as answer:
            next(answer.iter_lines())
            time.sleep(2)
            assert len(ahead) < 15


def test_addresses_and_methods_that_are_not_there():
    with running([small()], [scene(4)]) as here:
        name = here.traces.all()[0].id
        get = here.client.get
        for path in ("/x", "/api", "/api/traces/x", f"/api/traces/{name}/x", "/..%2f..%2fetc"):
            refused(get(path), 404, "not_found")
        refused(here.client.delete("/api/models"), 405, "wrong_method")
        refused(get("/api/look"), 405, "wrong_method")
        one = f"/api/traces/{name}"
        refused(get(f"{one}/chunks/999"), 422, "wrong_value")
        refused(get(f"{one}/chunks/..%2f1"), 404, "not_found")
        refused(get(f"{one}/tile?row=0"), 422, "missing")
        refused(get(f"{one}/tile?row=0&column=1"), 422, "wrong_value")
        refused(get(f"{one}/tile?row=0&column=0&level=1"), 422, "wrong_value")
        refused(get(f"{one}/row?row=4"), 422, "wrong_value")
        refused(get(f"{one}/column?column=-1"), 422, "wrong_value")
        assert get(f"{one}/row?row=3").status_code == 200
