"""Where the output of processes goes: to connections, descriptors and the front end."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from dragon import _core
from dragon.agent.distant import DistantChannel
from dragon.agent.output import Output
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel

__all__ = ["Lines", "Sink", "Tails", "ToChannel", "ToDescriptor", "ToDistantChannel", "ToFrontEnd"]

_TAIL = 4096
_MOST_TAILS = 1000
_MOST_UNDER_WAY = 1000  # lines
_PATIENCE = 0.05
_MOST_UNREAD = 250_000  # lines
_LOOK_AGAIN = 0.05  # seconds


class Sink:
    """Where output goes."""

    by_line = True
    # Seconds after which the beginning of a line, a prompt perhaps, is passed on.
    patience: float | None = None

    @property
    def is_full(self) -> bool:
        return False

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full holds no more."""

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will come."""


class ToChannel(Sink):
    """Lines to whoever reads the process's `stdout_conn`. With very many unread ones the process waits."""

    def __init__(self, name: Name) -> None:
        self.channel: Channel | None = Channel._attached(name)
        self.loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        try:
            return self.channel is not None and self.channel.qsize() >= _MOST_UNREAD
        except _core.DestroyedError:
            return False  # nobody will ever read it, as the next write finds

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        if self.is_full:
            self.loop.call_later(_LOOK_AGAIN, self.when_there_is_room, callback)
        else:
            callback()

    def write(self, data: bytes) -> None:
        if self.channel is None:
            return
        text = data.decode(errors="replace")
        try:
            for line in text.splitlines(keepends=True):
                self.channel.put(line)
        except (_core.DestroyedError, BrokenPipeError):
            self.close()  # nobody will ever read it

    def close(self) -> None:
        if self.channel is not None:
            self.channel._close()
            self.channel = None


class ToDistantChannel(Sink):
    """The same where the reader's channel is on another node."""

    def __init__(self, channel: DistantChannel) -> None:
        self.channel = channel
        self.under_way = 0
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        return self.under_way >= _MOST_UNDER_WAY

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def write(self, data: bytes) -> None:
        for line in data.decode(errors="replace").splitlines(keepends=True):
            self.under_way += 1
            self.channel.put(line).add_done_callback(self.arrived)

    def arrived(self, future: asyncio.Future[Any]) -> None:
        self.under_way -= 1
        if not self.is_full:
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                callback()

    def close(self) -> None:
        self.channel.close()


class ToDescriptor(Sink):
    """To where the creator's stream goes; a write waits."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError:
                return  # the terminal is gone

    def close(self) -> None:
        os.close(self.fd)


class ToFrontEnd(Sink):
    """To the terminal of a run of several nodes."""

    def __init__(self, output: Output, number: int) -> None:
        self.output, self.number = output, number

    @property
    def is_full(self) -> bool:
        return self.output.is_full

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        self.output.when_there_is_room(callback)

    def write(self, data: bytes) -> None:
        self.output.write(self.number, data)


class Tails:
    """The end of what each of the newest processes wrote, by puid."""

    def __init__(self) -> None:
        self._tails: OrderedDict[int, bytes] = OrderedDict()

    def add(self, puid: int, data: bytes) -> None:
        """A process wrote something; the one that has been silent for the longest time is forgotten for it."""
        self._tails[puid] = (self._tails.get(puid, b"") + data)[-_TAIL:]
        self._tails.move_to_end(puid)
        if len(self._tails) > _MOST_TAILS:
            self._tails.popitem(last=False)

    def of(self, puid: int) -> str:
        """As text, empty where there is none."""
        return self._tails.get(puid, b"").decode(errors="replace").strip()

    def pop(self, puid: int) -> str:
        """The same, and forget it."""
        text = self.of(puid)
        self._tails.pop(puid, None)
        return text


class Lines(Sink):
    """Output with a label before every line if asked for, its end being kept in all of `tails`."""

    def __init__(self, target: Sink, label: str, tails: list[Tails], puid: int) -> None:
        self.target, self.label, self.tails, self.puid = target, label.encode(), tails, puid
        # At one terminal the lines of processes of several nodes stay whole.
        self.by_line = bool(label) or isinstance(target, ToFrontEnd)
        self.patience = None if label else _PATIENCE

    @property
    def is_full(self) -> bool:
        return self.target.is_full

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        self.target.when_there_is_room(callback)

    def write(self, data: bytes) -> None:
        for tails in self.tails:
            tails.add(self.puid, data)
        if self.label:
            data = b"".join(self.label + line for line in data.splitlines(keepends=True))
        self.target.write(data)

    def close(self) -> None:
        self.target.close()
