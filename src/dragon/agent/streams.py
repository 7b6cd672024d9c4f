"""Standard streams that are not simply inherited: to and from connections, with labels, with a copy of the end kept.

A process's output is read as it comes; lines stay whole, and in order within a process.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
from typing import Any

from dragon import _core
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel

__all__ = ["Streams"]

_CHUNK = 64 * 1024
_LONGEST_LINE = 64 * 1024
_TAIL = 4096
_NAMES = {0: "stdin", 1: "stdout", 2: "stderr"}


class Streams:
    """All streams that pass through the agent."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._readers: dict[tuple[int, int], _Reader] = {}
        self.tails: dict[int, bytes] = {}  # the end of what a group's member wrote to stderr, by puid

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def add(
        self,
        puid: int,
        name: str,
        number: int,
        channel: Name | None,
        group: int,
        descriptors: list[int],
    ) -> None:
        """A stream of a process that is being started. `descriptors`: our end, and where to pass it on."""
        if number == 0:
            if channel is not None:
                _Writer(self.loop, descriptors[0], channel)
            return
        if channel is not None:
            sink: Any = _ToChannel(channel)
        else:
            label = self._label(puid, name, number)
            sink = _ToDescriptor(descriptors[1], label, self.tails if group and number == 2 else None, puid)
        self._readers[puid, number] = _Reader(self.loop, descriptors[0], sink, lambda: self._done(puid, number))

    def _label(self, puid: int, name: str, number: int) -> str:
        if self.label == "basic":
            return f"[{name}] "
        if self.label == "verbose":
            return f"[{socket.gethostname()} {puid} {name} {_NAMES[number]}] "
        return ""

    def _done(self, puid: int, number: int) -> None:
        self._readers.pop((puid, number), None)

    def is_open(self, puid: int) -> bool:
        """Whether something of the process's stderr may still come."""
        return (puid, 2) in self._readers

    def drain(self) -> None:
        """Pass on what processes had written when they ended."""
        for reader in list(self._readers.values()):
            reader.read_rest()


class _Reader:
    """Reads one pipe until its end, line by line."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, sink: Any, done: Any) -> None:
        self.loop, self.fd, self.sink, self.done = loop, fd, sink, done
        self.rest = b""
        os.set_blocking(fd, False)
        loop.add_reader(fd, self.on_readable)

    def on_readable(self) -> bool:
        """Read what is there; False at the end or when there is nothing."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if not self.sink.by_line:
            self.sink.write(data)
            return True
        whole, newline, rest = (self.rest + data).rpartition(b"\n")
        self.rest = rest
        if newline:
            self.sink.write(whole + newline)
        if len(self.rest) > _LONGEST_LINE:
            self.sink.write(self.rest)
            self.rest = b""
        return True

    def read_rest(self) -> None:
        while self.on_readable():
            pass
        self.close()

    def close(self) -> None:
        if self.fd < 0:
            return
        if self.rest:
            self.sink.write(self.rest)
            self.rest = b""
        self.loop.remove_reader(self.fd)
        os.close(self.fd)
        self.fd = -1
        self.sink.close()
        self.done()


class _ToChannel:
    """Lines to whoever reads the process's `stdout_conn`."""

    by_line = True

    def __init__(self, name: Name) -> None:
        self.channel: Channel | None = Channel._attached(name)

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


class _ToDescriptor:
    """To where the creator's stream goes, with a label before every line if asked for."""

    def __init__(self, fd: int, label: str, tails: dict[int, bytes] | None, puid: int) -> None:
        self.fd, self.label, self.tails, self.puid = fd, label.encode(), tails, puid
        self.by_line = bool(label)

    def write(self, data: bytes) -> None:
        if self.tails is not None:
            self.tails[self.puid] = (self.tails.get(self.puid, b"") + data)[-_TAIL:]
        if self.label:
            data = b"".join(self.label + line for line in data.splitlines(keepends=True))
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError:
                return  # the terminal is gone

    def close(self) -> None:
        os.close(self.fd)


class _Writer:
    """What arrives on a channel goes to a process's stdin."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, name: Name) -> None:
        self.loop, self.fd = loop, fd
        self.channel = Channel._attached(name)
        self.waiting = b""
        os.set_blocking(fd, False)
        self.bell = self.channel._fileno()
        loop.add_reader(self.bell, self.on_message)

    def on_message(self) -> None:
        try:
            message = self.channel.get(block=False)
        except queue.Empty:
            return
        except (EOFError, _core.DestroyedError):
            self.loop.remove_reader(self.bell)
            self.close()
            return
        self.waiting += message.encode() if isinstance(message, str) else bytes(message)
        self.loop.remove_reader(self.bell)
        self.flush()

    def flush(self) -> None:
        try:
            while self.waiting:
                self.waiting = self.waiting[os.write(self.fd, self.waiting) :]
        except BlockingIOError:
            self.loop.add_writer(self.fd, self.flush)
            return
        except OSError:
            self.close()  # the process reads no more
            return
        self.loop.remove_writer(self.fd)
        self.loop.add_reader(self.bell, self.on_message)

    def close(self) -> None:
        if self.fd >= 0:
            self.loop.remove_writer(self.fd)
            os.close(self.fd)
            self.fd = -1
            self.channel._close()
