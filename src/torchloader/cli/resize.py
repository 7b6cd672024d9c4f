"""`torchloader resize`: another number of loading workers for an application."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import add_run, say

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="torchloader resize",
        description="Give a running application another number of loading workers, without stopping it.",
        epilog="The scheduler may change it again at its next decision, but not in a run with --mode 1.",
    )
    result.add_argument("application", metavar="NAME", help="as `torchloader status` lists it")
    result.add_argument("workers", type=int, metavar="N", help="loading workers of each of its devices")
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    """The command."""
    arguments = parser().parse_args(list(words))
    return say(arguments.run, "resize", arguments.application, arguments.workers)
