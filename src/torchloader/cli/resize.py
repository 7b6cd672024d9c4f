"""`torchloader resize`: changes the number of loading workers of an application."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dragon.commands import Parser
from torchloader.cli.masters import add_run, execute
from torchloader.service.messages import ResizeApplication


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="torchloader resize",
        description="Change the number of loading workers of a running application, without stopping it.",
        epilog="The scheduler may change it again at its next decision, but not in a run with --mode 1.",
    )
    result.add_argument("application", metavar="NAME", help="as `torchloader status` lists it")
    result.add_argument("workers", type=int, metavar="N", help="loading workers per device")
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    arguments = parser().parse_args(list(words))
    return execute(arguments.run, ResizeApplication(arguments.application, arguments.workers))
