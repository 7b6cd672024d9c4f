"""The beginning of a master: it waits for the nodes, and keeps messages that arrive meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torchloader.service.presence import absent

__all__ = ["Gathering"]


class Gathering:
    """The nodes that a master waits for.

    Args:
        nodes: the nodes that are to join.
        until: when the master continues without the missing ones, in seconds on its clock.
    """

    def __init__(self, nodes: Iterable[str], until: float) -> None:
        self._nodes = frozenset(nodes)
        self._until = until
        self.kept: list[Any] = []  # messages that can be handled once it is known what runs

    def is_over(self, joined: Collection[str], now: float) -> bool:
        """Return whether all nodes that are not lost have joined, or the time is over."""
        return now > self._until or self._nodes - absent(self._nodes) <= set(joined)
