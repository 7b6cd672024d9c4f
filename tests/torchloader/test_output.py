"""The output of commands, including output that cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloader.cli import status as live
from torchloader.service.messages import NoMasterError

COMMANDS = pytest.mark.parametrize("words", ["simulate --jobs 2 --seeds 1 --minutes 1", "--help"])


def run(words: str, stdout: int) -> subprocess.CompletedProcess[str]:
    # Buffered, as it is for users: the error comes when all is done.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "torchloader", *words.split()]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)


@COMMANDS
def test_a_full_disk_is_reported_in_one_line(words: str) -> None:
    with open("/dev/full", "w") as full:
        done = run(words, full.fileno())
    assert (done.returncode, done.stderr) == (1, "torchloader: No space left on device\n")


@COMMANDS
def test_a_reader_that_closes_the_pipe_gives_no_error_message(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run(words, writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_follow_prints_lines_of_json_until_the_workload_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(live, "_REFRESH_INTERVAL_S", 0.0)
    told: list[dict[str, Any]] = [{"time": time, "folder": str(tmp_path / "none")} for time in (1.0, 2.0)]
    answers = list(told)

    def ask() -> dict[str, Any]:
        if not answers:
            raise NoMasterError
        return answers.pop(0)

    live.follow(ask)
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [*told, told[-1]]  # the last line says how all ended
    assert "how its applications ended is not known" in err
