"""The runs of this user on this machine, and how the command line names them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.structs import msgspec
from dragon.runtime import folder as run_folder
from dragon.runtime.folder import Owner, is_alive
from dragon.runtime.run_info import RunInfo, UnreadableRunError, run_name

__all__ = ["NoSuchRunError", "Node", "Run", "choose", "find", "scratch_folder"]

_MAX_COMMAND_CHARS = 60


class NoSuchRunError(DragonError):
    """A word on the command line means no run, or several; the message lists the runs."""


class Node(msgspec.Struct):
    """The part of a run on one node: this machine, or a simulated node on it.

    Attributes:
        folder: the run's folder on the node.
        info: the description in that folder.
    """

    folder: Path
    info: RunInfo


class Run(msgspec.Struct):
    """A run and its nodes on this machine.

    Attributes:
        name: the name of the run, the same on all its nodes.
        nodes: its nodes on this machine, by index.
    """

    name: str
    nodes: list[Node]

    @property
    def command(self) -> str:
        """The command line of the run's program."""
        return self.nodes[0].info.command

    @property
    def shortened(self) -> str:
        """The beginning of the command line, at most 60 characters in one line, without the folders of the program."""
        words = self.command.split()
        line = " ".join(words)
        if len(line) > _MAX_COMMAND_CHARS:
            for at in [at for at, word in enumerate(words) if not word.startswith("-")][:2]:
                words[at] = words[at].rstrip("/").rpartition("/")[2]
            line = " ".join(words)
        return line if len(line) <= _MAX_COMMAND_CHARS else line[: _MAX_COMMAND_CHARS - 1] + "…"

    @property
    def since(self) -> float:
        """The start time in seconds since 1970."""
        return self.nodes[0].info.started

    @property
    def front_end(self) -> Owner | None:
        """The process of the `dragon` command; None if it is not on this machine."""
        front_end = self.nodes[0].info.front_end
        return front_end.process if front_end and front_end.machine == run_folder.this_machine() else None

    @property
    def head(self) -> Owner | None:
        """The user's program, if it started the run itself; else None."""
        return None if self.nodes[0].info.front_end else self.nodes[0].info.owner

    @property
    def words(self) -> set[str]:
        """The other words that mean this run: its folders and their names, and process ids of its owner and agents."""
        owners = [self.front_end, self.head, *(node.info.agent for node in self.nodes)]
        folders = [node.folder for node in self.nodes]
        return {
            *map(str, folders),
            *(folder.name for folder in folders),
            *(str(owner.pid) for owner in owners if owner),
        }


def find() -> list[Run]:
    """Return all live runs, the oldest first."""
    runs: dict[str, Run] = {}
    for folder in sorted(run_folder.all_runs(), key=lambda path: path.name):
        try:
            info = RunInfo.read(folder)
        except UnreadableRunError as error:
            print(f"dragon: {error}", file=sys.stderr)
            continue
        except RunEndedError:
            continue  # the run is just starting or ending
        front_end = info.front_end.process if info.front_end else None
        if any(owner is not None and is_alive(owner) for owner in (info.agent, info.owner, front_end)):
            name = run_name(folder, info)
            runs.setdefault(name, Run(name, [])).nodes.append(Node(folder, info))
    for run in runs.values():
        run.nodes.sort(key=lambda node: node.info.node)
    return sorted(runs.values(), key=lambda run: run.since)


def choose(word: str, runs: list[Run]) -> Run:
    """Return the run that a word means: its name or the beginning of it, its folder, or the pid of its owner or agent.

    Raises NoSuchRunError if the word means none or several.
    """
    word = word.rstrip("/") or word
    exact = [run for run in runs if word == run.name] or [run for run in runs if word in run.words]
    chosen = exact or [run for run in runs if any(name.startswith(word) for name in (run.name, *_folder_names(run)))]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(f"{run.name} ({run.shortened})" for run in chosen)
        raise NoSuchRunError(f"{word!r} may be any of these runs: {names}")
    there = "; there are: " + ", ".join(f"{run.name} ({run.shortened})" for run in runs)
    raise NoSuchRunError(f"you have no run {word!r} on this machine" + (there if runs else ", nor any other"))


def _folder_names(run: Run) -> list[str]:
    return [node.folder.name for node in run.nodes]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a private folder that is removed after the block. If this process is killed, the next run of any program
    does so."""
    folder = run_folder.make_folder()
    try:
        yield folder
    finally:
        run_folder.remove_folder(folder)
