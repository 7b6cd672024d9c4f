"""`torchloader stop`: end a workload that was held open."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import add_run, say

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="torchloader stop", description="Have a workload that was started with --hold end after its last job."
    )
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    """The command."""
    return say(parser().parse_args(list(words)).run, "stop")
