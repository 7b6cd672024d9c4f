"""`dragon doctor`: shows what a run waits for."""

from __future__ import annotations

import argparse
import json
import linecache
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import dragon
from dragon import runs
from dragon.cli import processes as listing
from dragon.cli.diagnosis import Finding, Ward, examine
from dragon.cli.processes import count, report_of, rows
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.runtime.inspection import Frame, Names, Report, Thread, Wait, describe_parked

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
    """Return the parser of the command line."""
    description = "Show what a run waits for: its agent and every process, with stacks."
    return listing.parser("doctor", description, _EPILOG, "the run to show")


def main(words: Sequence[str]) -> int:
    """Print the findings. Returns the exit code."""
    arguments = parser().parse_args(words)
    found = runs.find()
    if arguments.run is None:
        print(json.dumps(_overview(found), indent=2) if arguments.json else _overview_table(found))
        return 0
    run = runs.choose(arguments.run, found)
    reports = [report_of(node) for node in run.nodes]
    listed = rows(run, reports)
    wards = [
        examine(node, report, [row for row in listed if row.node == node.info.node])
        for node, report in zip(run.nodes, reports, strict=True)
    ]
    if arguments.json:
        print(json.dumps({"run": run.name, "command": run.command, "nodes": msgspec.to_builtins(wards)}, indent=2))
    else:
        print("\n".join(_text(run, wards)))
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
    return listing.table(lines) + f"\n\n`dragon doctor {found[0].name}` shows what the processes of that run wait for"


def _health(node: runs.Node) -> str:
    report = report_of(node)
    return "answers" if isinstance(report, Report) else report


# ---- one run, as text


def _text(run: runs.Run, wards: list[Ward]) -> Iterator[str]:
    yield f"run {run.name}: {run.command}"
    yield f"  since {listing.moment(run.since)}"
    for ward in wards:
        yield f"\nnode {ward.node}, {ward.folder}"
        if not ward.findings:
            yield "  it is ending, or has ended: its agent and processes are gone"
        # The user's processes first.
        for finding in sorted(ward.findings, key=lambda finding: finding.row.role in ("agent", "zygote")):
            yield from _finding_text(finding, ward)
    yield from _unseen(wards)


def _finding_text(finding: Finding, ward: Ward) -> Iterator[str]:
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
    names = Names({finding.row.pid: finding.row.title for finding in ward.findings}, report, _agent_of(ward))
    yield f"  it answers; live processes: {len(report.processes)}, being started: {report.starting}"
    if report.untaken:
        yield f"  the zygote has not read {report.untaken} requests to start a process: see what it does"
    for group in report.groups:
        failure = f"; {group.failure}" if group.failure else ""
        yield f"  group {group.name}: {group.live} of {group.members} members live{failure}"
    for parked in report.parked:
        yield f"  {parked.who} has waited {_duration(parked.seconds)} {describe_parked(parked, names)}, here"
    for node, reason in report.lost.items():
        yield f"  node {node} is lost: {reason}"
    for task in report.tasks:
        yield f"  task {task.name} at {task.where or 'its end'}"


def _agent_of(ward: Ward) -> int:
    """Return the process id of the node's agent; 0 if it has ended."""
    return next((finding.row.pid for finding in ward.findings if finding.row.role == "agent"), 0)


def _unseen(wards: list[Ward]) -> Iterator[str]:
    troubles = [trouble for ward in wards for trouble in ward.troubles]
    elsewhere = _elsewhere(wards)
    if elsewhere:
        troubles.append(f"nodes on other machines: run `dragon doctor` on {', '.join(elsewhere)}")
    if troubles:
        yield "\nnot shown:"
        yield from (f"  {trouble}" for trouble in troubles)


def _elsewhere(wards: list[Ward]) -> list[str]:
    """Return the names of the run's nodes that are not on this machine."""
    here = {ward.node for ward in wards}
    path = Path(wards[0].folder) / "nodes.json"
    if not path.exists():
        return []
    nodes = msgspec.json.decode(path.read_bytes(), type=list[NodeDescriptor])
    return [node.host_name for node in nodes if node.index not in here]
