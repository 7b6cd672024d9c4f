"""The output of commands, including output that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

COMMANDS = pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("dragon.cli.main", "k8s manifest --image train --nodes 2 train.py"),
        ("dragon.cli.main", "--help"),
        ("dragon.cli.main", "ps --json"),
        ("dragon.cli.main", "ddict ls"),
        ("dragon.cli.config", "--serialize"),
        ("dragon.cli.ifaddrs", ""),
    ],
)


def run(entry: str, words: str, stdout: int, unbuffered: str = "") -> subprocess.CompletedProcess[str]:
    # Buffered, as it is for most users: the error comes when all is done.
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", f"from {entry} import run_and_exit; run_and_exit()", *words.split()]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


@COMMANDS
def test_a_full_disk_is_reported_in_one_line(entry: str, words: str) -> None:
    with open("/dev/full", "w") as full:
        done = run(entry, words, full.fileno())
    assert done.returncode == 1
    assert done.stderr.endswith(": stdout cannot be written: No space left on device\n")
    assert done.stderr.count("\n") == 1


@COMMANDS
def test_a_reader_that_closes_the_pipe_gives_no_error_message(entry: str, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for unbuffered in ["", "1"][: 1 if words == "--help" else 2]:  # argparse itself ignores an error of its own print
        done = run(entry, words, writing, unbuffered)
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    os.close(writing)


def test_characters_that_a_terminal_cannot_show_are_escaped() -> None:
    program = "from dragon.commands import end_with; end_with('dragon', lambda: print('w\u00f6rker') or 0)"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "w\\xf6rker\n", "")
