"""Parents and children of processes, from the kernel."""

from __future__ import annotations

import os
from pathlib import Path


def parent_of(pid: int) -> int | None:
    """Return the process id of a process's parent; None if the process has ended. Raises OSError if no file can be
    opened."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1])


def children_of(parent: int) -> list[int]:
    """Return the process ids of a process's children."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and parent_of(int(entry)) == parent]
