"""The destinations of the output of processes: descriptors and the front end."""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dragon.infrastructure.messages import Name
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import WriteFor
from dragon.runtime.protocol.front_end import Shown, Wrote
from dragon.runtime.protocol.request import Request
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import serves

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links


class Output:
    """Sends output with `send`, with at most about `window` bytes that the front end has not shown yet. Writers with
    more wait with `when_there_is_room`; so a slow terminal blocks the writers, and nothing is buffered here."""

    def __init__(self, send: Callable[[Request[None]], None], window: int) -> None:
        self._send = send
        self.window, self.ahead = window, 0
        self._waiting: list[Callable[[], None]] = []

    def write(self, number: int, data: bytes) -> None:
        """Send what a process wrote to descriptor 1 or 2."""
        self.ahead += len(data)
        self._send(Wrote(number, data))

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the front end has caught up."""
        self._waiting.append(callback)

    @serves(Shown)
    def written(self, count: int) -> None:
        """Note that the front end has shown `count` more bytes."""
        self.ahead -= count
        if self.ahead < self.window:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()


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

    @property
    def is_full(self) -> bool:
        """Whether the writer should wait."""
        return False

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false."""

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
        self.fd, self.closed = fd, closed
        self.loop = asyncio.get_running_loop()
        self.room = select.poll()
        self.room.register(fd, select.POLLOUT)
        self.unwritten = b""
        self.waiting: list[Callable[[], None]] = []
        self.closing = self.told = False

    @property
    def is_full(self) -> bool:
        """Whether something is still to be written."""
        return bool(self.unwritten)

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once everything is written."""
        self.waiting.append(callback)

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
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()
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


class ToFrontEnd(Sink):
    """Writes to the terminal of a run of several nodes."""

    def __init__(self, output: Output, number: int) -> None:
        self.output, self.number = output, number

    @property
    def is_full(self) -> bool:
        """Whether the output to the front end is full."""
        return self.output.ahead >= self.output.window

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the output to the front end has space."""
        self.output.when_there_is_room(callback)

    def write(self, data: bytes) -> None:
        """Send output to the front end with the number of its stream."""
        self.output.write(self.number, data)


class ToCreator(Sink):
    """Writes to a descriptor that the agent of the creator's node keeps; see Streams.keep()."""

    def __init__(self, links: Links, name: Name) -> None:
        self.links, self.node, self.number = links, node_of(name), name[0]
        self.ahead = 0
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether much is on its way."""
        return self.ahead >= _MOST_AHEAD

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once something has arrived."""
        self.waiting.append(callback)

    def write(self, data: bytes) -> None:
        """Send output to the creator's node."""
        self.ahead += len(data)
        future = self.links.call(self.node, WriteFor(self.number, data))
        future.add_done_callback(lambda done: self.arrived(len(data), done))

    def arrived(self, size: int, done: asyncio.Future[msgspec.Raw]) -> None:
        """Note that output has arrived, or is lost."""
        if not done.cancelled() and done.exception() is not None and self.node not in self.links.lost:
            log.warning("some output of a process is lost: %s", done.exception())
        self.ahead -= size
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()

    def close(self) -> None:
        """Tell the creator's node that this process writes no more."""
        self.links.forward(self.node, WriteFor(self.number, b""))


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
