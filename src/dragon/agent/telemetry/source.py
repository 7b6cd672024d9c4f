"""The interface of what can be measured."""

from __future__ import annotations

from typing import Protocol

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import Sample

__all__ = ["Source"]


class Source(Protocol):
    """Something that can be measured, in a thread of its own."""

    name: str

    def read(self, seen: Seen) -> list[Sample]:
        """Return the current values. An exception means that there are none this time."""
