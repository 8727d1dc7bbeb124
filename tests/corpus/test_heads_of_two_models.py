"""The study of heads over a corpus: its page has the kept figures, and the report opens."""

import importlib.util
import json
from pathlib import Path

from regard.corpus import load

ROOT = Path(__file__).parents[2]
NAME = "heads_of_two_models"
RESULTS = ROOT / "experiments/corpus/results"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_page_has_the_table_of_the_kept_figures():
    study = module(ROOT / f"experiments/corpus/{NAME}.py")
    figures = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
    table = (RESULTS / f"{NAME}.txt").read_text(encoding="utf-8")
    assert study.table(figures) == table
    page = (ROOT / f"docs/gallery/{NAME}.md").read_text(encoding="utf-8")
    assert f"```text\n{table}```\n" in page
    run = load(RESULTS / "minilm")
    assert study.types_of(run) == figures["minilm"]["types"]
    assert run.tokens == figures["minilm"]["tokens"]


def test_the_page_saves_the_report_that_it_opens(tmp_path):
    make = module(ROOT / "docs/gallery/make.py")
    assert make.REPORTS == (NAME,) and make.fragment(NAME) == "by=figures.sink"
    make.run(NAME, tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == f"{NAME}.html" and 100_000 < file.stat().st_size < 2_000_000


def test_kept_runs_have_no_texts():
    assert "strongest_pairs" not in load(RESULTS / "minilm")
