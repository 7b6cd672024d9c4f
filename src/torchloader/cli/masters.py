"""Finds the running master that a command is for, and sends it requests."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dragon.commands import Parser
from dragon.infrastructure.errors import DragonError
from dragon.runs import choose, find
from torchloader.service.contact import NoMasterError, contacts, request
from torchloader.service.messages import Command


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the option --run, which selects a master if there are several."""
    parser.add_argument("--run", metavar="RUN", help="select a run if there are several (`dragon ps` lists them)")


def send(word: str | None, command: Command) -> dict[str, Any]:
    """Return the master's reply. Raises NoMasterError if there is no master, or several and `word` is None."""
    runs = find()
    try:
        meant = [choose(word, runs)] if word else runs
    except DragonError as error:
        raise NoMasterError(str(error)) from None
    found = contacts(node.folder for run in meant for node in run.nodes)
    if not found:
        raise NoMasterError("no workload runs on this machine; `torchloader run WORKLOAD` starts one")
    if len(found) > 1:
        names = ", ".join(contact.folder for contact in found.values())
        raise NoMasterError(f"several workloads run ({names}); say which with --run RUN (`dragon ps` lists them)")
    (folder, contact), *_ = found.items()
    return request(folder, contact, command)


def execute(word: str | None, command: Command) -> int:
    """Send a command and print the master's reply. Returns the exit code."""
    try:
        return printed(send(word, command))
    except (NoMasterError, DragonError) as error:
        return printed({"error": str(error)})


def printed(reply: dict[str, Any]) -> int:
    """Print a reply of the master. Returns the exit code."""
    if "error" in reply:
        print(f"torchloader: {reply['error']}", file=sys.stderr)
        return 1
    print(reply["message"])
    return 0


def of_application(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command whose only argument is an application."""
    result = Parser(prog=f"torchloader {name}", description=description)
    result.add_argument("application", metavar="NAME", help="as `torchloader status` lists it")
    add_run(result)
    return result
