"""`torchloader cancel`: end an application."""

from __future__ import annotations

from collections.abc import Sequence

from torchloader.cli.masters import order

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """The command."""
    return order("cancel", "End an application.", words)
