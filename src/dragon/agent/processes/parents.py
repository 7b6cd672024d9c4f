"""Whose child a process is, as the kernel tells."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["children_of", "parent_of"]


def parent_of(pid: int) -> int | None:
    """The process id of a process's parent; None where the process is gone. Raises OSError without a descriptor."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1])


def children_of(parent: int) -> list[int]:
    """Process ids of a process's children."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and parent_of(int(entry)) == parent]
