"""What a process of the start method "dragon" runs first."""

from __future__ import annotations

import atexit
import os
import struct
import sys

from dragon import _core
from dragon.infrastructure import cpython
from dragon.runtime import serialization

__all__ = ["HEADER", "InheritedDescriptor", "run"]


class InheritedDescriptor:
    """A descriptor that a new process gets, as reduction.DupFd() makes it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """The descriptor in the new process."""
        return os.dup(_inherited[self.index])


_HONOURS_ATEXIT = sys.version_info >= (3, 13)  # as multiprocessing does from then on

_TRACKER = cpython.resource_tracker()

_inherited: list[int] = []

# Before the process object: its parent, whether that is on the same node, and the parent's descriptor of its resource
# tracker with the inode of that pipe. The tracker must be known before objects are made that it tracks.
HEADER = struct.Struct("<i?iQ")


def _tracker_of(process: int, descriptor: int, inode: int) -> int | None:
    """A descriptor of another node's tracker, where the two nodes are simulated on one machine and share its memory."""
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        if os.stat(path).st_ino != inode:
            return None
        tracker = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # another machine, or it has ended
    os.set_blocking(tracker, True)
    return tracker


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Run the process object that Popen wrote; returns its exit code."""
    _inherited[:] = descriptors
    parent, local, tracker, inode = HEADER.unpack_from(payload)
    shared = descriptors[0] if local else _tracker_of(parent, tracker, inode)
    if shared is not None:
        os.set_inheritable(shared, False)  # a fresh interpreter got it as programs get descriptors
        # Importing the main program may have started one in the zygote.
        _TRACKER._pid = None
        _TRACKER._fd = shared
    with cpython.making():
        process_obj = serialization.loads(memoryview(payload)[HEADER.size :])
        if isinstance(process_obj, tuple):  # what was made before it has done its work
            process_obj = process_obj[1]
    try:
        # The end of a parent elsewhere cannot be seen through a descriptor: that one never becomes readable.
        parent_sentinel = _core.open_process(parent) if local else os.eventfd(0)
    except ProcessLookupError:
        parent_sentinel = os.eventfd(1)  # it has ended: readable for ever
    for fd in descriptors[1:]:
        os.close(fd)
    if _HONOURS_ATEXIT:
        cpython.forget_exit_handlers()  # what importing the main program registered is for the main process
        atexit.register(cpython.end_multiprocessing)
    if sys.stdin is sys.__stdin__ and sys.stdin is not None and not sys.stdin.closed:
        cpython.leave_stdin()
    code: int = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    if _HONOURS_ATEXIT:
        cpython.call_exit_handlers()
        cpython.flush_streams()
    return code
