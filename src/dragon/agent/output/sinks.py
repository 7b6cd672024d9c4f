"""The destinations of the output of processes: descriptors and the front end."""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from dragon.infrastructure.messages import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import Shown, WriteFor, Wrote
from dragon.runtime.protocol.request import Request
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import serves

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links


log = runtime_log("output")

_TAIL = 4096  # bytes
_MOST_TAILS = 1000
_PARTIAL_LINE_S = 0.05
_MOST_AHEAD = 1 << 20  # bytes on their way to another node


class Sink:
    """A destination of output."""

    by_line = True  # the lines of processes of several nodes must not mix
    # Seconds after which an incomplete line, such as a prompt, is forwarded; None for never.
    patience: float | None = _PARTIAL_LINE_S

    _waiting: list[Callable[[], None]]

    @property
    def is_full(self) -> bool:
        """Whether the writer should wait."""
        raise NotImplementedError

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once there is room again."""
        self._waiting.append(callback)

    def has_room(self) -> None:
        """Call back those that wait for room."""
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def write(self, data: bytes) -> None:
        """Write output: whole lines where `by_line` is set."""
        raise NotImplementedError

    def close(self) -> None:
        """End the output."""


class ToDescriptor(Sink):
    """Writes to the creator's stream as fast as that accepts data; only its writers wait for it. The descriptor's open
    file is shared with the creator, so the agent must not change whether it blocks. `closed` is called at its end."""

    by_line = False

    def __init__(self, fd: int, closed: Callable[[ToDescriptor], None]) -> None:
        self.fd, self.closed, self._waiting = fd, closed, []
        self.loop = asyncio.get_running_loop()
        self.room = select.poll()
        self.room.register(fd, select.POLLOUT)
        self.unwritten = b""
        self.closing = self.told = False

    @property
    def is_full(self) -> bool:
        """Whether something is still to be written."""
        return bool(self.unwritten)

    def write(self, data: bytes) -> None:
        """Write as much as the descriptor accepts now, and the rest as soon as possible."""
        self.unwritten += data
        self.flush()

    def flush(self) -> None:
        """Write what is accepted at once, and the rest when there is space."""
        while self.unwritten and self.room.poll(0):
            self.write_some()
        if self.unwritten:
            self.loop.add_writer(self.fd, self.flush)
            return
        self.loop.remove_writer(self.fd)
        self.has_room()
        if self.closing:
            self.finish()

    def write_some(self) -> None:
        """Write at most `PIPE_BUF` bytes of the rest, whole lines if possible. After an error the rest is discarded."""
        try:
            # A pipe that is writable accepts at least this many bytes without blocking.
            piece = self.unwritten[: select.PIPE_BUF]
            self.unwritten = self.unwritten[os.write(self.fd, piece[: piece.rfind(b"\n") + 1] or piece) :]
        except BlockingIOError:
            return  # another writer was faster
        except OSError as error:
            self.unwritten = b""
            if error.errno not in (errno.EPIPE, errno.EIO) and not self.told:  # the terminal is not gone
                self.told = True
                log.error("process output is being discarded: cannot write it (%s)", error.strerror)

    def close(self) -> None:
        """Finish once everything is written."""
        self.closing = True
        if not self.unwritten:
            self.finish()

    def finish(self) -> None:
        """Write the rest, however long that takes, and close."""
        if self.fd < 0:
            return
        while self.unwritten:
            self.room.poll()
            self.write_some()
        self.loop.remove_writer(self.fd)
        os.close(self.fd)
        self.fd = -1
        self.closed(self)


class FrontEndWindow:
    """The bytes of output that the front end has not shown yet: writers wait while they are `limit` or more, so a slow
    terminal blocks the writers, and nothing is buffered here."""

    def __init__(self, send: Callable[[Request[None]], None], limit: int) -> None:
        self.send, self.limit, self.ahead = send, limit, 0
        self.sinks = {number: ToFrontEnd(self, number) for number in (1, 2)}

    @serves(Shown)
    def shown(self, count: int) -> None:
        """Note that the front end has shown `count` more bytes."""
        self.ahead -= count
        if self.ahead < self.limit:
            for sink in self.sinks.values():
                sink.has_room()


class ToFrontEnd(Sink):
    """Writes to the terminal of a run of several nodes."""

    def __init__(self, window: FrontEndWindow, number: int) -> None:
        self.window, self.number, self._waiting = window, number, []

    @property
    def is_full(self) -> bool:
        """Whether the output to the front end is full."""
        return self.window.ahead >= self.window.limit

    def write(self, data: bytes) -> None:
        """Send output to the front end with the number of its stream."""
        self.window.ahead += len(data)
        self.window.send(Wrote(self.number, data))


class ToNode(Sink):
    """Writes to a descriptor or a channel by the agent of another node; see WriteFor."""

    def __init__(self, links: Links, name: Name) -> None:
        self.links, self.name, self.node = links, name, node_of(name)
        self.ahead, self._waiting = 0, []
        if name[1] >= 0:  # of a channel
            self.patience = None
            links.forward(self.node, WriteFor(name, b""))

    @property
    def is_full(self) -> bool:
        """Whether much is on its way."""
        return self.ahead >= _MOST_AHEAD

    def write(self, data: bytes) -> None:
        """Send output to the other node."""
        self.ahead += len(data)
        future = self.links.call(self.node, WriteFor(self.name, data))
        future.add_done_callback(lambda done: self._arrived(len(data), done))

    def _arrived(self, size: int, done: asyncio.Future[msgspec.Raw]) -> None:
        if not done.cancelled() and done.exception() is not None and self.node not in self.links.lost:
            log.warning("some output of a process is lost: %s", done.exception())
        self.ahead -= size
        self.has_room()

    def close(self) -> None:
        """Tell the other node that this process writes no more."""
        self.links.forward(self.node, WriteFor(self.name, None))


class Tails:
    """The end of the output of each of the newest processes, by puid."""

    def __init__(self) -> None:
        self._tails: OrderedDict[int, bytes] = OrderedDict()

    def add(self, puid: int, data: bytes) -> None:
        """Add output of a process; the process with the oldest output is dropped if there are too many."""
        self._tails[puid] = (self._tails.get(puid, b"") + data)[-_TAIL:]
        self._tails.move_to_end(puid)
        if len(self._tails) > _MOST_TAILS:
            self._tails.popitem(last=False)

    def of(self, puid: int) -> str:
        """Return the tail as text; "" if there is none."""
        return self._tails.get(puid, b"").decode(errors="replace").strip()

    def pop(self, puid: int) -> str:
        """Return the tail as text, and remove it."""
        return self._tails.pop(puid, b"").decode(errors="replace").strip()
