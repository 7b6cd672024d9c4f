"""`dragon doctor`: shows what a run waits for."""

from __future__ import annotations

import argparse
import json
import linecache
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

import dragon
from dragon import _core, runs
from dragon.cli.ps import Row, count, moment, now, report_of, rows, run_parser
from dragon.commands import table
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.structs import msgspec
from dragon.runs import Node
from dragon.runtime import inspection
from dragon.runtime.inspection import Frame, Names, Report, Thread, Wait
from dragon.runtime.run import arena_of

_TIMEOUT = 10.0  # seconds


class _Call(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Spied(msgspec.Struct):
    thread_id: int
    thread_name: str | None
    frames: list[_Call]


def find_spy() -> str | None:
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def is_python(pid: int) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")
    except OSError:
        return False


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
_LOAD_SAMPLE_S = 0.2  # the kernel counts in steps of 0.01

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
    for pid, wait in inspection.waits_of(noted, said, names):
        waits.setdefault(pid, []).append(wait)
    spy = find_spy()
    for row in rows:
        present = now(row)
        if present is None:
            continue  # it has ended meanwhile
        load = (present.cpu_seconds - times[row.pid]) / (time.monotonic() - began)
        finding = Finding(present, round(max(load, 0.0), 2), threads=answers.get(row.pid, []))
        finding.waits = waits.get(row.pid, [])
        if not finding.waits or present.state != psutil.STATUS_SLEEPING:
            finding.kernel = doing(row.pid)
        if not finding.threads:
            finding.threads, finding.no_stacks = spied(spy, row)
        ward.findings.append(finding)
    return ward


def _ask(node: Node, report: Report | None, troubles: list[str]) -> tuple[list[_core._Wait], dict[int, list[Thread]]]:
    """Return the waits that processes have noted, and the stacks of those that answered."""
    agent = node.info.agent
    try:
        _core.open_arena(arena_of(agent, node.info.arena_fd))
    except OSError as error:
        troubles.append(f"what processes wait for in the runtime: its shared memory cannot be opened ({error})")
        return [], {}
    expected = {wait["pid"] for wait in _core.waits()} - {agent.pid}
    expected |= {int(asked.who) for asked in (report.asked if report else ())}
    answers: dict[int, list[Thread]] = {}
    try:
        with inspection.Inquiry(node.folder) as inquiry:
            answers = inquiry.collect(expected, _ANSWER_WITHIN)
    except inspection.InquiryError as error:
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
    """Return the stacks of a process, which py-spy reads without stopping it, and why there are none ("" if there
    are)."""
    if not is_python(row.pid):
        return [], "it is not a Python process"
    if spy is None:
        return [], _NO_SPY
    command = [spy, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(row.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"py-spy: {error}"
    if done.returncode != 0:
        return [], "py-spy: " + (" ".join(done.stderr.split()) or f"it ended with code {done.returncode}")
    threads = []
    for one in msgspec.json.decode(done.stdout, type=list[_Spied]):
        frames = [Frame(call.name, call.filename, call.line) for call in reversed(one.frames)]
        threads.append(Thread(one.thread_id, one.thread_name or "", frames))
    return threads, ""


_EPILOG = """\
examples:
  dragon doctor             your runs on this machine, and whether their agents answer
  dragon doctor 3fa9c1      what the agent and every process of one wait for, with Python stacks

The run is not disturbed. A process that waits in the runtime (for a queue, a lock, the end of a process) sends its
stacks by itself, within a second. Those of others, which compute, sleep or wait for a socket, are read by py-spy if it
is installed (pip install py-spy) and you may trace your processes; without it the kernel's information is shown.
What cannot be shown is listed at the end, with the reason.

RUN is a name from `dragon ps`, or the beginning of one. Of a run over several machines only this one is shown.
"""


_PACKAGE = Path(dragon.__file__).parent
# The files whose frames call a program, or the function of a process or thread.
_STARTS = {"<frozen runpy>", threading.__file__}
_MOST_OF_OURS = 6
_STARTING_MODULES = {("multiprocessing", "process.py")}


def parser() -> argparse.ArgumentParser:
    description = "Show what a run waits for: its agent and every process, with stacks."
    return run_parser("doctor", description, _EPILOG, "the run to show")


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(words)
    found = runs.find()
    if arguments.run is None:
        print(json.dumps(_overview(found), indent=2) if arguments.json else _overview_table(found))
        return 0
    run = runs.choose(arguments.run, found)
    if not arguments.json:
        print(f"run {run.name}: {run.command}\n  since {moment(run.since)}", flush=True)
    reports = [report_of(node) for node in run.nodes]
    listed = rows(run, reports)
    wards = [
        examine(node, report, [row for row in listed if row.node == node.info.node])
        for node, report in zip(run.nodes, reports, strict=True)
    ]
    if arguments.json:
        print(json.dumps({"run": run.name, "command": run.command, "nodes": msgspec.to_builtins(wards)}, indent=2))
    else:
        print("\n".join(_text(wards)))
    return 0


def _overview(found: list[runs.Run]) -> list[dict[str, object]]:
    return [
        {"run": run.name, "command": run.command, "processes": count(run), "agents": [_health(n) for n in run.nodes]}
        for run in found
    ]


def _overview_table(found: list[runs.Run]) -> str:
    if not found:
        return "you have no runs on this machine"
    lines = [["RUN", "PROCESSES", "AGENT", "COMMAND"]]
    for run in found:
        health = "; ".join(dict.fromkeys(_health(node) for node in run.nodes))
        lines.append([run.name, str(count(run)), health, run.shortened])
    return table(lines) + f"\n\n`dragon doctor {found[0].name}` shows what the processes of that run wait for"


def _health(node: runs.Node) -> str:
    report = report_of(node)
    return "answers" if isinstance(report, Report) else report


# ---- one run, as text


def _text(wards: list[Ward]) -> Iterator[str]:
    for ward in wards:
        yield f"\nnode {ward.node}, {ward.folder}"
        if not ward.findings:
            yield "  it is ending, or has ended: its agent and processes are gone"
        # The user's processes first.
        for finding in sorted(ward.findings, key=lambda finding: finding.row.role in ("agent", "zygote")):
            yield from finding_text(finding, ward)
    yield from _unseen(wards)


def finding_text(finding: Finding, ward: Ward) -> Iterator[str]:
    row = finding.row
    puid = f"puid {row.puid}, " if row.puid is not None else ""
    yield f"\n{row.title} ({puid}pid {row.pid}): {row.state}, {finding.load:.0%} of a CPU"
    if row.role == "agent":
        yield from _agent_text(ward)
    if finding.kernel:
        yield f"  {finding.kernel}"
    shown = {thread.ident for thread in finding.threads}
    for wait in finding.waits:
        if wait.thread not in shown:
            yield f"  {_wait_text(wait)}"
    for thread in finding.threads:
        yield f"  thread {thread.name or thread.ident}"
        for wait in finding.waits:
            if wait.thread == thread.ident:
                yield f"    {_wait_text(wait)}"
        yield from _stack_text(thread)
    if finding.no_stacks:
        yield f"  no stack: {finding.no_stacks}"


def _wait_text(wait: Wait) -> str:
    return f"has waited {_duration(wait.seconds)} {wait.text}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _stack_text(thread: Thread) -> Iterator[str]:
    for frame in _without_start(thread.frames):
        yield f'    File "{frame.file}", line {frame.line}, in {frame.function}'
        source = linecache.getline(frame.file, frame.line).strip()
        if source:
            yield f"      {source}"


def _without_start(frames: list[Frame]) -> list[Frame]:
    """Return the frames from the user's first one on; the innermost ones if there is none."""
    for first, frame in enumerate(frames):
        started_by_us = frame.file == "<string>" and first + 1 < len(frames) and _is_start(frames[first + 1])
        if not (_is_start(frame) or started_by_us):
            return frames[first:]
    return frames[-_MOST_OF_OURS:]


def _is_start(frame: Frame) -> bool:
    path = Path(frame.file)
    return frame.file in _STARTS or path.parts[-2:] in _STARTING_MODULES or path.is_relative_to(_PACKAGE)


def _agent_text(ward: Ward) -> Iterator[str]:
    report = ward.report
    if report is None:
        yield f"  it {ward.silence}"
        return
    rows = [finding.row for finding in ward.findings]
    agent = next((row.pid for row in rows if row.role == "agent"), 0)
    names = Names({row.pid: row.title for row in rows}, report, agent)
    yield f"  it answers; live processes: {len(report.processes)}, being started: {report.starting}"
    if report.untaken:
        yield f"  the zygote has not read {report.untaken} requests to start a process: see what it does"
    for group in report.groups:
        failure = f"; {group.failure}" if group.failure else ""
        yield f"  group {group.name}: {group.live} of {group.members} members live{failure}"
    for parked in report.parked:
        yield f"  {parked.who} has waited {_duration(parked.seconds)} {inspection.describe_parked(parked, names)}, here"
    for node, reason in report.lost.items():
        yield f"  node {node} is lost: {reason}"
    for task in report.tasks:
        yield f"  task {task.name} at {task.where or 'its end'}"


def _unseen(wards: list[Ward]) -> Iterator[str]:
    troubles = [trouble for ward in wards for trouble in ward.troubles]
    elsewhere = _elsewhere(wards)
    if elsewhere:
        troubles.append(f"nodes on other machines: run `dragon doctor` on {', '.join(elsewhere)}")
    if troubles:
        yield "\nnot shown:"
        yield from (f"  {trouble}" for trouble in troubles)


def _elsewhere(wards: list[Ward]) -> list[str]:
    here = {ward.node for ward in wards}
    path = Path(wards[0].folder) / "nodes.json"
    if not path.exists():
        return []
    nodes = msgspec.json.decode(path.read_bytes(), type=list[NodeDescriptor])
    return [node.host_name for node in nodes if node.index not in here]
