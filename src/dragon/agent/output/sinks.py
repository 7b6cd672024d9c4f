"""The destinations of the output of processes: connections, descriptors and the front end."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import select
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

from dragon import _core
from dragon.agent.output.distant import DistantChannel
from dragon.agent.output.to_front_end import Output
from dragon.agent.wire.responses import RemoteError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log

__all__ = ["Lines", "Sink", "Tails", "ToChannel", "ToDescriptor", "ToDistantChannel", "ToFrontEnd"]

log = runtime_log("output")

_TAIL = 4096  # bytes
_MOST_TAILS = 1000
_MOST_UNDER_WAY = 1000  # lines
_PARTIAL_LINE_S = 0.05
_MOST_UNREAD, _MOST_UNREAD_BYTES = 250_000, 64 * 2**20  # lines and bytes
_RETRY_S = 0.05
_GONE = {BrokenPipeError.__name__, _core.DestroyedError.__name__}  # what a channel without a reader answers


class Sink:
    """A destination of output."""

    by_line = True
    # Seconds after which an incomplete line, such as a prompt, is forwarded; None for never.
    patience: float | None = None

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


class _Text:
    """Decodes output to text line by line; characters that are split between pieces are joined."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def lines(self, data: bytes) -> Iterable[str]:
        # Bytes are split, as str.splitlines() also splits at form feeds and Unicode separators.
        return filter(None, map(self._decode, data.splitlines(keepends=True)))

    def rest(self) -> Iterable[str]:
        """Return the incomplete character at the end."""
        return filter(None, [self._decode(b"", True)])


class _Unread:
    """The lines that were put into a channel and not read, as far as known."""

    def __init__(self) -> None:
        self.sizes: deque[int] = deque()
        self.bytes = 0

    def add(self, line: str) -> None:
        self.sizes.append(len(line))
        self.bytes += len(line)

    def are(self, lines: int) -> None:
        """Set the number of lines that are left."""
        while len(self.sizes) > lines:
            self.bytes -= self.sizes.popleft()

    @property
    def are_too_many(self) -> bool:
        return len(self.sizes) >= _MOST_UNREAD or self.bytes >= _MOST_UNREAD_BYTES


class ToChannel(Sink):
    """Sends lines to the reader of the process's `stdout_conn`. With very many unread ones the process is blocked."""

    def __init__(self, name: Name) -> None:
        self.channel: Channel | None = Channel._attached(name)
        self.loop = asyncio.get_running_loop()
        self.text = _Text()
        self.unread = _Unread()

    @property
    def is_full(self) -> bool:
        """Whether too many lines, or bytes of them, are unread. False if the reader is gone."""
        try:
            self.unread.are(self.channel.qsize() if self.channel is not None else 0)
        except _core.DestroyedError:
            return False  # it has no reader any more, which the next write detects
        return self.unread.are_too_many

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false, which is tested every 50 ms."""
        if self.is_full:
            self.loop.call_later(_RETRY_S, self.when_there_is_room, callback)
        else:
            callback()

    def write(self, data: bytes) -> None:
        """Put each line into the channel. Does nothing if the reader is gone."""
        self._put(self.text.lines(data))

    def _put(self, lines: Iterable[str]) -> None:
        if self.channel is None:
            return
        try:
            for line in lines:
                self.channel.put(line)
                self.unread.add(line)
        except (_core.DestroyedError, BrokenPipeError):
            self._leave()  # it has no reader any more

    def close(self) -> None:
        """Put what is left of an incomplete character, then close the channel."""
        self._put(self.text.rest())
        self._leave()

    def _leave(self) -> None:
        if self.channel is not None:
            self.channel._close()
            self.channel = None


class ToDistantChannel(Sink):
    """Sends lines to a channel on another node, which is asked for the number of unread lines when it may be large."""

    def __init__(self, channel: DistantChannel) -> None:
        self.channel: DistantChannel | None = channel
        self.loop = asyncio.get_running_loop()
        self.text = _Text()
        self.unread = _Unread()
        self.under_way = 0
        self.asks = False
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether too many lines are in flight or unread."""
        return self.under_way >= _MOST_UNDER_WAY or self.unread.are_too_many

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false."""
        self.waiting.append(callback)
        self.look()

    def write(self, data: bytes) -> None:
        """Send each line to the channel's node. Does nothing if the reader is gone."""
        self._put(self.text.lines(data))

    def _put(self, lines: Iterable[str]) -> None:
        if self.channel is None:
            return
        for line in lines:
            self.under_way += 1
            self.unread.add(line)
            self.channel.put(line).add_done_callback(self.arrived)

    def arrived(self, future: asyncio.Future[Any]) -> None:
        """Count a line as arrived, and leave the channel if its reader is gone."""
        self.under_way -= 1
        error = None if future.cancelled() else future.exception()
        if isinstance(error, RemoteError) and error.kind in _GONE:
            self._leave()  # nobody will ever read it
        self.look()

    def look(self) -> None:
        """Call back waiting writers, if there is space."""
        if not self.waiting or self.asks:
            return
        if self.channel is not None and self.unread.are_too_many:
            self.asks = True
            self.channel.count(self.counted)
        elif not self.is_full:
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                callback()

    def counted(self, lines: int) -> None:
        """Handle the reply with the number of unread lines."""
        self.asks = False
        self.unread.are(lines + self.under_way)
        if self.unread.are_too_many:
            self.loop.call_later(_RETRY_S, self.look)
        else:
            self.look()

    def close(self) -> None:
        """Send what is left of an incomplete character, then leave the channel."""
        self.waiting.clear()
        self._put(self.text.rest())
        self._leave()

    def _leave(self) -> None:
        self.unread = _Unread()
        if self.channel is not None:
            self.channel.close()
            self.channel = None


class ToDescriptor(Sink):
    """Writes to the creator's stream as fast as that accepts data; only its writers wait for it.

    The descriptor's open file is shared with the creator, so the agent must not change whether it blocks. `closed` is
    called at its end.
    """

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
        """Write at most `PIPE_BUF` bytes of the rest. After an error the rest is discarded."""
        try:
            # A pipe that is writable accepts at least this many bytes without blocking.
            self.unwritten = self.unwritten[os.write(self.fd, self.unwritten[: select.PIPE_BUF]) :]
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
        return self.output.is_full

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the output to the front end has space."""
        self.output.when_there_is_room(callback)

    def write(self, data: bytes) -> None:
        """Send output to the front end with the number of its stream."""
        self.output.write(self.number, data)


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
        text = self.of(puid)
        self._tails.pop(puid, None)
        return text


class Lines(Sink):
    """Adds a label before every line if requested, and keeps the end of the output in all of `tails`."""

    def __init__(self, target: Sink, label: str, tails: list[Tails], puid: int) -> None:
        self.target, self.label, self.tails, self.puid = target, label.encode(), tails, puid
        # On the front end's terminal the lines of processes of several nodes must not mix.
        self.by_line = bool(label) or isinstance(target, ToFrontEnd)
        self.patience = None if label else _PARTIAL_LINE_S

    @property
    def is_full(self) -> bool:
        """Whether the target is full."""
        return self.target.is_full

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the target has space."""
        self.target.when_there_is_room(callback)

    def write(self, data: bytes) -> None:
        """Keep the end of the output for error messages, add the label to each line, and write to the target."""
        for tails in self.tails:
            tails.add(self.puid, data)
        if self.label:
            data = b"".join(self.label + line for line in data.splitlines(keepends=True))
        self.target.write(data)

    def close(self) -> None:
        """Close the target."""
        self.target.close()
