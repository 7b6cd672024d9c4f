"""Finds what the agent and every process of one node of a run wait for, without depending on their cooperation."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec
import psutil

from dragon import _core
from dragon.cli import stacks
from dragon.cli.kernel import doing
from dragon.cli.processes import Row, row_of
from dragon.runs import Node
from dragon.runtime.inspection import Inquiry, InquiryError, Report, Thread
from dragon.runtime.waits import Names, Wait, waits_of

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
    spy = stacks.find_spy()
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
    if not stacks.is_python(row.pid):
        return [], "it is not a Python process"
    if spy is None:
        return [], _NO_SPY
    try:
        return stacks.spy(spy, row.pid), ""
    except stacks.StackError as error:
        return [], str(error)
