"""Intended differences from the standard library. docs/from_multiprocessing.md has each with its reason."""

from __future__ import annotations

from typing import Any

__all__ = ["KNOWN", "is_known"]

_CLOSED = ["raised", "OSError"]
KNOWN = {
    "closed-queue-empty": lambda kind, step, theirs, ours: kind == "Queues" and step == ["empty"] and ours == _CLOSED,
    "reset-connection": lambda kind, step, theirs, ours: (
        kind == "Pipes" and theirs == ["raised", "ConnectionResetError"] and ours == ["raised", "EOFError"]
    ),
    "unreadable-error": lambda kind, step, theirs, ours: (
        kind == "Pools" and step == "finish" and theirs == ["raised", "AssertionError"] and ours[0] == "gave"
    ),
}


def is_known(kind: str, step: Any, theirs: Any, ours: Any) -> bool:
    """Return whether a step is intended to have a different result."""
    return any(holds(kind, step, theirs, ours) for holds in KNOWN.values())
