"""`torchloader resume`: continues an application that was paused."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import execute, of_application
from torchloader.service.messages import ResumeApplication


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return of_application("resume", "Continue an application that was paused.")


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    arguments = parser().parse_args(list(words))
    return execute(arguments.run, ResumeApplication(arguments.application))
