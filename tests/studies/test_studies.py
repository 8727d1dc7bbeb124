"""Each study reproduces its figures; the quick form of the shortest runs with the other tests."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "studies"
STUDIES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"all", "study"})
SHORT = {"word_vectors"}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("all", "study", *STUDIES):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "name",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in STUDIES],
)
def test_a_study_gives_its_figures(name, tmp_path):
    frame, module = importlib.import_module("study"), importlib.import_module(name)
    outcome = module.study(True, 0)
    frame.check([outcome])
    frame.save(outcome, module.draw, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("relation", "measured", "holds"),
    [
        ("equal", 1.05, True),
        ("equal", 0.8, False),
        ("at least", 5.0, True),
        ("at least", 0.8, False),
        ("at most", 0.0, True),
        ("at most", 1.2, False),
    ],
)
def test_a_figure_that_is_off_is_named(relation, measured, holds):
    frame = importlib.import_module("study")
    figure = frame.Figure("loss", 1.0, measured, 0.1, "theory", relation)
    outcome = frame.Outcome([figure], None)
    row = frame.table([outcome]).splitlines()[1]
    assert figure.holds is holds and row.endswith("yes  theory" if holds else "no  theory")
    if not holds:
        with pytest.raises(AssertionError, match=r"loss: .*, expected .*1 ± 0.1 \(theory\)"):
            frame.check([outcome])


def test_a_figure_that_is_not_asserted_is_shown_and_never_fails():
    frame = importlib.import_module("study")
    outcomes = [
        frame.Outcome([frame.Figure("loss", 1.0, measured, 0.1, "theory", asserted=False)], None)
        for measured in (1.0, 2.0, 3.0)
    ]
    frame.check(outcomes)
    assert "  (1 of 3)  theory" in frame.table(outcomes)
    assert "  (no)  theory" in frame.table(outcomes[1:])
