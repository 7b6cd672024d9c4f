"""Finds what the agent and every process of one node of a run wait for, without depending on their cooperation."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from dragon import _core
from dragon.cli.processes import Row, row_of
from dragon.runs import Node
from dragon.runtime.inspection import Frame, Inquiry, InquiryError, Names, Report, Thread, Wait, waits_of

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


def read_by_spy(program: str, pid: int) -> list[Thread]:
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


# The system calls in which processes wait: their numbers on x86-64 and on 64-bit ARM, and what they wait for.
_CALLS: dict[str, tuple[int, int, str]] = {
    "read": (0, 63, "data from {}"),
    "readv": (19, 65, "data from {}"),
    "write": (1, 64, "room in {}"),
    "writev": (20, 66, "room in {}"),
    "recvfrom": (45, 207, "data from {}"),
    "recvmsg": (47, 212, "data from {}"),
    "sendto": (44, 206, "room in {}"),
    "sendmsg": (46, 211, "room in {}"),
    "connect": (42, 203, "a connection by {}"),
    "accept": (43, 202, "a connection to {}"),
    "accept4": (288, 242, "a connection to {}"),
    "flock": (73, 32, "the lock on {}"),
    "fcntl": (72, 25, "the lock on {}"),
    "fsync": (74, 82, "{} to be on disk"),
    "fdatasync": (75, 83, "{} to be on disk"),
    "poll": (7, -1, "one of several descriptors"),
    "ppoll": (271, 73, "one of several descriptors"),
    "select": (23, -1, "one of several descriptors"),
    "pselect6": (270, 72, "one of several descriptors"),
    "epoll_wait": (232, -1, "one of several descriptors"),
    "epoll_pwait": (281, 22, "one of several descriptors"),
    "futex": (202, 98, "another thread, or another process by shared memory"),
    "wait4": (61, 260, "the end of a child process"),
    "waitid": (247, 95, "the end of a child process"),
    "nanosleep": (35, 101, "some time to pass"),
    "clock_nanosleep": (230, 115, "some time to pass"),
    "pause": (34, -1, "a signal"),
    "rt_sigsuspend": (130, 133, "a signal"),
    "rt_sigtimedwait": (128, 137, "a signal"),
}
_COLUMN = 1 if platform.machine() == "aarch64" else 0
_BY_NUMBER = {numbers[_COLUMN]: (name, numbers[2]) for name, numbers in _CALLS.items()}


def doing(pid: int) -> str:
    """Describe what the main thread of a process does or waits for. Returns "" if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    if state == "R":
        return "it runs"
    if state == "T":
        return f"it is stopped (Ctrl-Z, SIGSTOP); `kill -CONT {pid}` continues it"
    if state == "t":
        return "it is stopped by a debugger"
    if state == "D":
        return "it waits for a disk or a network file system, and cannot be killed meanwhile" + _kernel_function(pid)
    return _call(pid) or "it waits" + (_kernel_function(pid) or ", the kernel does not show for what")


