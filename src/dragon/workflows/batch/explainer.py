"""What `dragon explain` asks a batch, at a socket in the folder of the run, which is closed to other users."""

from __future__ import annotations

import errno
import itertools
import socket
import threading
from collections.abc import Callable

from dragon.runtime.run import this_run

SOCKET = "b"  # its name, before a number; short, as the path of a socket has at most 107 bytes
LONGEST_WORD = 4096  # bytes
_LONGEST_LINE = 4096  # characters
_ANSWER_S = 5.0  # seconds for which a process that asks may keep others waiting


class Explainer:
    """Answers a word with the lines that `tell` returns for it, in a thread."""

    def __init__(self, tell: Callable[[str], list[str]]) -> None:
        self._tell = tell
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for number in itertools.count(1):
            self._path = this_run().folder / f"{SOCKET}{number}"
            try:
                self._listener.bind(str(self._path))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # by another batch, or left by a killed process
                    self._listener.close()
                    raise OSError(error.errno, error.strerror, str(self._path)) from None
        self._listener.listen()
        threading.Thread(target=self._serve, name="dragon-explain", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            with connection:
                connection.settimeout(_ANSWER_S)
                try:
                    word = connection.recv(LONGEST_WORD).decode(errors="replace").strip("\0")
                    for line in self._tell(word):
                        connection.send(line[:_LONGEST_LINE].encode(errors="replace"))
                except OSError:
                    pass  # the process that asked has ended, or does not read

    def close(self) -> None:
        """Answer nothing any more."""
        self._path.unlink(missing_ok=True)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
