"""A stopped process blocks only users of the same object, and only until their timeouts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("stop_programs.py")


def _run(program: str, *arguments: str) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS), program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=150)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing is left of it, as it should be
    assert process.returncode == 0, output


@pytest.mark.parametrize("program", ["messages", "large_messages", "handles", "timeouts"])
def test_pairs_of_their_own_go_on(program: str) -> None:
    _run(program, "1", "100")


@pytest.mark.parametrize(
    "program", ["waits_on_a_locked_queue", "interrupts_on_a_locked_queue", "closes_a_locked_queue"]
)
def test_users_of_a_queue_with_a_stopped_process_keep_their_timeouts(program: str) -> None:
    _run(program, "1", "20")
