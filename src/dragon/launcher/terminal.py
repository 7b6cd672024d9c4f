"""The front end's own standard streams, written by one thread, so that a slow terminal does not stop the event loop."""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable

_PIECE = 64 * 1024  # bytes
_POLL_S = 0.2


class StandardInput:
    """Reads descriptor 0 in a thread, and nothing before `want()`: what the program does not read is left for the
    shell. `on_data` is called in the thread with each requested piece; an empty one means the end."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self._wanted = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        if self._thread is None:
            # A daemon: the exit does not wait for it, as it may be reading from a terminal.
            self._thread = threading.Thread(target=self._run, name="standard input", daemon=True)
            self._thread.start()
        self._wanted.release()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            while _in_background():
                time.sleep(_POLL_S)
            try:
                data = os.read(0, _PIECE)
            except BlockingIOError:  # another process made it non-blocking
                time.sleep(_POLL_S)
                self._wanted.release()
                continue
            except OSError:  # closed, or a terminal that was hung up
                data = b""
            self._on_data(data)
            if not data:
                return


def _in_background() -> bool:
    """Return whether reading would stop this process, because another process group has the terminal."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # not the terminal that controls this process
        return False


class Terminal:
    """Writes to descriptors 1 and 2 in the order of the calls. `on_closed` is called, in the thread, with a descriptor
    that cannot be written any more, and the error; later data for it is dropped."""

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
