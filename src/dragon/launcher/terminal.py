"""The front end's own standard streams, written by one thread, so that a slow terminal does not stop the event loop."""

from __future__ import annotations

import os
import queue
import select
import threading
from collections.abc import Callable


class Terminal:
    """Writes to descriptors 1 and 2 in the order of the calls.

    `on_closed` is called, in the thread, with a descriptor that cannot be written any more, and the error; later data
    for it is dropped.
    """

    def __init__(self, on_closed: Callable[[int, OSError], None]) -> None:
        self._on_closed = on_closed
        self._waiting: queue.SimpleQueue[tuple[int, bytes, Callable[[], None] | None] | None] = queue.SimpleQueue()
        self._closed: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    def write(self, number: int, data: bytes, written: Callable[[], None] | None = None) -> None:
        """Write asynchronously; `written` is called afterwards, in the thread, also if the data was dropped."""
        self._waiting.put((number, data, written))

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until all is written, at most `timeout` seconds. Returns whether it is."""
        self._waiting.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            number, data, written = item
            if number not in self._closed:
                try:
                    _write_all(number, data)
                except OSError as error:  # a pipe without reader, a terminal that was hung up, a full disk
                    self._closed.add(number)
                    self._on_closed(number, error)
            if written is not None:
                written()


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:  # another process made the terminal non-blocking
            ready = select.poll()
            ready.register(number, select.POLLOUT)
            ready.poll()
