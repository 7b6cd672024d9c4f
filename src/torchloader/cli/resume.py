"""`torchloader resume`: go on with an application that was paused."""

from __future__ import annotations

from collections.abc import Sequence

from torchloader.cli.masters import order

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """The command."""
    return order("resume", "Go on with an application that was paused.", words)
