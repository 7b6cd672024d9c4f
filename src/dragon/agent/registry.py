"""What is known of every process that the run started on this node."""

from __future__ import annotations

import signal as signals
from collections import OrderedDict
from os import kill as os_kill
from typing import ClassVar

import msgspec

from dragon.agent.streams import Streams
from dragon.infrastructure.messages import Name

__all__ = ["Known", "Registry"]

_MOST_ENDED = 100_000


class Known(msgspec.Struct):
    """A process: its ids, its place in shared memory while it lives, its exit code afterwards."""

    puid: int
    pid: int
    name: str
    parent: int
    group: int
    record: Name
    code: int | None = None


class Registry:
    """The processes by puid. Ended ones are remembered, the oldest forgotten first."""

    OPERATIONS: ClassVar[set[str]] = {"processes", "query", "kill"}

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._processes: OrderedDict[int, Known] = OrderedDict()
        self._ended = 0

    def started(self, puid: int, pid: int, name: str, parent: int, group: int, record: Name) -> None:
        """The zygote started it."""
        self._processes[puid] = Known(puid, pid, name, parent, group, record)

    def failed(self, puid: int, group: int, text: str) -> None:
        """The zygote could not start it."""

    def exited(self, puid: int, code: int, group: int) -> None:
        """The zygote saw its end."""
        known = self._processes.get(puid)
        if known is not None:
            known.code = code
            self._ended += 1
        while self._ended > _MOST_ENDED:
            oldest = next(p for p, k in self._processes.items() if k.code is not None)
            del self._processes[oldest]
            self._ended -= 1

    # ---- requests

    def processes(self) -> list[Known]:
        """Every process, ended ones too."""
        return list(self._processes.values())

    def query(self, identifier: int | str) -> Known:
        """The process of that puid or name. Raises LookupError."""
        if isinstance(identifier, int):
            if identifier in self._processes:
                return self._processes[identifier]
        else:
            for known in reversed(self._processes.values()):
                if known.name == identifier:
                    return known
        raise LookupError(f"the run has no process {identifier!r}")

    def kill(self, identifier: int | str, number: int = signals.SIGKILL) -> None:
        """Send a signal; nothing happens if the process has ended."""
        known = self.query(identifier)
        if known.code is None:
            try:
                os_kill(known.pid, number)
            except ProcessLookupError:
                return
