"""The pages of the studies have the figures of the kept results, and the views of their models."""

import importlib.util
import re
from pathlib import Path

import pytest

from regard.cli.models import EXAMPLES, loaded_model, look_at
from regard.cli.packaged.studies import STUDIES
from regard.cli.packaged.studies.store import FOLDER
from regard.errors import RegardError

ROOT = Path(__file__).parents[2]
SCRIPTS, PAGES = ROOT / "experiments/studies", ROOT / "docs/gallery/studies"
NAMES = sorted({path.stem for path in SCRIPTS.glob("*.py")} - {"all", "study"})
LARGEST = 3_000_000  # bytes of all weights together


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


def test_each_model_that_is_kept_has_a_page():
    assert {name.replace("study:", "studies/") for name in STUDIES} < set(make.STUDIES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "studies/core_example" else name
        for name in make.STUDIES  # MiniLM takes seconds to load
    ],
)
def test_a_page_saves_the_view_that_it_opens(name, tmp_path, capsys):
    make.run(name, tmp_path)
    for line in capsys.readouterr().out.splitlines():
        assert f"  # {line}\n" in make.code(name), "the page says what its Python prints"
    (file,) = tmp_path.iterdir()
    assert file.name == f"{Path(name).name}.html" and 100_000 < file.stat().st_size < 2_000_000
    view = dict(pair.split("=") for pair in make.fragment(name).split("&"))
    text, word, _ = EXAMPLES.get(name.replace("studies/", "study:"), ("[CLS] see that", "that", ""))
    if word is not None:
        name, _, number = word.partition("#")
        upto = text.split()[: int(view["selected"]) + 1]
        assert upto[-1] == name and upto.count(name) == int(number or 1)


def test_all_weights_are_small():
    files = list(FOLDER.glob("*.safetensors"))
    assert {f"study:{path.stem}" for path in files} == set(STUDIES)
    assert sum(path.stat().st_size for path in files) < LARGEST


@pytest.mark.parametrize("name", STUDIES)
def test_a_trained_model_finds_what_its_example_says(name):
    _, word, partner = EXAMPLES[name]
    result = look_at(name, None)
    partners = [match.key for match in result.trace.find(word, words=result.words[0])]
    assert partner in partners, "some head gives it most"


ANSWERS = {
    "study:attention_explanation": ("the plot was awful", r"the review is bad \(9\d %\)"),
    "study:common_divisors": ("9999 6666", r"greatest common divisor: 1 \(\d\d %\)"),  # not 3333
    "study:induction": ("d e r m a t o g l y p h i c s d e r m a", r"next letter: t \(\d\d %\)"),
    "study:pairwise_convolution": ("AB1 BC2 CA3", r"digits of the partners: 2 3 1"),
    "study:simplified_blocks": ("the value of th", r"next character: 'e' \(\d\d %\)"),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_model_answers_in_words(name):
    text, answer = ANSWERS[name]
    assert re.fullmatch(answer, look_at(name, text).answer)
    model = loaded_model(name)
    assert model.answer(model.model(**model.encode(text).inputs)) == look_at(name, text).answer


@pytest.mark.parametrize("text", ["-4 2", "4", "4 2 6", "0 3", "10000 3", "4 = 2"])
def test_two_numbers_are_read_and_nothing_else(text):
    with pytest.raises(RegardError, match=f"'{text}': expected two numbers from 1 to 9999"):
        look_at("study:common_divisors", text)


@pytest.mark.parametrize("name", STUDIES)
def test_a_text_that_a_model_cannot_read_is_refused(name):
    with pytest.raises(RegardError, match=r"'?%5 §.*expected"):
        look_at(name, "%5 §")
