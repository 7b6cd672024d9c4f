"""`dragon ps`: lists your runs on this machine, or the processes of one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import msgspec

from dragon import runs
from dragon.cli import processes as listing
from dragon.cli.processes import Row, count, report_of, rows
from dragon.runtime.lacking import listed as listed_numbers

_EPILOG = """\
examples:
  dragon ps                 your runs on this machine
  dragon ps 3fa9c1          the processes of one; 3f is enough if it is unique
  dragon ps --json | jq     as JSON

RUN is a name from the first column, the process id of a run's head, front end or agent, or a run's folder.
Of a run over several machines only this one is shown. `dragon doctor RUN` shows what processes wait for.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    description = "List your runs on this machine, or the processes of one."
    return listing.parser("ps", description, _EPILOG, "the run whose processes to list")


def main(words: Sequence[str]) -> int:
    """Print a table, or JSON. Returns the exit code."""
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
        owner = run.front_end or run.head
        lines.append(
            [
                run.name,
                listed_numbers([node.info.node for node in run.nodes]),
                listing.moment(run.since),
                str(owner.pid) if owner else "elsewhere",
                str(run.nodes[0].info.agent.pid) + (f" +{len(run.nodes) - 1}" if len(run.nodes) > 1 else ""),
                str(count(run)),
                run.shortened if sys.stdout.isatty() else " ".join(run.command.split()),
            ]
        )
    return listing.table(lines)


def _processes_table(listed: list[Row]) -> str:
    lines = [["PUID", "PID", "NODE", "STATE", "CPU", "MEMORY", "NAME"]]
    for row in listed:
        lines.append(
            [
                "-" if row.puid is None else str(row.puid),
                str(row.pid),
                str(row.node),
                row.state,
                f"{row.cpu_seconds:.1f}s",
                f"{row.memory / 2**20:.1f}M",
                row.title,
            ]
        )
    return listing.table(lines)
