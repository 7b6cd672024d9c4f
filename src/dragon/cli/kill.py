"""`dragon kill`: ends a run with all its processes."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

import psutil

from dragon import runs
from dragon.cli.ps import PATIENCE, below, process_of, users
from dragon.commands import Parser
from dragon.infrastructure.errors import RunEndedError
from dragon.runtime.folder import remove_folder
from dragon.runtime.inspection import ask_agent
from dragon.runtime.protocol.run import EndRun

_EPILOG = """\
examples:
  dragon kill 3fa9c1        end the run of that name (see `dragon ps`); 3f is enough if it is unique
  dragon kill --all         end all your runs on this machine

The program gets SIGTERM and some seconds to end by itself; then its processes are ended, and finally killed. A run over
several machines ends on all of them. If a run was started by Python itself, for example in a notebook, that process is
the run's head and ends too.
"""
_FOR_ITSELF = 5.0  # seconds, as all of these
_FOR_THE_AGENT = 5.0
_FOR_ANOTHER_MACHINE = 15.0  # if the front end is on another machine: it also gives the program time to end
_AFTER_A_KILL = 2.0
_POLL_S = 0.02


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon kill", description="End a run: its program, all its processes, and its agents.", epilog=_EPILOG
    )
    result.add_argument("runs", nargs="*", metavar="RUN", help="a run, by a name from `dragon ps`")
    result.add_argument("--all", action="store_true", help="all your runs on this machine")
    return result


def main(words: Sequence[str]) -> int:
    """End the given runs. Returns the exit code: 1 if there is no such run, or some of its processes do not end."""
    arguments = parser().parse_args(words)
    if bool(arguments.runs) == arguments.all:
        parser().error("name a run (`dragon ps` lists them), or give --all")
    found = runs.find()
    chosen = found if arguments.all else [runs.choose(word, found) for word in arguments.runs]
    if not chosen:
        print("you have no runs on this machine")
    return max([_end(run) for run in {run.name: run for run in chosen}.values()], default=0)


def _end(run: runs.Run) -> int:
    ended, killed, left = end(run)
    what = f"{run.name} ({run.shortened})"
    how = f", {killed} of which had to be killed" if killed else ""
    print(f"ended {what}: {ended} process{'es' * (ended != 1)}{how}", flush=True)
    for process in left:
        print(f"dragon kill: {what}: pid {process.pid} does not end", file=sys.stderr)
    return 1 if left else 0


def end(run: runs.Run) -> tuple[int, int, list[psutil.Process]]:
    """End a run. Returns how many processes ended, how many of them were killed, and those that remain."""
    everyone = _members(run)
    owner = process_of(run.front_end or run.head)
    if owner is not None:
        _signal(owner, signal.SIGTERM)
    for process in everyone:
        _signal(process, signal.SIGCONT)  # a stopped process cannot handle SIGTERM
    if owner is not None:
        _gone(everyone, _FOR_ITSELF)
    if any(_lives(process) for process in everyone) and _ask_agents(run):
        # A head without a front end has had its time, and no agent ends it.
        others = everyone if run.front_end is not None else everyone - {owner}
        _gone(others, _FOR_THE_AGENT if owner is not None else _FOR_ANOTHER_MACHINE)
    everyone |= _members(run)
    killed = [process for process in everyone if _lives(process)]
    for process in killed:
        _signal(process, signal.SIGKILL)
    _gone(everyone, _AFTER_A_KILL)
    left = [process for process in everyone if _lives(process)]
    for node in run.nodes:
        if not left and node.folder.exists():
            remove_folder(node.folder)
    return len(everyone) - len(left), len(killed) - len(left), left


def _members(run: runs.Run) -> set[psutil.Process]:
    owners = [run.front_end, run.head, *(node.info.agent for node in run.nodes)]
    processes = {process for owner in owners if (process := process_of(owner)) is not None}
    myself = psutil.Process()  # may have been started in the run
    for node in run.nodes:
        processes.update(below(node.info.agent), users(node))
    return processes - {myself}


def _ask_agents(run: runs.Run) -> bool:
    """Request that the agents end the run. Returns whether one of them ends."""
    heard = False
    for node in run.nodes:
        try:
            ask_agent(node.folder, EndRun(), PATIENCE)
            heard = True
        except TimeoutError:
            print(f"dragon kill: the agent (pid {node.info.agent.pid}) does not answer", file=sys.stderr)
        except RunEndedError:
            heard = True  # it has just ended, or its end is the reply; what it started ends next
    return heard


def _gone(processes: set[psutil.Process], patience: float) -> None:
    """Wait until the processes have ended, at most `patience` seconds."""
    deadline = time.monotonic() + patience
    while any(_lives(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
