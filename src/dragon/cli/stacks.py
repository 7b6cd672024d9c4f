"""The Python stacks of processes: those that processes send when they are asked, and those that py-spy reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from dragon.runtime.inspection import Frame, Thread

__all__ = ["StackError", "find_spy", "is_python", "spy"]

_TIMEOUT = 10.0


class StackError(Exception):
    """No stack can be had; the message says why."""


class _Call(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Spied(msgspec.Struct):
    thread_id: int
    thread_name: str | None
    frames: list[_Call]


def find_spy() -> str | None:
    """Where py-spy is, if it is installed."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def is_python(pid: int) -> bool:
    """Whether a process runs a Python interpreter, as far as its program's name tells."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")
    except OSError:
        return False


def spy(program: str, pid: int) -> list[Thread]:
    """The stacks as py-spy reads them, without stopping the process. Raises StackError."""
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
