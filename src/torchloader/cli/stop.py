"""`torchloader stop`: end a workload that was held open."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import add_run, say

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="torchloader stop", description="Have a workload that was started with --hold end after its last job."
    )
    add_run(parser)
    return say(parser.parse_args(list(words)).run, "stop")
