"""Reads the Python stacks of processes with py-spy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from dragon.runtime.inspection import Frame, Thread

_TIMEOUT = 10.0  # seconds


class StackError(Exception):
    """Raised if a stack cannot be read; the message says why."""


class _Call(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Spied(msgspec.Struct):
    thread_id: int
    thread_name: str | None
    frames: list[_Call]


def find_spy() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def is_python(pid: int) -> bool:
    """Return whether the program of a process is called python."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")
    except OSError:
        return False


def spy(program: str, pid: int) -> list[Thread]:
    """Return the stacks that py-spy reads without stopping the process. Raises StackError."""
    command = [program, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"py-spy: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"it ended with code {done.returncode}"
        raise StackError(f"py-spy: {said}")
    spied = msgspec.json.decode(done.stdout, type=list[_Spied])
    return [
        Thread(
            thread.thread_id,
            thread.thread_name or "",
            [Frame(call.name, call.filename, call.line) for call in reversed(thread.frames)],
        )
        for thread in spied
    ]
