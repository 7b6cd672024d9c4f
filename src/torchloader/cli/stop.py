"""`torchloader stop`: ends a workload that was started with --hold after its last job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dragon.commands import Parser
from torchloader.cli.masters import add_run, execute
from torchloader.service.messages import StopWhenDone


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="torchloader stop", description="Have a workload that was started with --hold end after its last job."
    )
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    return execute(parser().parse_args(list(words)).run, StopWhenDone())
