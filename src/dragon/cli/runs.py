"""The runs of this user on this machine, and which of them a word on the command line means."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.runtime import folder as run_folder
from dragon.runtime.folder import Owner, RunInfo, is_alive

__all__ = ["NoSuchRunError", "Node", "Run", "choose", "find", "parser", "since", "table"]

_SHORT = 60


class NoSuchRunError(DragonError):
    """A word means no run, or several; the message says which there are."""


class Node(msgspec.Struct):
    """The part of a run that is on one node: this machine, or one that is rehearsed on it."""

    folder: Path
    info: RunInfo


class Run(msgspec.Struct):
    """A run and its nodes on this machine."""

    name: str
    nodes: list[Node]

    @property
    def command(self) -> str:
        return self.nodes[0].info.command

    @property
    def front_end(self) -> Owner | None:
        """The `dragon` command, where it is on this machine."""
        front_end = self.nodes[0].info.front_end
        return front_end.process if front_end and front_end.machine == run_folder.this_machine() else None

    @property
    def head(self) -> Owner | None:
        """The user's program, where it started the run by itself."""
        return None if self.nodes[0].info.front_end else self.nodes[0].info.owner

    @property
    def words(self) -> set[str]:
        """What it is called besides by its name."""
        owners = [self.front_end, self.head, *(node.info.agent for node in self.nodes)]
        return {*(node.folder.name for node in self.nodes), *(str(owner.pid) for owner in owners if owner)}


def find() -> list[Run]:
    """All that live, the oldest first."""
    runs: dict[str, Run] = {}
    for folder in sorted(run_folder.all_runs(), key=lambda path: path.name):
        try:
            info = RunInfo.read(folder)
        except run_folder.UnreadableRunError as error:
            print(f"dragon: {error}", file=sys.stderr)
            continue
        except RunEndedError:
            continue  # it begins or ends at this moment
        front_end = info.front_end.process if info.front_end else None
        if any(owner is not None and is_alive(owner) for owner in (info.agent, info.owner, front_end)):
            name = run_folder.run_name(folder, info)
            runs.setdefault(name, Run(name, [])).nodes.append(Node(folder, info))
    for run in runs.values():
        run.nodes.sort(key=lambda node: node.info.node)
    return sorted(runs.values(), key=since)


def choose(word: str, runs: list[Run]) -> Run:
    """The run that a word means: its name or the beginning of it, its folder, or the process id of its owner or agent.

    Raises NoSuchRunError.
    """
    exact = [run for run in runs if word == run.name] or [run for run in runs if word in run.words]
    chosen = exact or [run for run in runs if any(name.startswith(word) for name in (run.name, *_folder_names(run)))]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(f"{run.name} ({shortened(run.command)})" for run in chosen)
        raise NoSuchRunError(f"{word!r} may be any of these runs: {names}")
    there = "; there are: " + ", ".join(f"{run.name} ({shortened(run.command)})" for run in runs)
    raise NoSuchRunError(f"you have no run {word!r} on this machine" + (there if runs else ", nor any other"))


def _folder_names(run: Run) -> list[str]:
    return [node.folder.name for node in run.nodes]


def parser(name: str, description: str, epilog: str, what: str) -> argparse.ArgumentParser:
    """That of a command which looks at all runs, or at one; `what` says which."""
    made = argparse.ArgumentParser(
        prog=f"dragon {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("run", nargs="?", metavar="RUN", help=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def since(run: Run) -> float:
    """When it started, in seconds since the epoch."""
    return run.nodes[0].info.started


def shortened(text: str) -> str:
    """The beginning of a line of text."""
    line = " ".join(text.split())
    return line if len(line) <= _SHORT else line[: _SHORT - 1] + "…"


def moment(seconds: float) -> str:
    """A time of day, with the day unless it is today."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def table(rows: list[list[str]]) -> str:
    """Rows of cells as text in columns; the last one is as long as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows)
