"""Reads the front end's standard input in pieces, as the head process's node requests them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_PIECE = 64 * 1024  # bytes
_POLL_S = 0.2


class StandardInput:
    """Reads descriptor 0 in a thread, and nothing before `want()`: what the program does not read is left for the
    shell.

    `on_data` is called in the thread with each requested piece; an empty one means the end.
    """

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self._wanted = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """Request one more piece."""
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
