"""Lists the processes of a run on this machine, from the kernel and the run's agents."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import psutil

import dragon
from dragon.commands import Parser
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.facts import FIRST_PUID
from dragon.runs import Node, Run
from dragon.runtime.folder import Owner, is_alive
from dragon.runtime.inspection import Report, ask_agent
from dragon.runtime.protocol.run import ReportYourself


def parser(name: str, description: str, epilog: str, what: str) -> argparse.ArgumentParser:
    """Return the parser of a command that shows all runs, or one; `what` is the help of that argument."""
    made = Parser(
        prog=f"dragon {name}",
        description=description,
        epilog=epilog,
    )
    made.add_argument("run", nargs="?", metavar="RUN", help=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def moment(seconds: float) -> str:
    """Format a time, given in seconds since 1970: the time of day, with the date unless it is today."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def table(rows: list[list[str]]) -> str:
    """Format rows of cells as columns; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows)


PATIENCE = 2.0
"""Seconds within which a working agent answers."""

Role = Literal["front end", "agent", "zygote", "process", "child"]


class Row(msgspec.Struct):
    """A process of a run.

    Attributes:
        puid: its number in the run; None if it has none.
        pid: its process id.
        name: its name in the run, else that of its program.
        role: what it is; a "child" was started by a process of the run by other means than the runtime.
        node: the index of its node.
        state: its state, as psutil names it.
        cpu_seconds: CPU time in seconds.
        memory: resident memory in bytes.
    """

    puid: int | None
    pid: int
    name: str
    role: Role
    node: int
    state: str
    cpu_seconds: float
    memory: int

    @property
    def title(self) -> str:
        """Its name in texts."""
        return self.name if self.role in ("process", "child") else f"({self.role})"


def report_of(node: Node) -> Report | str:
    """Return the report of a node's agent, or why there is none."""
    try:
        return ask_agent(node.folder, ReportYourself(), PATIENCE)
    except TimeoutError:
        return f"does not answer within {PATIENCE:g} s"
    except msgspec.ValidationError as error:
        version = node.info.version or "another version"
        return f"runs dragon {version}, and this is {dragon.__version__}: use the `dragon` of that version ({error})"
    except (RunEndedError, RuntimeError, ValueError) as error:
        return str(error)


def process_of(owner: Owner | None) -> psutil.Process | None:
    """Return the process; None if it has ended."""
    try:
        return psutil.Process(owner.pid) if owner is not None and is_alive(owner) else None
    except psutil.NoSuchProcess:
        return None


def below(owner: Owner) -> list[psutil.Process]:
    """Return all descendants of a process."""
    process = process_of(owner)
    try:
        return process.children(recursive=True) if process is not None else []
    except psutil.NoSuchProcess:
        return []


def _started(owner: Owner) -> list[psutil.Process]:
    """Return all descendants of a process, except multiprocessing's resource trackers."""
    return [process for process in below(owner) if not _is_tracker(process)]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False  # it has ended, or access is denied


def users(node: Node) -> list[psutil.Process]:
    """Return all processes that map the shared memory of a node, including the program's own forks."""
    try:
        memory = os.stat(f"/proc/{node.info.agent.pid}/fd/{node.info.arena_fd}").st_ino
    except OSError:
        return []
    found = []
    for process in psutil.process_iter():
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue  # it is another user's, or it has ended
        if process.pid != os.getpid() and any(
            line.split()[4] == str(memory) for line in maps.splitlines() if "/memfd:dragon" in line
        ):
            found.append(process)
    return found


def count(run: Run) -> int:
    """Return the number of live processes of a run on this machine, without agents and zygotes."""
    started = sum(max(len(_started(node.info.agent)) - 1, 0) for node in run.nodes)
    return started + (process_of(run.head) is not None)


def rows(run: Run, reports: list[Report | str]) -> list[Row]:
    """Return a row for every process of a run, given the reports of its nodes' agents."""
    result = _row(run.front_end, None, "dragon", "front end", 0)
    result += _row(run.head, FIRST_PUID, "head", "process", 0)
    for node, report in zip(run.nodes, reports, strict=True):
        index, agent = node.info.node, node.info.agent
        result += _row(agent, None, "agent", "agent", index)
        known = {pid: (puid, name) for puid, pid, name, _ in report.processes} if isinstance(report, Report) else {}
        for process in _started(agent):
            if process.pid in known:
                puid, name = known[process.pid]
                result += rows_of(process, puid, name, "process", index)
            elif process.pid == _zygote(agent, report):
                result += rows_of(process, None, "zygote", "zygote", index)
            else:
                result += rows_of(process, None, "", "child", index)
        seen = {row.pid for row in result}
        for process in users(node):
            if process.pid not in seen:
                result += rows_of(process, None, "", "child", index)
    return sorted(result, key=lambda row: (row.node, row.role != "front end", row.puid or 0, row.pid))


def _zygote(agent: Owner, report: Report | str) -> int:
    """Return the process id of the zygote. Without a report it is assumed to be the agent's first child."""
    if isinstance(report, Report):
        return report.zygote
    try:
        return min(psutil.Process(agent.pid).children(), key=psutil.Process.create_time).pid
    except (psutil.NoSuchProcess, ValueError):
        return 0


def _row(owner: Owner | None, puid: int | None, name: str, role: Role, node: int) -> list[Row]:
    process = process_of(owner)
    return list(rows_of(process, puid, name, role, node)) if process is not None else []


def row_of(row: Row) -> Row | None:
    """Return the row with present values; None if the process has ended."""
    try:
        process = psutil.Process(row.pid)
    except psutil.NoSuchProcess:
        return None
    return next(rows_of(process, row.puid, row.name, row.role, row.node), None)


def rows_of(process: psutil.Process, puid: int | None, name: str, role: Role, node: int) -> Iterator[Row]:
    """Yield the row of a process, or nothing if it has ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            state = process.status()
            if state == psutil.STATUS_ZOMBIE:
                return
            yield Row(
                puid=puid,
                pid=process.pid,
                name=name or process.name(),
                role=role,
                node=node,
                state=state,
                cpu_seconds=round(times.user + times.system, 2),
                memory=process.memory_info().rss,
            )
    except psutil.NoSuchProcess:
        return
