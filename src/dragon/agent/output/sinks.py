"""The destinations of the output of processes, and the channels of other nodes from which they get their input."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import select
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.handle import Channel
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
        return bool(self.unwritten)

    def write(self, data: bytes) -> None:
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
        return self.window.ahead >= self.window.limit

    def write(self, data: bytes) -> None:
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
        return self.ahead >= _MOST_AHEAD

    def write(self, data: bytes) -> None:
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


_DISTANT_RETRY_S = 1.0  # seconds until a node is asked again that could not be reached


class DistantChannel:
    """The reading end of a pipe whose channel is on another node."""

    def __init__(self, links: Links, name: Name) -> None:
        self._links = links
        self._name = name
        self._out_of_reach = False
        self._ask("attach")

    async def get(self) -> Any:
        """Return the next object. Raises RemoteError, and NodeLostError, if there will be none."""
        while True:
            try:
                message = await self._ask("Channel.get", waits=True)
            except NodeLostError as error:
                if node_of(self._name) in self._links.lost:
                    raise
                if not self._out_of_reach:
                    log.warning("some input of a process may be lost: %s", error)
                self._out_of_reach = True
                await asyncio.sleep(_DISTANT_RETRY_S)
            else:
                self._out_of_reach = False
                return _core.object_of(*message)

    def close(self) -> None:
        """Release this end, whether or not the node can be reached now."""
        self._ask("detach")

    def _ask(self, operation: str, waits: bool = False) -> asyncio.Future[tuple[Any, Any]]:
        future = self._links.operate(operation, self._name, waits=waits)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen by get() only
        return future


_MOST_UNREAD, _MOST_UNREAD_BYTES = 250_000, 64 * 2**20  # lines and bytes
_RETRY_S = 0.05


class ToChannel(Sink):
    """Sends lines to the reader of a process's `stdout_conn`, by a channel of this node. The process is blocked while
    very many are unread, or while there is no memory for one. Raises DestroyedError."""

    patience = None

    def __init__(self, name: Name) -> None:
        self._waiting = []
        self.loop = asyncio.get_running_loop()
        self.channel = Channel._attached(name)
        # Characters that are split between pieces are joined.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.unsent: deque[str] = deque()
        self.closing = self.retries = self.left = False

    @property
    def is_full(self) -> bool:
        """Whether too many lines, or bytes of them, are unread, or one is unsent. False if the reader is gone."""
        if self.left:
            return False
        try:
            unread, size = self.channel.qsize(), self.channel._bytes()
        except _core.DestroyedError:
            return False  # it has no reader any more, which the next write detects
        return bool(self.unsent) or unread >= _MOST_UNREAD or size >= _MOST_UNREAD_BYTES

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false, which is tested every 50 ms."""
        if self.is_full:
            self.loop.call_later(_RETRY_S, self.when_there_is_room, callback)
        else:
            callback()

    def write(self, data: bytes) -> None:
        # Bytes are split, as str.splitlines() also splits at form feeds and Unicode separators.
        self._add(map(self._decode, data.splitlines(keepends=True)))

    def _add(self, lines: Iterable[str]) -> None:
        if not self.left:
            self.unsent.extend(filter(None, lines))
            self._send()

    def _send(self) -> None:
        try:
            while self.unsent:
                self.channel.put(self.unsent[0])
                self.unsent.popleft()
        except MemoryError:
            if not self.retries:
                self.retries = True
                self.loop.call_later(_RETRY_S, self._send_again)
        except (_core.DestroyedError, BrokenPipeError):
            self._leave()  # it has no reader any more
        else:
            if self.closing:
                self._leave()

    def _leave(self) -> None:
        if not self.left:
            self.left = True
            self.unsent.clear()
            self.channel._close()

    def _send_again(self) -> None:
        self.retries = False
        if not self.left:
            self._send()

    def close(self) -> None:
        """Send what is left of an incomplete character, then leave the channel."""
        self.closing = True
        self._add([self._decode(b"", True)])
