"""The processes of a run on this machine, as the kernel and the run's agents know them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.facts import FIRST_PUID
from dragon.runs import Node, Run
from dragon.runtime.folder import Owner, is_alive
from dragon.runtime.inspection import Report, ask_agent
from dragon.runtime.protocol.run import ReportYourself

__all__ = ["PATIENCE", "Row", "below", "count", "process_of", "report_of", "row_of", "rows", "users"]

PATIENCE = 2.0
"""Seconds within which an agent that is well answers."""

Role = Literal["front end", "agent", "zygote", "process", "child"]


class Row(msgspec.Struct):
    """A process. `puid` and `name` are the run's; a child is what one of the run's processes started by itself."""

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
        """How it is called in text."""
        return self.name if self.role in ("process", "child") else f"({self.role})"


def report_of(node: Node) -> Report | str:
    """What a node's agent says of itself, or why it says nothing."""
    try:
        return ask_agent(node.folder, ReportYourself(), PATIENCE)
    except TimeoutError:
        return f"does not answer within {PATIENCE:g} s"
    except (RunEndedError, RuntimeError, msgspec.MsgspecError) as error:
        return str(error)


def process_of(owner: Owner | None) -> psutil.Process | None:
    """That process, if it lives."""
    try:
        return psutil.Process(owner.pid) if owner is not None and is_alive(owner) else None
    except psutil.NoSuchProcess:
        return None


def below(owner: Owner) -> list[psutil.Process]:
    """All processes below one."""
    process = process_of(owner)
    try:
        return process.children(recursive=True) if process is not None else []
    except psutil.NoSuchProcess:
        return []


def _started(owner: Owner) -> list[psutil.Process]:
    """The same without those that multiprocessing starts to keep track of shared memory."""
    return [process for process in below(owner) if not _is_tracker(process)]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False  # it has ended, or will not say


def users(node: Node) -> list[psutil.Process]:
    """All processes that have the shared memory of a node, the program's own forks among them."""
    try:
        memory = os.stat(f"/proc/{node.info.agent.pid}/fd/{node.info.arena_fd}").st_ino
    except OSError:
        return []
    found = []
    for process in psutil.process_iter():
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue  # somebody else's, or it has ended
        if process.pid != os.getpid() and any(
            line.split()[4] == str(memory) for line in maps.splitlines() if "/memfd:dragon" in line
        ):
            found.append(process)
    return found


def count(run: Run) -> int:
    """The live processes of a run on this machine, without those that serve it."""
    started = sum(max(len(_started(node.info.agent)) - 1, 0) for node in run.nodes)
    return started + (process_of(run.head) is not None)


def rows(run: Run, reports: list[Report | str]) -> list[Row]:
    """Every process of a run, given what its nodes' agents said."""
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
    """Its process id, or what it probably is: the agent's first child."""
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
    """The same, as it is now; None where it has ended."""
    try:
        process = psutil.Process(row.pid)
    except psutil.NoSuchProcess:
        return None
    return next(rows_of(process, row.puid, row.name, row.role, row.node), None)


def rows_of(process: psutil.Process, puid: int | None, name: str, role: Role, node: int) -> Iterator[Row]:
    """One, or none where the process has ended."""
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
