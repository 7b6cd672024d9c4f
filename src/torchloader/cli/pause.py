"""`torchloader pause`: save a checkpoint of an application and stop it, until it is resumed."""

from __future__ import annotations

from collections.abc import Sequence

from torchloader.cli.masters import order

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """The command."""
    return order("pause", "Save a checkpoint of an application and stop it, until it is resumed.", words)
