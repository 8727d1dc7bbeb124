"""Pairs from files: what is read, and what is refused with its place."""

import gzip
import json

import pytest

from regard.errors import RegardError
from regard.translate.data import (
    JsonLinesFile,
    Pair,
    ParallelFiles,
    TableFile,
    clean,
    pair_file,
    read_pairs,
)

ENGLISH = ["Go.", "I love you.", "A\u2028line\x85that\x0bgoes on\r in one"]
FRENCH = ["Va !", "Je t'aime.", "Une\u2028ligne"]
PAIRS = [Pair(a, b, n) for n, (a, b) in enumerate(zip(ENGLISH, FRENCH), start=1)]


def write(path, text, packed=False):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.fixture(params=["plain", "gzip", "gzip without the name"])
def made(request, tmp_path):
    def make(name, text):
        packed = request.param != "plain"
        return write(tmp_path / (name + ".gz" * (request.param == "gzip")), text, packed)

    return make


def test_two_files(made):
    files = made("a.en", "\n".join(ENGLISH) + "\n"), made("a.fr", "\r\n".join(FRENCH))
    assert read_pairs(*files) == PAIRS
    assert list(ParallelFiles(*files)) == PAIRS


def test_table_by_number(made):
    path = made(
        "a.tsv", "".join(f"{n}\t{b}\t{a}\n" for n, (a, b) in enumerate(zip(ENGLISH, FRENCH)))
    )
    assert read_pairs(path, source=3, target=2) == PAIRS


def test_table_by_name(made):
    path = made(
        "a.tsv", "\ufefffr\tid\ten\n" + "".join(f"{b}\t7\t{a}\n" for a, b in zip(ENGLISH, FRENCH))
    )
    expected = [Pair(pair.source, pair.target, pair.line + 1) for pair in PAIRS]
    assert read_pairs(path, source="en", target="fr") == expected
    assert read_pairs(TableFile(path, source=3, target=1, header=True)) == expected
    assert read_pairs(path, source=3, target=1, header=True) == expected
    assert read_pairs(path, source="en", target=1) == expected


def test_quotation_marks_in_a_table_mean_nothing(tmp_path):
    path = write(tmp_path / "a.tsv", '"Go\tVa"\n"Hi"\t""\n')
    assert read_pairs(path) == [Pair('"Go', 'Va"', 1), Pair('"Hi"', '""', 2)]


