"""The running master that a command is for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from dragon.infrastructure.errors import DragonError
from dragon.runs import choose, find
from torchloader.service.contact import NoMasterError, ask, contacts

__all__ = ["add_run", "asked", "of_application", "order", "say", "tell"]


def add_run(parser: argparse.ArgumentParser) -> None:
    """The option that says which master, where there are several."""
    parser.add_argument("--run", metavar="RUN", help="of which run, where there are several (`dragon ps` lists them)")


def asked(word: str | None, question: str, application: str = "", value: Any = None) -> dict[str, Any]:
    """What the master answers. Raises NoMasterError where there is none, or several and no word which."""
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
    return ask(folder, contact, question, application, value)


def say(word: str | None, question: str, application: str = "", value: Any = None) -> int:
    """Print what the master answers; the exit code."""
    try:
        return tell(asked(word, question, application, value))
    except (NoMasterError, DragonError) as error:
        return tell({"error": str(error)})


def tell(answer: dict[str, Any]) -> int:
    """Print an answer of the master; the exit code."""
    if "error" in answer:
        print(f"torchloader: {answer['error']}", file=sys.stderr)
        return 1
    print(answer["told"])
    return 0


def of_application(name: str, description: str) -> argparse.ArgumentParser:
    """The command line of a command that needs to know an application and nothing else."""
    result = argparse.ArgumentParser(prog=f"torchloader {name}", description=description)
    result.add_argument("application", metavar="NAME", help="as `torchloader status` lists it")
    add_run(result)
    return result


def order(name: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Send the command `name` about an application to its master; the exit code."""
    arguments = parser.parse_args(list(words))
    return say(arguments.run, name, arguments.application)
