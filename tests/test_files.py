"""Files that are written whole: the old one stays until the new one is complete."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from regard.errors import RegardError
from regard.files import make_folder, write_text, written_whole
from regard.record.tensor_file import TensorFile


def test_the_new_file_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    write_text(path, "new é")
    assert path.read_text(encoding="utf-8") == "new é"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes in folders")
def test_what_is_no_file_of_a_disk_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        read = other.submit(pipe.read_text)
        write_text(pipe, "new")
        assert read.result() == "new"
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
    link, real = tmp_path / "link", tmp_path / "real"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink() and real.read_text() == "new"


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
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match=r"file/a.txt cannot be written: Not a directory$"):
        write_text(tmp_path / "file" / "a.txt", "text")
    with pytest.raises(RegardError, match=r"file/x cannot be made a folder: Not a directory$"):
        make_folder(tmp_path / "file" / "x")


def test_the_file_that_is_wrong_is_named_where_it_is_another(tmp_path):
    with (
        pytest.raises(RegardError, match=r"a.txt cannot be written: No such file .*: .*missing"),
        written_whole(tmp_path / "a.txt") as half_done,
    ):
        shutil.copyfile(tmp_path / "missing", half_done)
    assert os.listdir(tmp_path) == []


def test_what_was_left_behind_gives_no_rights(tmp_path):
    """A process that is killed while it writes leaves a file that others may not read."""
    before = os.umask(0o022)
    try:
        left = tmp_path / "a.txt.part"
        left.write_text("half")
        left.chmod(0o600)
        write_text(tmp_path / "a.txt", "whole")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    """Files of at most a few bytes, in a process of its own, stand for a disk that is full."""
    script = (
        "import resource, sys, torch; from pathlib import Path\n"
        "from regard.errors import RegardError\n"
        "from regard.record.tensor_file import TensorFile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: TensorFile('thing', 'test').write(Path(sys.argv[1]), {'a': torch.ones(9999)}, {})\n"
        "except RegardError as error: print(error)"
    )
    path = tmp_path / "a.safetensors"
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(f"{path} cannot be written: ") and "File too large" in done.stdout
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_read_is_named(tmp_path):
    file = TensorFile("thing", "test-thing")
    with pytest.raises(RegardError, match=r"is a folder, expected the file of a thing$"):
        file.read(tmp_path)
    (tmp_path / "a").write_text("")
    with pytest.raises(RegardError, match=r"there is no file .*a/b"):
        file.read(tmp_path / "a" / "b")
    with pytest.raises(RegardError, match=r"xxx cannot be read: File name too long$"):
        file.read(tmp_path / ("x" * 999))


WRITER = """
import sys
from pathlib import Path
from regard.files import write_text
for _ in range(150):
    write_text(Path(sys.argv[1]), sys.argv[2] * 200_000)
"""


def test_two_writers_of_one_file_leave_a_whole_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a" * 200_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, letter]) for letter in "ab"]
    read = set()
    while any(writer.poll() is None for writer in writers):
        read.add(path.read_text())
    assert [writer.returncode for writer in writers] == [0, 0]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda letter: write_text(path, letter * 200_000), "abab" * 10))
    assert {*read, path.read_text()} <= {"a" * 200_000, "b" * 200_000}
    assert os.listdir(tmp_path) == ["a.txt"]