def _call(pid: int) -> str:
    """Describe the system call that the process is in; "" if this user may not see it."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return ""
    if not words[0].isdigit():
        return ""
    name, what = _BY_NUMBER.get(int(words[0]), ("", ""))
    if not name:
        return f"it is in system call {words[0]}" + _kernel_function(pid)
    return f"it waits for {what.format(_descriptor(pid, int(words[1], 16)))} ({name})"


def _descriptor(pid: int, number: int) -> str:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return f"descriptor {number}"
    return f"descriptor {number}, {target}"


def _kernel_function(pid: int) -> str:
    try:
        function = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
    return f" (in the kernel's {function})" if function not in ("", "0") else ""


# Seconds. A process that waits in the runtime checks once a second for a request of its stacks.
_ANSWER_WITHIN = 1.5
_LOAD_SAMPLE_S = 0.5

_NO_SPY = (
    "it does not wait in the runtime, where it would send its stack; install py-spy (pip install py-spy) to read it"
)


class Finding(msgspec.Struct):
    """A process: its share of a CPU over the last moments, what it waits for, its stacks or why there are none."""

    row: Row
    load: float
    waits: list[Wait] = []
    kernel: str = ""
    threads: list[Thread] = []
    no_stacks: str = ""


class Ward(msgspec.Struct):
    """A node: its agent's report, or why there is none (`silence`), and its processes. `troubles` are reasons why
    something cannot be shown."""

    node: int
    folder: str
    report: Report | None
    silence: str
    findings: list[Finding]
    troubles: list[str]


def examine(node: Node, report: Report | str, rows: Sequence[Row]) -> Ward:
    """Examine a node, given its agent's report (or why there is none) and its processes. Takes up to two seconds."""
    said, silence = (report, "") if isinstance(report, Report) else (None, report)
    ward = Ward(node.info.node, str(node.folder), said, silence, [], [])
    began, times = time.monotonic(), {row.pid: row.cpu_seconds for row in rows}
    noted, answers = _ask(node, said, ward.troubles)
    time.sleep(max(0.0, began + _LOAD_SAMPLE_S - time.monotonic()))
    waits: dict[int, list[Wait]] = {}
    names = Names({row.pid: row.title for row in rows}, said, node.info.agent.pid)
    for pid, wait in waits_of(noted, said, names):
        waits.setdefault(pid, []).append(wait)
    spy = find_spy()
    for row in rows:
        now = row_of(row)
        if now is None:
            continue  # it has ended meanwhile
        load = (now.cpu_seconds - times[row.pid]) / (time.monotonic() - began)
        finding = Finding(now, round(max(load, 0.0), 2), threads=answers.get(row.pid, []))
        finding.waits = waits.get(row.pid, [])
        if not finding.waits or now.state != psutil.STATUS_SLEEPING:
            finding.kernel = doing(row.pid)
        if not finding.threads:
            finding.threads, finding.no_stacks = spied(spy, row)
        ward.findings.append(finding)
    return ward


def _ask(node: Node, report: Report | None, troubles: list[str]) -> tuple[list[_core._Wait], dict[int, list[Thread]]]:
    """Return the waits that processes have noted, and the stacks of those that answered."""
    agent = node.info.agent
    try:
        _core.open_arena(os.open(f"/proc/{agent.pid}/fd/{node.info.arena_fd}", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        troubles.append(f"what processes wait for in the runtime: its shared memory cannot be opened ({error})")
        return [], {}
    expected = {wait["pid"] for wait in _core.waits()} - {agent.pid}
    expected |= {int(asked.who) for asked in (report.asked if report else ())}
    answers: dict[int, list[Thread]] = {}
    try:
        with Inquiry(node.folder) as inquiry:
            answers = inquiry.collect(expected, _ANSWER_WITHIN)
    except InquiryError as error:
        troubles.append(f"stacks that processes send themselves: {error}")
    noted = _core.waits()
    # Others were at work meanwhile: a process checks for requests once a second while it waits.
    silent = sorted({wait["pid"] for wait in noted if wait["seconds"] > _ANSWER_WITHIN} & expected - answers.keys())
    if silent and not troubles:
        troubles.append(
            f"the stacks of {', '.join(map(str, silent))}: these processes wait in the runtime and did not answer "
            f"within {_ANSWER_WITHIN:g} s; they are stopped, or another of their threads holds the GIL"
        )
    _core.close_arena()
    return noted, answers


def spied(spy: str | None, row: Row) -> tuple[list[Thread], str]:
    """Return the stacks of a process, and why there are none ("" if there are)."""
    if not is_python(row.pid):
        return [], "it is not a Python process"
    if spy is None:
        return [], _NO_SPY
    try:
        return read_by_spy(spy, row.pid), ""
    except StackError as error:
        return [], str(error)
