"""A generation as it is sent, and as the page puts it together."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from needed import missing

import regard.viewer
from regard.recipe import Given
from regard.record import Record, Site
from regard.record.stored_attention import StoredRecipe
from regard.viewer.server.models.generation import GeneratedToken, encoded

FRONTEND = Path(regard.viewer.__file__).parent / "frontend"
NODE = shutil.which("node")
BEGIN = [
    {"event": "begin", "tokens": ["a", "b"], "special": [False, False]},
    {"event": "sites", "sites": [{"name": "layer.0", "heads": 1}]},
]


def record_of(weights, path="layer.0", call=1):
    recipe = Given(weights)
    site = Site(path, "Attention", "", "given", call=call)
    return Record(
        site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
    )


def test_a_module_that_runs_twice_in_a_pass_is_two_sites():
    maps = [torch.rand(1, 2, 3, 3) for _ in range(3)]
    paths = ("layer.0", "layer.0", "layer.1")
    chosen = GeneratedToken(7, [record_of(*one, call=5) for one in zip(maps, paths)], [])
    rows = chosen.rows()
    assert list(rows) == ["layer.0", "layer.0#2", "layer.1"]
    assert all(torch.equal(got, want[0]) for got, want in zip(rows.values(), maps))


def test_how_exact_halves_are():
    weights = torch.logspace(-12, 0, 5000).reshape(1, 1, -1)
    data = bytearray(base64.b64decode(encoded(weights)))
    halves = torch.frombuffer(data, dtype=torch.float16).double()
    far = (halves - weights.flatten().double()).abs()
    small = weights.flatten() < 6e-5
    assert (far / weights.flatten())[~small].max() <= 0.0005
    assert (far / weights.flatten())[small].max() > 0.0005, "which is why the note says more"
    assert far[small].max() <= 3e-8


@pytest.fixture
def page(tmp_path):
    """Runs a script beside those of the page, and returns what it prints."""
    if NODE is None:
        missing("there is no node")
    shutil.copytree(FRONTEND, tmp_path / "frontend")
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(events, script):
        code = f"""import {{ Growth }} from "./frontend/live/growth.js";
            const growth = new Growth("x");
            for (const event of {json.dumps(events)}) growth.take(event);
            {script}"""
        (tmp_path / "run.js").write_text(code)
        return subprocess.run(
            [NODE, "run.js"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )

    return run


def prompt():
    rows = encoded(torch.tensor([[[1.0, 0.0], [0.3, 0.7]]]))
    first = {"event": "step", "step": 1, "token": "c", "keys": None, "rows": None}
    return [*BEGIN, {"event": "prompt", "site": 0, "shape": [1, 2, 2], "rows": rows}, first]


def step(keys):
    rows = encoded(torch.full((1, 1, keys), 1 / keys))
    return {"event": "step", "step": 2, "token": "d", "keys": [keys], "rows": [rows]}


def test_rows_that_came_as_halves_do_not_count_as_exact(page):
    found = page(
        [*prompt(), step(3)],
        """const scene = growth.scene();
        const maps = [await scene.headMap(0, 0), await scene.partMap(0, "mean")];
        console.log(JSON.stringify(maps.map((map) => [map.exact, map.queries, map.data[8]])));""",
    )
    assert found.returncode == 0, found.stderr
    for exact, queries, last in json.loads(found.stdout):
        assert exact is False and queries == 3
        assert last == pytest.approx(1 / 3, rel=5e-4)


def test_a_cache_that_forgets_is_not_drawn_in_wrong_places(page):
    found = page([*prompt(), step(2)], "")
    assert found.returncode != 0
    assert "layer.0 attended over 2 keys, expected the 3 tokens so far" in found.stderr
