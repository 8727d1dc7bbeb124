"""Cleaning: what is dropped, why, and how it is counted."""

import pytest

from regard.errors import RegardError
from regard.translate.data import Cleaning, Pair, TableFile, clean

PAIRS = [
    Pair("a b c", "x y z", 1),
    Pair(" ", "x", 2),
    Pair("a", "", 3),
    Pair("a b c d e f", "x y z", 4),
    Pair("a", "x y z w", 5),
    Pair("OK  then", "OK then", 6),
    Pair("a b  c", " x y z", 7),
    Pair("a b c", "other", 8),
]


def test_each_reason_counts():
    pairs, report = clean(PAIRS, Cleaning(longest=5, ratio=2, identical=True))
    assert report.read == 8
    assert report.dropped == {
        "empty": 2,
        "too long": 1,
        "length ratio": 1,  # (4 + 1) / (1 + 1) is above 2, (3 + 1) / (1 + 1) is not
        "identical": 1,
        "duplicate": 1,
    }
    assert [pair.line for pair in pairs] == [1, 8]
    assert report.kept == len(pairs)


def test_only_what_is_asked_for():
    pairs, report = clean(PAIRS, Cleaning(duplicates=False))
    assert report.dropped == {"empty": 2}
    assert [pair.line for pair in pairs] == [1, 4, 5, 6, 7, 8]
    assert clean(PAIRS).report.dropped == {"empty": 2, "duplicate": 1}


def test_a_pair_counts_once_for_its_first_reason():
    _, report = clean([Pair("a " * 9, "a")] * 3, Cleaning(longest=5, ratio=2))
    assert report.dropped == {"empty": 0, "too long": 3, "length ratio": 0, "duplicate": 0}


def test_a_pair_that_was_dropped_makes_no_duplicate():
    _, report = clean([Pair("OK", "OK")] * 2, Cleaning(identical=True))
    assert report.dropped == {"empty": 0, "identical": 2, "duplicate": 0}


def test_the_report_is_a_table():
    report = clean(PAIRS * 200, Cleaning(longest=5)).report
    assert str(report) == (
        "pairs read  1,600\nempty         400\ntoo long      200\nduplicate     996\n"
        "pairs kept      4"
    )


def test_a_file_is_cleaned_as_it_is_read(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("Go\tVa\n\nGo\tVa\n")
    assert clean(TableFile(path)).pairs == [Pair("Go", "Va", 1)]


def test_nothing_to_clean():
    assert clean([]).pairs == []
    assert str(clean([], Cleaning(duplicates=False)).report).splitlines()[-1] == "pairs kept  0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"longest": 0}, "longest=0, expected at least 1"),
        ({"ratio": 0.5}, "ratio=0.5, expected at least 1"),
    ],
)
def test_wrong_limits(options, message):
    with pytest.raises(RegardError) as caught:
        Cleaning(**options)
    assert str(caught.value) == message
