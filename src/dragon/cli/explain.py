"""`dragon explain`: says why a task of a batch or a process waits, or how it failed."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator, Sequence

from dragon import runs
from dragon.cli.doctor import examine, finding_text
from dragon.cli.ps import report_of, rows
from dragon.commands import Parser
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.private import connect_within
from dragon.runs import Node, Run
from dragon.workflows.batch.explainer import LONGEST_WORD, SOCKET

_PATIENCE_S = 5.0  # seconds within which a process that has a batch answers
_LONGEST_LINE = 64 * 1024  # bytes

_EPILOG = """\
examples:
  dragon explain                   the tasks of your batches: how many run, wait and failed, and why
  dragon explain 0-17              one task, by its uid, or by its name
  dragon explain 4242              one process, by its pid, its puid or its name: what it waits for, with its stack

Of a run over several machines, ask on the machine of the process that made the batch, or that of the process.
A table of all tasks, with times and places, is written by Batch(table="tasks.csv").
"""


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="dragon explain", description="Say why a task or a process waits, or how it failed.", epilog=_EPILOG
    )
    made.add_argument("what", nargs="?", default="", metavar="TASK|PROCESS", help="default: the tasks of all batches")
    run = "the run to look at, as `dragon ps` names it (default: all of yours)"
    made.add_argument("--run", metavar="RUN", help=run)
    return made


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(words)
    found = runs.find()
    chosen = found if arguments.run is None else [runs.choose(arguments.run, found)]
    lines = [line for run in chosen for line in _of_run(run, arguments.what)]
    if not lines:
        where = f"run {chosen[0].name}" if arguments.run else "your runs on this machine"
        if not arguments.what:
            raise DragonError(f"there is no batch in {where}")
        hint = "a task that has ended well is only in the file of Batch(table=...)"
        raise DragonError(f"there is no task or process {arguments.what!r} in {where}; {hint}")
    print("\n".join(lines))
    return 0


def _of_run(run: Run, what: str) -> Iterator[str]:
    told = [line for node in run.nodes for line in _tasks(run.name, node, what)]
    told += _processes(run, what) if what else []
    if told:
        yield f"run {run.name}: {run.command}"
        yield from (f"  {line}" for line in told)


def _tasks(run: str, node: Node, word: str) -> Iterator[str]:
    """Yield what the batches of a node say."""
    for path in sorted(node.folder.glob(f"{SOCKET}[0-9]*")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_PATIENCE_S)
            try:
                connect_within(node.folder, path.name, connection)
                connection.send(word.encode()[:LONGEST_WORD] or b"\0")
                while data := connection.recv(_LONGEST_LINE):
                    yield data.decode()
            except (ConnectionRefusedError, FileNotFoundError, ConnectionResetError):
                continue  # its process was killed, or the batch ends
            except TimeoutError:
                yield f"a process with a batch does not answer within {_PATIENCE_S:g} s: dragon doctor {run} says why"


def _processes(run: Run, word: str) -> Iterator[str]:
    """Yield what `dragon doctor` says of the processes of that pid, puid or name."""
    reports = [report_of(node) for node in run.nodes]
    meant = [row for row in rows(run, reports) if word in (str(row.pid), str(row.puid), row.name)]
    for node, report in zip(run.nodes, reports, strict=True):
        if here := [row for row in meant if row.node == node.info.node]:
            ward = examine(node, report, here)
            for finding in ward.findings:
                yield from finding_text(finding, ward)
