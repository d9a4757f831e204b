from __future__ import annotations

import os
from pathlib import Path

import pytest

from predictor.errors import OutputNotWritable
from predictor.files import code_version, write_whole


def test_a_file_is_replaced_with_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    target = tmp_path / "out"
    target.write_text("old")
    write_whole(target, lambda path: path.write_text("new"))
    assert target.read_text() == "new"
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_what_breaks_off_leaves_the_old_file_alone(fault: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")

    def broken(path: Path) -> None:
        path.write_text("half")
        raise fault

    with pytest.raises((KeyboardInterrupt, OutputNotWritable)):
        write_whole(target, broken)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


def test_folders_are_made_only_on_demand(tmp_path: Path) -> None:
    with pytest.raises(OutputNotWritable, match="No such file"):
        write_whole(tmp_path / "a" / "b", lambda path: path.write_text("x"))
    write_whole(tmp_path / "a" / "b", lambda path: path.write_text("x"), make_folder=True)
    assert (tmp_path / "a" / "b").read_text() == "x"
    with pytest.raises(OutputNotWritable, match="directory"):
        write_whole(tmp_path / "a", lambda path: path.write_text("x"))


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, lambda path: path.write_bytes(b"data"))
    assert os.read(reader, 10) == b"data"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_edit_of_code_is_another_version(tmp_path: Path) -> None:
    folder, link = tmp_path / "code", tmp_path / "link"
    (folder / "inner").mkdir(parents=True)
    link.symlink_to(folder)
    (folder / "inner" / "a.py").write_text("x = 1")
    before = code_version(folder)
    (folder / "notes.txt").write_text("no code")
    assert code_version(link) == code_version(folder) == before
    (folder / "inner" / "a.py").write_text("x = 2")
    assert code_version(link) != before
