"""The bell of a node's agent: a pipe by which processes notify it of changed objects, whatever their number."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable

from dragon import _core

__all__ = ["Bell"]

_LARGEST = 32 * 1024  # bytes that are read at once


class Bell:
    """Calls the handlers of objects that have changed.

    `changed` is called with the offset of an object without a handler of its own, and `any_changed` if notifications
    may have been lost.
    """

    def __init__(self, changed: Callable[[int], None], any_changed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._any_changed = changed, any_changed
        self._answers: dict[int, Callable[[], None]] = {}
        self._collected: set[int] = set()  # notifications that were read and are handled soon
        self._bell = _core.agent_bell()
        # The kernel limits the size of pipes of a user who has many.
        self._largest = min(_LARGEST, fcntl.fcntl(self._bell, fcntl.F_GETPIPE_SZ))
        self._loop.add_reader(self._bell, self._on_bell)

    def listen(self, offset: int, answer: Callable[[], None]) -> None:
        """Call `answer` when a channel has something in it again."""
        self._answers[offset] = answer

    def ignore(self, offset: int) -> None:
        """Remove the handler of a channel."""
        del self._answers[offset]

    def answer(self) -> None:
        """Handle pending notifications of channels now, and of other objects soon."""
        others = self._hear()
        if others:
            self._loop.call_soon(self._tell, others)

    def collect(self) -> set[int]:
        """Read pending notifications, which are handled soon. Returns the offsets of the objects; 0 stands for any."""
        offsets = self._read()
        if offsets and not self._collected:
            self._loop.call_soon(self._on_bell)
        self._collected |= offsets
        return offsets

    def _read(self) -> set[int]:
        try:
            data = os.read(self._bell, self._largest)
        except BlockingIOError:
            return set()
        offsets = {int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)}
        if len(data) == self._largest:  # the pipe was full: notifications may have been lost
            offsets.update(self._answers, [0])
        return offsets

    def _on_bell(self) -> None:
        self._tell(self._hear())

    def _hear(self) -> set[int]:
        """Call the handlers of channels. Returns the offsets of other objects; 0 stands for any."""
        offsets = self._read() | self._collected
        self._collected = set()
        for offset in sorted(offsets & self._answers.keys()):
            answer = self._answers.get(offset)
            if answer is not None:
                answer()
        return offsets - self._answers.keys()

    def _tell(self, offsets: set[int]) -> None:
        if 0 in offsets:
            self._any_changed()
            return
        for offset in offsets:
            self._changed(offset)
