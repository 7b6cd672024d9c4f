"""Processes whose parents have ended before them."""

from __future__ import annotations

import errno

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
