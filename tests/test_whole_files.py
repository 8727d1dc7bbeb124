"""Files that are written whole: the old one stays until the new one is complete."""

import os

import pytest
import torch

from regard.errors import RegardError
from regard.record.tensor_file import TensorFile
from regard.whole_files import write_text, written_whole


def test_the_new_file_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    write_text(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_half_way_changes_nothing(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def begin():
        with written_whole(path) as half_done:
            half_done.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_others_may_read_what_they_may_read_elsewhere(tmp_path):
    """The writer of safetensors makes files that nobody else may read."""
    before = os.umask(0o022)
    try:
        file = TensorFile("thing", "test-thing")
        file.write(tmp_path / "a.safetensors", {"a": torch.ones(2)}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RegardError, match=r"no/a.txt cannot be written: No such file or directory"):
        write_text(tmp_path / "no" / "a.txt", "text")
