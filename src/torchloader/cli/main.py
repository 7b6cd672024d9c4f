"""`torchloader`: runs its subcommands, each in a module that is imported only when it is used."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import dragon
from dragon.commands import Parser, checked, end_with, explained, worded
from dragon.completion import parser as parser_of_completion
from dragon.completion import print_script
from dragon.infrastructure.errors import DragonError

COMMANDS = (
    *("run", "submit", "status", "pause", "resume", "resize", "cancel", "stop"),
    *("profile", "fit", "simulate", "report", "completion"),
)
_OF_MASTERS = {"submit", "pause", "resume", "resize", "cancel", "stop"}
_EPILOG = """\
a workload:
  torchloader run WORKLOAD.csv       run it on the nodes of this allocation, or on this machine
  torchloader simulate WORKLOAD.csv  predict the result under each policy; needs no GPU, and seconds instead of hours

while it runs, from another terminal:
  torchloader status --watch         show applications, their workers, and how fast they train
  torchloader resize NAME WORKERS    change the number of loading workers, without stopping the application
  torchloader pause NAME             save a checkpoint and stop; resume NAME continues
  torchloader cancel NAME            end an application
  torchloader submit MORE.csv        add applications; run --hold keeps an empty workload waiting for them
  torchloader stop                   end a workload that was started with --hold after its last application

afterwards:
  torchloader report FOLDER          write a page and figures; with several folders, a comparison of them

  torchloader fit FOLDER             fit a prior for networks that have not run yet, for run --prior

without a workload:
  torchloader profile JOB.toml       measure how fast a job trains with how many loading workers
  torchloader simulate               compare policies on synthetic workloads, or on public traces

in your shell:
  torchloader completion SHELL       print a script with which bash, zsh or tcsh complete this command

Each command has --help. A training program uses the loader by itself, without any of this:
from torchloader import ElasticDataLoader.
"""


def options() -> argparse.ArgumentParser:
    """Return a parser of the options before the subcommand."""
    result = Parser(
        prog="torchloader",
        description="Run training jobs, and move data-loading workers to those that wait for data.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"torchloader {dragon.__version__}")
    return result


def parser() -> argparse.ArgumentParser:
    result = options()
    result.add_argument("command", nargs="?", metavar="COMMAND", help="one of those below")
    result.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    return result


def parser_of(command: str) -> argparse.ArgumentParser:
    if command == "completion":
        return parser_of_completion("torchloader")
    module, *name = _called(command)
    found = module.parser(*name)
    assert isinstance(found, argparse.ArgumentParser)
    return found


def _called(command: str) -> tuple[Any, ...]:
    """Return the module of a command, and its name if it is one of several there."""
    if command in _OF_MASTERS:
        return importlib.import_module("torchloader.cli.masters"), command
    return (importlib.import_module(f"torchloader.cli.{command}"),)


def _run(command: str, *words: str) -> int:
    if command == "completion":
        return print_script("torchloader", options(), lambda: {each: parser_of(each) for each in COMMANDS}, words)
    module, *name = _called(command)
    return int(module.main(*name, words))


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return explained("torchloader", lambda: _run(*words), DragonError, ModuleNotFoundError)
    arguments = parser().parse_args(words)
    if arguments.command is None:
        parser().error("no command given; `torchloader -h` shows them")
    close = difflib.get_close_matches(arguments.command, COMMANDS, 1)
    meant = f"; did you mean {close[0]}?" if close else ";"
    parser().error(f"there is no command {arguments.command!r}{meant} `torchloader -h` shows them")


def failed(error: Exception | str, code: int = 1) -> int:
    print(f"torchloader: {error if isinstance(error, str) else worded(error)}", file=sys.stderr)
    return code


def run_and_exit() -> None:
    """Run the command and exit: the entry point of `torchloader`."""
    end_with("torchloader", main, tell=worded)


MOST = 1e9  # thirty years in seconds; for far larger times the addition of seconds would be rounded away
_LEAST = 1e-6  # dividing by far smaller numbers would exceed MOST


def positive(most: float = MOST) -> Callable[[str], float]:
    """Return a converter for numbers from 0.000001 to `most`."""
    return checked(float, lambda number: _LEAST <= number <= most, f"a number from {_LEAST:f} to {most:.0f}")
