"""`torchloader cancel`: end an application."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import add_run, say

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="torchloader cancel", description="End an application.")
    parser.add_argument("application", metavar="NAME", help="as `torchloader status` lists it")
    add_run(parser)
    arguments = parser.parse_args(list(words))
    return say(arguments.run, "cancel", arguments.application)
