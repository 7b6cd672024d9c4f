"""What commands print, and to where it cannot be printed."""

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
        ("dragon.cli.config", "--serialize"),
        ("dragon.cli.ifaddrs", ""),
    ],
)


def run(entry: str, words: str, stdout: int) -> subprocess.CompletedProcess[str]:
    # Buffered, as it is for users: the error comes when all is done.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", f"from {entry} import run_and_exit; run_and_exit()", *words.split()]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


@COMMANDS
def test_a_full_disk_is_told_in_a_line(entry: str, words: str) -> None:
    with open("/dev/full", "w") as full:
        done = run(entry, words, full.fileno())
    assert done.returncode == 1
    assert done.stderr.endswith(": stdout cannot be written: No space left on device\n")
    assert done.stderr.count("\n") == 1


@COMMANDS
def test_a_reader_that_has_seen_enough_is_no_mistake(entry: str, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run(entry, words, writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
