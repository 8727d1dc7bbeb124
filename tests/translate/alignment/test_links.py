"""Links as text and back, and their error rate by counting."""

import random

import pytest

from regard.errors import RegardError
from regard.translate.alignment import (
    Gold,
    error_rate,
    parse_links,
    read_links,
    write_links,
    write_pharaoh,
)


def test_a_file_is_read_as_it_was_written(tmp_path):
    sentences = [{(0, 0), (2, 10)}, set(), {(1, 0)}]
    for first in (0, 1):
        path = tmp_path / f"links{first}"
        write_links(path, sentences, first=first)
        assert [set(one.sure) for one in read_links(path, first=first)] == sentences
    assert (tmp_path / "links0").read_text() == "0-0 2-10\n\n1-0\n"
    assert (tmp_path / "links1").read_text() == "1-1 3-11\n\n2-1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links0", "links1"]


def test_possible_links_hold_the_sure_ones():
    found = parse_links("3p1 4-2\t1p1", first=1)
    assert found == Gold.of({(3, 1)}, {(2, 0), (0, 0)})
    assert found.possible == {(3, 1), (2, 0), (0, 0)}
    assert write_pharaoh(found.possible, first=1) == "1-1 3-1 4-2"


@pytest.mark.parametrize(
    ("text", "first", "message"),
    [
        ("0-0\n1:2\n", 0, "links:2: '1:2', expected a link such as 0-0 or 0p1"),
        ("1-1\n\n0-1\n", 1, "links:3: '0-1' has a word 0, but words count from 1"),
        ("0-0-1\n", 0, "links:1: '0-0-1', expected a link"),
        ("-1-0\n", 0, "links:1: '-1-0', expected a link"),
        ("²-0\n", 0, "links:1: '²-0', expected a link"),
        ("0-0\n", 2, "first=2, expected 0 or 1"),
    ],
)
def test_what_is_no_link_is_refused_with_file_and_line(tmp_path, text, first, message):
    (tmp_path / "links").write_text(text, encoding="utf-8")
    with pytest.raises(RegardError, match=message):
        read_links(tmp_path / "links", first=first)


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(RegardError, match=r"there is no file .*nowhere"):
        read_links(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"0-0\n\xff\n")
    with pytest.raises(RegardError, match="bytes:2: byte 1 of the line is 0xff, which is no UTF-8"):
        read_links(tmp_path / "bytes")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(RegardError, match=r"taken cannot be written: Is a directory"):
        write_links(tmp_path / "taken", [{(0, 0)}])
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_error_rate_is_that_of_counting_pair_by_pair():
    chance = random.Random(0)
    links, gold = [], []
    a = s = a_in_s = a_in_p = 0
    for _ in range(40):
        found, sure, possible = set(), set(), set()
        for link in [(i, j) for i in range(5) for j in range(6)]:
            is_sure, is_possible = chance.random() < 0.2, chance.random() < 0.2
            is_found = chance.random() < (0.8 if is_sure else 0.1)
            found |= {link} if is_found else set()
            sure |= {link} if is_sure else set()
            possible |= {link} if is_possible else set()
            a, s = a + is_found, s + is_sure
            a_in_s += is_found and is_sure
            a_in_p += is_found and (is_sure or is_possible)
        links.append(frozenset(found))
        gold.append(Gold.of(sure, possible))
    made = error_rate(links, gold)
    assert made.error == pytest.approx(1 - (a_in_s + a_in_p) / (a + s), abs=1e-12)
    assert made.precision == pytest.approx(a_in_p / a) and made.recall == pytest.approx(a_in_s / s)
    assert (made.links, made.sure, made.sentences) == (a, s, 40)


def test_the_ends_of_the_error_rate():
    gold = [Gold.of({(0, 0)}, {(1, 1)})]
    assert error_rate([frozenset({(0, 0)})], gold).error == 0
    assert error_rate([frozenset({(0, 0), (1, 1)})], gold).error == 0  # a possible link costs none
    assert error_rate([frozenset({(5, 5)})], gold).error == 1
    nothing = error_rate([frozenset()], gold)
    assert (nothing.error, nothing.precision, nothing.recall) == (1, 1, 0)
    assert error_rate([], []).error == 0
    with pytest.raises(RegardError, match="1 sentences have links, but 2 have gold links"):
        error_rate([frozenset()], gold * 2)
