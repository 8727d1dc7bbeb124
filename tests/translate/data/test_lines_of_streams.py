"""Lines of a file and of an open stream are the same lines."""

import io

import pytest

from regard.errors import RegardError
from regard.translate.data.lines import lines

DATA = "\ufeffone\r\ntwo\u2028still two\n\nfour".encode()


def test_a_stream_is_read_as_a_file_is(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(DATA)
    stream = io.BytesIO(DATA)
    expected = [(1, "one"), (2, "two\u2028still two"), (3, ""), (4, "four")]
    assert list(lines(path)) == list(lines(stream, "standard input")) == expected
    assert not stream.closed
    with path.open("rb") as opened:
        assert list(lines(opened, "x")) == expected


def test_bytes_that_are_no_text_are_named():
    wanted = r"standard input:2: byte 3 of the line is 0xff, .*; convert the file: iconv -f"
    with pytest.raises(RegardError, match=wanted):
        list(lines(io.BytesIO(b"ok\nno\xff\n"), "standard input"))
