"""Parents and children of processes, from the kernel; processes whose parents have ended, and the tracker of what they
may leave."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from dragon import _core
from dragon.infrastructure.signals import PROGRAMS_OWN, ignoring

# What an agent sends to its zygote besides the settings of its run.
SYNCHRONISE = b"?"  # report all events so far
PREPARE = b"!"  # import what processes need that ask the agent
FAREWELL = b"."  # the regular end: the agent removes the folder itself

ZYGOTE_ENDS_WITHIN_S = 7.0  # seconds, besides the grace
TRACKER_ENDS_WITHIN_S = 5.0  # seconds to wait until a tracker has removed what no process uses any more
_PR_SET_CHILD_SUBREAPER = 36
_TRACKER = "from multiprocessing.resource_tracker import main; main(3)"


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


def is_ready(fd: int, within: float) -> bool:
    """Return whether a descriptor has something to read within that many seconds."""
    watched = select.poll()
    watched.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in watched.poll(within * 1000))


def children_of(parent: int) -> list[int]:
    """Return the process ids of a process's children."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and parent_of(int(entry)) == parent]


def has_children() -> bool:
    """Return whether this process has a child, also one that has ended; quicker than children_of()."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_orphans(zygote: int, spared: Collection[int] = ()) -> None:
    """Reap the zygote, which has ended, then kill and reap processes that were orphaned and so became children of this
    process."""
    os.waitpid(zygote, 0)
    while has_children() and (children := set(children_of(os.getpid())).difference(spared)):
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def start_tracker(reading: int, errors: int) -> int:
    """Start multiprocessing's tracker of shared memory for a pipe. Signals of a terminal do not end it before it
    is ready. Returns its process id. Raises OSError."""
    os.set_blocking(reading, True)  # an event loop has made it non-blocking
    with open(os.devnull, "r+") as null:
        return _core.start_executable(
            executable=sys.executable,
            arguments=[sys.executable, "-I", "-c", _TRACKER],
            environment=[f"{name}={value}" for name, value in os.environ.items()],
            descriptors=[null.fileno(), null.fileno(), errors, reading],
            signals=ignoring((*PROGRAMS_OWN, signal.SIGHUP)),
        )
