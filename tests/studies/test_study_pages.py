"""The pages of the studies have the figures of the kept results."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS, PAGES = ROOT / "experiments/studies", ROOT / "docs/gallery/studies"
NAMES = sorted({path.stem for path in SCRIPTS.glob("*.py")} - {"all", "study"})


def _script():
    spec = importlib.util.spec_from_file_location("make_gallery", ROOT / "docs/gallery/make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = _script()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_result_and_the_picture(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    result = (SCRIPTS / "results" / f"{name}.txt").read_text(encoding="utf-8")
    assert f"```text\n{result}```\n" in page
    (picture,) = re.findall(r"^!\[.{40,}\]\(\.\./\.\./(images/.+?)\)$", page, re.MULTILINE)
    assert picture == f"images/study-{name}.png"
    assert (ROOT / "docs" / picture).stat().st_size > 10_000
    sections = re.findall(r"^\*\*(.+?\.)\*\*", page, re.MULTILINE)
    assert sections == [
        "The question.",
        "The model.",
        "What the attention shows.",
        "What it does not show.",
    ]
    assert f"`python experiments/studies/{name}.py --quick`" in page
    assert f"]({name}.md)" in (PAGES / "index.md").read_text(encoding="utf-8")
    assert f"gallery/studies/{name}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", make.STUDIES)
def test_a_page_saves_the_view_that_it_opens(name, tmp_path):
    make.run(name, tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == f"{Path(name).name}.html" and 100_000 < file.stat().st_size < 2_000_000
    view = dict(pair.split("=") for pair in make.fragment(name).split("&"))
    assert (view["layer"], view["head"], view["selected"]) == ("1", "8", "2")
