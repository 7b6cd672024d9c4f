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
def test_unrelated_pairs_continue_to_exchange_messages(program: str) -> None:
    _run(program, "1", "100")


@pytest.mark.parametrize(
    "program", ["waits_on_a_locked_queue", "interrupts_on_a_locked_queue", "closes_a_locked_queue"]
)
def test_timeouts_hold_on_a_queue_that_a_stopped_process_has_locked(program: str) -> None:
    _run(program, "1", "20")
