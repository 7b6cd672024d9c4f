"""`dragon ps`: lists your runs on this machine, or the processes of one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil

import dragon
from dragon import runs
from dragon.commands import Parser, table
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.plain_number import listed as listed_numbers
from dragon.infrastructure.structs import msgspec
from dragon.runs import Node, Run
from dragon.runtime.folder import Owner, is_alive
from dragon.runtime.inspection import Report, ask_agent
from dragon.runtime.protocol.run import ReportYourself


def run_parser(name: str, description: str, epilog: str, what: str) -> argparse.ArgumentParser:
    """Return the parser of a command that shows all runs, or one; `what` is the help of that argument."""
    made = Parser(prog=f"dragon {name}", description=description, epilog=epilog)
    made.add_argument("run", nargs="?", metavar="RUN", help=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def moment(seconds: float) -> str:
    """Format a time, given in seconds since 1970: the time of day, with the date unless it is today."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


PATIENCE = 2.0
"""Seconds within which a working agent answers."""

Role = Literal["front end", "agent", "zygote", "process", "child"]


class Row(msgspec.Struct):
    """A process of a run."""

    puid: int | None  # its number in the run; None if it has none
    pid: int  # its process id
    name: str  # its name in the run, else that of its program
    role: Role  # what it is; a "child" was started by a process of the run by other means than the runtime
    node: int  # the index of its node
    state: str  # its state, as psutil names it
    cpu_seconds: float  # CPU time in seconds
    memory: int  # resident memory in bytes

    @property
    def title(self) -> str:
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
    result = row_of(process_of(run.front_end), None, "dragon", "front end", 0)
    result += row_of(process_of(run.head), FIRST_PUID, "head", "process", 0)
    for node, report in zip(run.nodes, reports, strict=True):
        index, agent = node.info.node, node.info.agent
        result += row_of(process_of(agent), None, "agent", "agent", index)
        known: dict[int, tuple[int | None, str, Role]] = {_zygote(agent, report): (None, "zygote", "zygote")}
        if isinstance(report, Report):
            known |= {pid: (puid, name, "process") for puid, pid, name, _ in report.processes}
        for process in _started(agent):
            result += row_of(process, *known.get(process.pid, (None, "", "child")), index)
        seen = {row.pid for row in result}
        for process in users(node):
            if process.pid not in seen:
                result += row_of(process, None, "", "child", index)
    return sorted(result, key=lambda row: (row.node, row.role != "front end", row.puid or 0, row.pid))


def _zygote(agent: Owner, report: Report | str) -> int:
    """Return the process id of the zygote. Without a report it is assumed to be the agent's first child."""
    if isinstance(report, Report):
        return report.zygote
    try:
        return min(psutil.Process(agent.pid).children(), key=psutil.Process.create_time).pid
    except (psutil.NoSuchProcess, ValueError):
        return 0


def now(row: Row) -> Row | None:
    """Return the row with present values; None if the process has ended."""
    try:
        process = psutil.Process(row.pid)
    except psutil.NoSuchProcess:
        return None
    return next(iter(row_of(process, row.puid, row.name, row.role, row.node)), None)


def row_of(process: psutil.Process | None, puid: int | None, name: str, role: Role, node: int) -> list[Row]:
    """Return the row of a process, or nothing if it has ended."""
    try:
        if process is None or process.status() == psutil.STATUS_ZOMBIE:
            return []
        with process.oneshot():
            times, name, memory = process.cpu_times(), name or process.name(), process.memory_info().rss
            cpu_seconds = round(times.user + times.system, 2)
            return [Row(puid, process.pid, name, role, node, process.status(), cpu_seconds, memory)]
    except psutil.NoSuchProcess:
        return []


_EPILOG = """\
examples:
  dragon ps                 your runs on this machine
  dragon ps 3fa9c1          the processes of one; 3f is enough if it is unique
  dragon ps --json | jq     as JSON

RUN is a name from the first column, the process id of a run's head, front end or agent, or a run's folder.
Of a run over several machines only this one is shown. `dragon doctor RUN` shows what processes wait for.
"""


def parser() -> argparse.ArgumentParser:
    description = "List your runs on this machine, or the processes of one."
    return run_parser("ps", description, _EPILOG, "the run whose processes to list")


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(words)
    found = runs.find()
    if arguments.run is None:
        print(json.dumps(_runs(found), indent=2) if arguments.json else _runs_table(found))
        return 0
    run = runs.choose(arguments.run, found)
    reports = [report_of(node) for node in run.nodes]
    listed = rows(run, reports)
    if arguments.json:
        processes = [msgspec.to_builtins(row) for row in listed]
        print(json.dumps({"run": _runs([run])[0], "processes": processes}, indent=2))
        return 0
    print(_processes_table(listed))
    for node, report in zip(run.nodes, reports, strict=True):
        if isinstance(report, str):
            print(f"dragon ps: the agent (pid {node.info.agent.pid}) {report}; names are missing", file=sys.stderr)
    return 0


def _runs(found: list[runs.Run]) -> list[dict[str, object]]:
    return [
        {
            "run": run.name,
            "nodes": [
                {"node": node.info.node, "agent": node.info.agent.pid, "folder": str(node.folder)} for node in run.nodes
            ],
            "front_end": run.front_end.pid if run.front_end else None,
            "head": run.head.pid if run.head else None,
            "since": run.since,
            "processes": count(run),
            "command": run.command,
        }
        for run in found
    ]


def _runs_table(found: list[runs.Run]) -> str:
    if not found:
        return "you have no runs on this machine"
    lines = [["RUN", "NODE", "SINCE", "OWNER", "AGENT", "PROCESSES", "COMMAND"]]
    for run in found:
        owner, agent = run.front_end or run.head, str(run.nodes[0].info.agent.pid)
        lines.append(
            [
                *(run.name, listed_numbers([node.info.node for node in run.nodes]), moment(run.since)),
                *(str(owner.pid) if owner else "elsewhere", agent + f" +{len(run.nodes) - 1}" * (len(run.nodes) > 1)),
                *(str(count(run)), run.shortened if sys.stdout.isatty() else " ".join(run.command.split())),
            ]
        )
    return table(lines)


def _processes_table(listed: list[Row]) -> str:
    lines = [["PUID", "PID", "NODE", "STATE", "CPU", "MEMORY", "NAME"]]
    for row in listed:
        ids = "-" if row.puid is None else str(row.puid), str(row.pid), str(row.node)
        lines.append([*ids, row.state, f"{row.cpu_seconds:.1f}s", f"{row.memory / 2**20:.1f}M", row.title])
    return table(lines)
