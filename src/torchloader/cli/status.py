"""`torchloader status`: shows the applications of a running workload, their nodes and their speed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

from dragon.commands import Parser
from dragon.infrastructure.errors import DragonError
from torchloader.cli.masters import add_run, send
from torchloader.report.live import follow, lines, watch
from torchloader.service.contact import NoMasterError
from torchloader.service.messages import GetStatus


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="torchloader status", description="Show the applications of a running workload, and their workers."
    )
    result.add_argument("--watch", action="store_true", help="update every second, until the workload has ended")
    result.add_argument("--json", action="store_true", help="print JSON; with --watch a line of it every second")
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    arguments = parser().parse_args(list(words))
    ask = partial(send, arguments.run, GetStatus())
    try:
        if arguments.watch:
            return follow(ask) if arguments.json else watch(ask)
        answer = ask()
    except (NoMasterError, DragonError, ModuleNotFoundError) as error:
        print(f"torchloader: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2) if arguments.json else lines(answer))
    return 0
