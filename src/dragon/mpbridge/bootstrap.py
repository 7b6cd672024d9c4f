"""What a process of the start method "dragon" runs first."""

from __future__ import annotations

import os
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker

from dragon.runtime import serialization

__all__ = ["InheritedDescriptor", "run"]


class InheritedDescriptor:
    """A descriptor that a new process gets, as reduction.DupFd() makes it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """The descriptor in the new process."""
        return os.dup(_inherited[self.index])


_inherited: list[int] = []


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Run the process object that Popen wrote; returns its exit code."""
    _inherited[:] = descriptors
    current = mp_process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]
    try:
        parent, tracker_index, process_obj = serialization.loads(payload)
    finally:
        del current._inheriting  # type: ignore[attr-defined]
    try:
        parent_sentinel = os.pidfd_open(parent)
    except ProcessLookupError:
        parent_sentinel = os.eventfd(1)  # it has ended: readable for ever
    if tracker_index is not None:
        # Importing the main program may have started one in the zygote.
        resource_tracker._resource_tracker._pid = None  # type: ignore[attr-defined]
        resource_tracker._resource_tracker._fd = os.dup(descriptors[tracker_index])  # type: ignore[attr-defined]
    for fd in descriptors:
        os.close(fd)
    code: int = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    return code
