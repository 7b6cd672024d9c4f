"""How a master begins: it waits for the nodes, and keeps what is said meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torchloader.service.presence import absent

__all__ = ["Gathering"]


class Gathering:
    """Args:
    nodes: those that are to join. until: when the master goes on without those that have not, in seconds on its clock.
    """

    def __init__(self, nodes: Iterable[str], until: float) -> None:
        self._nodes = frozenset(nodes)
        self._until = until
        self.kept: list[Any] = []  # messages that make sense when it is known what runs

    def is_over(self, joined: Collection[str], now: float) -> bool:
        """Whether all nodes that the run has not lost have joined, or had their time."""
        return now > self._until or self._nodes - absent(self._nodes) <= set(joined)
