"""`torchloader cancel`: end an application."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import of_application, order

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return of_application("cancel", "End an application.")


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code."""
    return order("cancel", parser(), words)