def test_json_lines(made):
    rows = [{"fr": b, "translation": {"en": a}} for a, b in zip(ENGLISH, FRENCH)]
    path = made("a.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_pairs(path, source="translation.en", target="fr") == PAIRS
    assert list(JsonLinesFile(path, "translation.en", "fr")) == PAIRS


def test_a_key_with_a_point_in_it_comes_first(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a.b": "one", "a": {"b": "two"}, "t": "x"}')
    assert read_pairs(path, source="a.b", target="t") == [Pair("one", "x", 1)]


def refused(message, *arguments, **options):
    with pytest.raises(RegardError) as caught:
        read_pairs(*arguments, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("packed", [False, True])
def test_undecodable_bytes(tmp_path, packed):
    bad = write(tmp_path / "a.fr", b"Va\nol\xe9\n", packed)
    good = write(tmp_path / "a.en", "Go\nhey\n")
    message = (
        f"{bad}:2: byte 3 of the line is 0xe9, which is no UTF-8 (invalid continuation byte); "
        "convert the file: iconv -f WINDOWS-1252 -t UTF-8, or leave such bytes out: iconv -c -f "
        "UTF-8 -t UTF-8"
    )
    refused(message, good, bad)
    refused(message, TableFile(bad, 1, 1))
    refused(message.replace(":2:", ":1:"), JsonLinesFile(write(bad, b"ol\xe9\n")))


@pytest.mark.parametrize(("lines", "longer", "line"), [((3, 5), 1, 4), ((4, 1), 0, 2)])
def test_files_of_different_lengths(tmp_path, lines, longer, line):
    a, b = paths = [write(tmp_path / name, "x\n" * n) for name, n in zip("ab", lines)]
    refused(
        f"{a} has {lines[0]} lines, {b} has {lines[1]}: {paths[longer]}:{line} has no partner", a, b
    )


def test_empty_lines(tmp_path):
    a = write(tmp_path / "a", "one\ntwo\nthree\n")
    b = write(tmp_path / "b", "un\n \t\ntrois\n")
    advice = (
        "; take the pair out of the data (of two files, this line of both), or in Python read with "
        "empty=True and clean"
    )
    refused(f"{b}:2: the target is empty{advice}", a, b)
    refused(f"{b}:2: the source is empty{advice}", b, a)
    assert clean(read_pairs(a, b, empty=True)).report.dropped["empty"] == 1

    table = write(tmp_path / "a.tsv", "one\tun\n\nthree\t\n")
    refused(f"{table}:2: the source is empty{advice}", table)
    assert clean(read_pairs(table, empty=True)).report.dropped["empty"] == 2

    rows = write(tmp_path / "a.jsonl", '{"source": "one", "target": ""}\n\n')
    refused(f"{rows}:1: the target is empty{advice}", rows)
    assert clean(read_pairs(rows, empty=True)).report.dropped["empty"] == 2


def test_unknown_columns(tmp_path):
    path = write(tmp_path / "a.tsv", "en\tfr\tfr\nGo\tVa\tMarche\n")
    refused(
        f"{path}:1: there is no column 'de'; the columns are 'en', 'fr', 'fr'",
        path,
        source="en",
        target="de",
    )
    refused(
        f"{path}:1: there is no column '1'; the columns are 'en', 'fr', 'fr'; by its number a "
        "column is said as 1, without quotation marks",
        path,
        source="1",
        target="2",
    )
    refused(
        f"{path}:1: there is more than one column 'fr'; the columns are 'en', 'fr', 'fr'",
        path,
        source="en",
        target="fr",
    )
    refused(f"{path}:1: there is no column 4; the columns are 1 to 3", path, target=4)
    refused(f"{path}:1: there is no column 0; the columns are 1 to 3", path, source=0)
    refused(
        f"{path}:1: there is no column 4; the columns are 1 to 3 ('en', 'fr', 'fr')",
        TableFile(path, 1, 4, header=True),
    )
    refused(
        f"{path}: columns ('en', 2) have names, but header=False",
        TableFile(path, "en", 2, header=False),
    )


def test_rows_that_are_too_short(tmp_path):
    path = write(tmp_path / "a.tsv", "Go\tVa\nHi\n")
    refused(f"{path}:2: 1 column, but line 1 has 2{INSTEAD}", path)


INSTEAD = "; give all rows as many, and write a space where a tab is inside a sentence"


@pytest.mark.parametrize("options", [{}, {"source": "I go.", "target": "Je vais."}])
def test_a_tab_inside_a_sentence_makes_no_other_pair(tmp_path, options):
    path = write(tmp_path / "a.tsv", "\n" * (not options) + "I go.\tJe vais.\nHe\tgoes.\tIl va.\n")
    first = 1 if options else 2
    refused(
        f"{path}:{first + 1}: 3 columns, but line {first} has 2{INSTEAD}",
        TableFile(path, **options),
        empty=True,
    )


def test_columns_that_may_be_empty(tmp_path):
    path = write(tmp_path / "a.tsv", "Go\tVa\t7\nHi\tSalut\t\n")
    assert read_pairs(path) == [Pair("Go", "Va", 1), Pair("Hi", "Salut", 2)]


def test_an_empty_table_has_no_names(tmp_path):
    path = write(tmp_path / "a.tsv", "")
    assert read_pairs(path) == []
    refused(
        f"{path} is empty, expected the names of its columns in line 1", path, source="en", target=2
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"source": "a"', "1: not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)"),
        ('["a"]', "1: [\"a\"], expected an object with key 'source'"),
        ('{"source": "a", "fr": "b"}', "1: there is no key 'target'; the keys are 'source', 'fr'"),
        ('{"source": 3, "target": "b"}', "1: 'source' is 3, expected a text"),
        ("[" * 100_000, "1: JSON that is nested too deeply"),
    ],
)
def test_broken_json(tmp_path, text, message):
    path = write(tmp_path / "a.jsonl", text + "\n")
    refused(f"{path}:{message}", path)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_keys_of_json_are_texts(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"1": "a", "2": "b"}')
    message = "but JSON lines have keys and no columns by number; a key is a text, such as"
    refused(f'{path}: source is 1, {message} "1"', path, source=1, target="2")
    refused(f'{path}: target is 2, {message} "2"', path, source="1", target=2)
    assert read_pairs(path, source="1", target="2") == [Pair("a", "b", 1)]


def test_files_that_cannot_be_read(tmp_path):
    refused(f"there is no file {tmp_path / 'none.tsv'}", tmp_path / "none.tsv")
    folder = tmp_path / "folder.tsv"
    folder.mkdir()
    refused(f"{folder} is a folder, expected a file of lines", folder)
    whole = gzip.compress(b"Go\tVa\n" * 1000)
    cut = write(tmp_path / "cut.tsv.gz", whole[:-20])
    with pytest.raises(RegardError, match=r"cut\.tsv\.gz is a broken gzip file: "):
        read_pairs(cut)
    wrong = write(tmp_path / "wrong.tsv.gz", whole[:30] + b"\xff" * 30 + whole[60:])
    with pytest.raises(RegardError, match=r"wrong\.tsv\.gz is a broken gzip file: "):
        read_pairs(wrong)


def test_names_that_say_nothing(tmp_path):
    wanted = (
        "expected a name that ends in .tsv, .tab, .txt, .jsonl or .ndjson (or one of them with "
        ".gz), or two files"
    )
    refused(f"a.doc: {wanted}", "a.doc")
    commas = "; columns have tabs between them, since sentences have commas"
    refused(f"a.csv: {wanted}{commas}", "a.csv")
    refused("source=1, target=None: two files have no columns", "a", "b", source=1)
    own = (
        "read_pairs: TableFile says its own columns, expected no target_path, source, target or "
        "header beside it"
    )
    refused(own, TableFile("a", 1, 2), header=True)
    refused(own, TableFile("a", 1, 2), target=3)
    refused("header=True: a and b have no columns", "a", "b", header=True)
    refused(
        "header=True: a.jsonl has JSON lines, which have keys and no header", "a.jsonl", header=True
    )
    assert pair_file("a.TSV.gz") == TableFile("a.TSV.gz")


def test_files_are_read_as_they_are_asked_for(tmp_path):
    path = write(tmp_path / "a.tsv", b"Go\tVa\n" * 3 + b"\xff")
    pairs = iter(TableFile(path))
    assert [next(pairs).line for _ in range(3)] == [1, 2, 3]
    with pytest.raises(RegardError, match=r"a\.tsv:4"):
        next(pairs)


def test_a_pattern_names_files_in_the_order_of_their_names(tmp_path):
    for number in (2, 1, 10):
        (tmp_path / f"part-{number:02}.tsv").write_text(f"source {number}\ttarget\n")
    (tmp_path / "[1].tsv").write_text("literal\ttarget\n")
    found = [pair.source for pair in read_pairs(tmp_path / "part-*.tsv")]
    assert found == ["source 1", "source 2", "source 10"]
    assert [pair.source for pair in read_pairs(tmp_path / "[1].tsv")] == ["literal"]
    (tmp_path / "part-02.tsv").write_text("source\t\n")
    with pytest.raises(RegardError, match=r"part-02\.tsv:1: the target is empty"):
        read_pairs(tmp_path / "part-*.tsv")


def test_patterns_without_files_or_partners_are_errors(tmp_path):
    for name in ("a.en", "b.en", "a.fr"):
        (tmp_path / name).write_text("text\n")
    with pytest.raises(RegardError, match=r"no file matches the pattern .*\*\.de"):
        read_pairs(tmp_path / "*.en", tmp_path / "*.de")
    with pytest.raises(RegardError, match=r"\*\.en names 2, .*\*\.fr names 1 files, expected as"):
        read_pairs(tmp_path / "*.en", tmp_path / "*.fr")
