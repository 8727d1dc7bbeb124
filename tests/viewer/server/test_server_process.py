"""`regard serve` as people start it: a process, a long trace, a signal."""

import io
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr

import httpx
import pytest
import torch

from regard import masks
from regard.cli import main
from regard.recipe import Dot
from regard.record import Record, Site, Trace
from regard.record.stored_attention import StoredRecipe

LENGTH = 4096
TOKENS = ["[CLS]", *(f"{'##' * (i % 3 == 2)}w{i}" for i in range(LENGTH - 2)), "[SEP]"]


@contextmanager
def serving(*options, **environment):
    """The process, and the address it prints."""
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def failing(*options):
    """What the command says, in this process: loading transformers anew takes seconds."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["regard", "serve", *options]
    try:
        with redirect_stderr(said), pytest.raises(SystemExit) as stopped:
            main()
    finally:
        sys.argv = before
    assert stopped.value.code == 1
    return said.getvalue()


def trace_of(length):
    """Two layers of four heads."""
    generator = torch.Generator().manual_seed(0)
    records = []
    for layer in range(2):
        query, key = (torch.randn(1, 4, length, 32, generator=generator) for _ in range(2))
        recipe = Dot(query, key, mask=masks.causal(), scale=32**-0.5)
        site = Site(f"layer.{layer}.attention", "Attention", "", "given", attends="self")
        records.append(
            Record(
                site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
            )
        )
    return Trace(records)


def test_a_trace_of_4096_tokens_is_browsed_in_tiles(tmp_path):
    trace = trace_of(LENGTH).with_tokens(TOKENS)
    path = trace.save(tmp_path / "long.safetensors")
    with torch.inference_mode():
        weights = trace[1].recipe.at(0, 3).weights()[0, 0]
    with serving("--trace", str(path)) as (process, address):
        client = httpx.Client(base_url=address, timeout=60)
        (listed,) = client.get("/api/traces").json()["traces"]
        assert listed["title"] == "long" and listed["tokens"] == LENGTH
        scene = client.get(f"/api/traces/{listed['id']}").json()
        assert scene["sites"][1]["maps"][0]["kind"] == "tiles"
        assert len(client.get(f"/api/traces/{listed['id']}").content) < 500_000

        def floats(path, **query):
            asked = {"layer": 1, "head": 3, **query}
            answer = client.get(f"/api/traces/{listed['id']}/{path}", params=asked)
            assert answer.status_code == 200, answer.text
            return torch.frombuffer(bytearray(answer.content), dtype=torch.float32)

        for row, column in ((0, 0), (9, 3), (15, 15)):
            tile = floats("tile", level=0, row=row, column=column).reshape(256, 256)
            want = weights[row * 256 : (row + 1) * 256, column * 256 : (column + 1) * 256]
            assert torch.equal(tile, want)
        assert torch.equal(floats("row", row=4000), weights[4000])
        column = floats("column", column=77)
        torch.testing.assert_close(column, weights[:, 77], atol=1e-6, rtol=1e-5)
        top = floats("tile", level=4, row=0, column=0).reshape(256, 256)
        blocks = weights.reshape(256, 16, 256, 16).amax((1, 3))
        assert torch.equal(top, blocks)
        words = scene["sequences"][0]["words"]
        row = floats("row", row=len(words["names"]) - 2, unit="words", special="folded")
        special = scene["sequences"][0]["special"]
        assert len(row) == len(words["names"]) - 1, "two special tokens became one"
        folded = torch.tensor(special)
        members = [i for i, piece in enumerate(special) if piece]
        want = weights[members].mean(0)[folded].sum()
        torch.testing.assert_close(row[-1], want, atol=1e-6, rtol=1e-5)
        client.close()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0 and err == "", err


def test_sigterm_stops_it_and_a_token_guards_it(tmp_path):
    path = trace_of(8).save(tmp_path / "short.safetensors")
    options = ("--trace", str(path), "--host", "0.0.0.0", "--token", "auto")
    with serving(*options) as (process, address):
        plain, _, token = address.partition("?token=")
        assert len(token) >= 32
        assert httpx.get(f"{plain}api/traces").status_code == 401
        own = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{plain}api/traces", headers=own).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode in (0, -signal.SIGTERM) and err == "", err
        with pytest.raises(httpx.ConnectError):
            httpx.get(plain)


def test_what_cannot_start_says_why(tmp_path):
    said = failing("--host", "0.0.0.0")
    assert "token is needed" in said and "--token auto" in said
    assert "expected minilm" in failing("nobody")
    assert "there is no file" in failing("--trace", str(tmp_path / "x.safetensors"))
    assert "listens to sound" in failing("whisper")
