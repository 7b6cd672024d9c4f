"""`torchloader resume`: go on with an application that was paused."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchloader.cli.masters import of_application, order

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return of_application("resume", "Go on with an application that was paused.")


def main(words: Sequence[str]) -> int:
    """The command."""
    return order("resume", parser(), words)
