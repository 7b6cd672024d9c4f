"""`torchloader pause`: saves a checkpoint of an application and stops it, until it is resumed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import execute, of_application
from torchloader.service.messages import PauseApplication


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return of_application("pause", "Save a checkpoint of an application and stop it, until it is resumed.")


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    arguments = parser().parse_args(list(words))
    return execute(arguments.run, PauseApplication(arguments.application))
