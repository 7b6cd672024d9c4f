"""Files that appear only when they are complete."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dragon.files import whole_file


def test_a_failed_write_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError), whole_file(path) as written:
        written.write_text("half" * 10_000 + "\ud800", encoding="utf-8")
    assert path.read_text() == "before"
    with whole_file(path) as written:
        written.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["file"]


def test_the_error_for_a_missing_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, whole_file(tmp_path / "nowhere" / "file"):
        pass
    assert raised.value.filename == str(tmp_path / "nowhere")


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    with whole_file(tmp_path / "link") as written:
        written.write_text("text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_a_named_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    with whole_file(pipe) as written:
        written.write_text("text")
    reader.join(30)
    assert (heard, pipe.is_fifo()) == (["text"], True)


def test_a_file_keeps_the_permissions_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    with whole_file(path) as written:
        written.write_text("private")
        assert written.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600
    with whole_file(tmp_path / "new") as written:
        written.write_text("new")
    (tmp_path / "other").touch()
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode
