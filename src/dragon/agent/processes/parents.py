"""Parents and children of processes, from the kernel; processes whose parents have ended."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dragon import _core

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> None:
    """Make this process the parent of orphaned descendants (PR_SET_CHILD_SUBREAPER), if the kernel supports that."""
    try:
        _core.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        from dragon.runtime.log import runtime_log  # else every process of the node would carry it along

        # As older ones of gVisor. What programs start and leave behind ends with the container then.
        runtime_log("agent").info("this kernel gives orphans to its first process only")


def parent_of(pid: int) -> int | None:
    """Return the process id of a process's parent; None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1])


def children_of(parent: int) -> list[int]:
    """Return the process ids of a process's children."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and parent_of(int(entry)) == parent]
