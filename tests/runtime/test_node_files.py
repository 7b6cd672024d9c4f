"""Files that several programs of a node share: which programs share a file, and its removal when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dragon.node_files import NodeFile
from dragon.runtime.folder import find_runs

HAVING = """
import sys
from dragon.node_files import NodeFile

file = NodeFile("table", 16)
print(file.path, flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.usefixtures("own_folders")


@contextmanager
def program() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run another program that has the file until the end of its input; yield the program and the file's path."""
    running = subprocess.Popen([sys.executable, "-c", HAVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with running:
        assert running.stdout is not None
        yield running, running.stdout.readline().strip()
        if running.poll() is None:
            running.communicate()


def test_programs_that_use_the_same_name_share_the_file() -> None:
    file = NodeFile("table", 16)
    with program() as (_, path), open(path, "r+b") as theirs:
        theirs.write(b"seen")
        theirs.flush()
        assert file.path.read_bytes() == b"seen" + bytes(12)
    file.close()
    assert find_runs() == []


def test_a_file_remains_when_its_creator_closes_it() -> None:
    first = NodeFile("table", 16)
    first.path.write_bytes(b"kept")
    second = NodeFile("table", 16)
    first.close()
    third = NodeFile("table", 16)
    assert third.path.read_bytes() == b"kept"
    second.close()
    third.close()


def test_files_with_different_names_are_different() -> None:
    one, other = NodeFile("one", 1), NodeFile("other", 1)
    one.path.write_bytes(b"1")
    assert other.path.read_bytes() == b"\0"
    one.close()
    other.close()


def test_files_of_a_killed_program_are_removed_at_the_next_search() -> None:
    with program() as (running, path):
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert os.path.exists(path)
        file = NodeFile("table", 16)
        assert not os.path.exists(path)
        file.close()
    assert find_runs() == []


def test_a_file_can_be_opened_only_by_its_user() -> None:
    file = NodeFile("table", 1)
    assert file.path.stat().st_mode & 0o077 == 0
    file.close()


def test_a_file_name_that_is_not_an_identifier_is_refused() -> None:
    with pytest.raises(ValueError, match="'a/b' cannot be the name of a file: use letters, digits and underscores"):
        NodeFile("a/b", 1)
