"""`torchloader resume`: continues an application that was paused."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import of_application, order

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return of_application("resume", "Continue an application that was paused.")


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    return order("resume", parser(), words)
