"""The entry point of processes of the start method "dragon"."""

from __future__ import annotations

import atexit
import os
import struct
import sys

from dragon import _core, cpython
from dragon.runtime import serialization


class InheritedDescriptor:
    """A file descriptor that a new process inherits, with the interface of reduction.DupFd()."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """Return the descriptor in the new process."""
        return os.dup(_inherited[self.index])


_HONOURS_ATEXIT = sys.version_info >= (3, 13)  # multiprocessing calls atexit handlers from 3.13 on

_TRACKER = cpython.resource_tracker()

_inherited: list[int] = []

# Precedes the process object: the parent's pid, whether the parent is on the same node, and the parent's descriptor of
# its resource tracker with the inode of that pipe. The tracker must be set before objects are made that it tracks.
HEADER = struct.Struct("<i?iQ")


def _tracker_of(process: int, descriptor: int, inode: int) -> int | None:
    """Return a descriptor of another node's tracker if both nodes are simulated on one machine and share its memory,
    else None."""
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        if os.stat(path).st_ino != inode:
            return None
        tracker = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # the process is on another machine, or has ended
    os.set_blocking(tracker, True)
    return tracker


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Run the process object that Popen wrote, and return its exit code."""
    _inherited[:] = descriptors
    parent, local, tracker, inode = HEADER.unpack_from(payload)
    shared = descriptors[0] if local else _tracker_of(parent, tracker, inode)
    if shared is not None:
        os.set_inheritable(shared, False)  # a fresh interpreter inherits it as inheritable
        # Importing the main program may have started a tracker in the zygote.
        _TRACKER._pid = None
        _TRACKER._fd = shared
    with cpython.making():
        process_obj = serialization.loads(memoryview(payload)[HEADER.size :])
        if isinstance(process_obj, tuple):  # (preparation data, process object); loading the data has its effect
            process_obj = process_obj[1]
    try:
        # No descriptor shows the end of a parent on another node: this one never becomes readable.
        parent_sentinel = _core.open_process(parent) if local else os.eventfd(0)
    except ProcessLookupError:
        parent_sentinel = os.eventfd(1)  # the parent has ended: always readable
    for fd in descriptors[1:]:
        os.close(fd)
    if _HONOURS_ATEXIT:
        cpython.forget_exit_handlers()  # those registered by importing the main program are for the main process
        atexit.register(cpython.end_multiprocessing)
    if sys.stdin is sys.__stdin__ and sys.stdin is not None and not sys.stdin.closed:
        cpython.leave_stdin()
    code: int = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    if _HONOURS_ATEXIT:
        cpython.call_exit_handlers()
        cpython.flush_streams()
    return code
