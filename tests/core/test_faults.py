"""Processes of fault_programs.py are killed at random; the survivors continue, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("fault_programs.py")
TIME_OUT = 100


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "program",
    [
        "queue",
        "unbounded_queue",
        "large_messages",
        "lock",
        "lock_with_warnings_as_errors",
        "semaphore",
        "condition",
        "handles",
        "forked_copies",
        "leaving",
    ],
)
def test_survivors_continue_after_other_processes_were_killed(program: str, seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS), program, str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    hung = False
    try:
        output, _ = process.communicate(timeout=TIME_OUT)
    except subprocess.TimeoutExpired:
        hung = True
        os.killpg(process.pid, signal.SIGUSR1)  # every process shows its stack
        time.sleep(1)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nothing is left of it, as it should be
    if hung:
        output, _ = process.communicate()
        pytest.fail(f"{program} hung\n{output}")
    assert process.returncode == 0, output
