"""Where the output of processes goes: to connections, descriptors and the front end."""

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

_TAIL = 4096
_MOST_TAILS = 1000
_MOST_UNDER_WAY = 1000  # lines
_PARTIAL_LINE_S = 0.05
_MOST_UNREAD, _MOST_UNREAD_BYTES = 250_000, 64 * 2**20  # lines and bytes
_RETRY_S = 0.05
_GONE = {BrokenPipeError.__name__, _core.DestroyedError.__name__}  # what a channel without a reader answers


class Sink:
    """Where output goes."""

    by_line = True
    # Seconds after which the beginning of a line, a prompt perhaps, is passed on.
    patience: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the writer should wait."""
        return False

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full holds no more."""

    def write(self, data: bytes) -> None:
        """Write output: whole lines where `by_line` is set."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will come."""


class _Text:
    """What is written, as text line by line; a character that comes in two pieces is one."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def lines(self, data: bytes) -> Iterable[str]:
        # Text would be parted at form feeds and Unicode's separators too.
        return filter(None, map(self._decode, data.splitlines(keepends=True)))

    def rest(self) -> Iterable[str]:
        """At the end, what was no whole character."""
        return filter(None, [self._decode(b"", True)])


class _Unread:
    """What was put into a channel and not taken, as far as that is known."""

    def __init__(self) -> None:
        self.sizes: deque[int] = deque()
        self.bytes = 0

    def add(self, line: str) -> None:
        self.sizes.append(len(line))
        self.bytes += len(line)

    def are(self, lines: int) -> None:
        """So many are left."""
        while len(self.sizes) > lines:
            self.bytes -= self.sizes.popleft()

    @property
    def are_too_many(self) -> bool:
        return len(self.sizes) >= _MOST_UNREAD or self.bytes >= _MOST_UNREAD_BYTES


class ToChannel(Sink):
    """Lines to whoever reads the process's `stdout_conn`. With very many unread ones the process waits."""

    def __init__(self, name: Name) -> None:
        self.channel: Channel | None = Channel._attached(name)
        self.loop = asyncio.get_running_loop()
        self.text = _Text()
        self.unread = _Unread()

    @property
    def is_full(self) -> bool:
        """Whether too many lines, or bytes of them, are unread. False where the reader is gone."""
        try:
            self.unread.are(self.channel.qsize() if self.channel is not None else 0)
        except _core.DestroyedError:
            return False  # nobody will ever read it, as the next write finds
        return self.unread.are_too_many

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false, which is tested every 50 ms."""
        if self.is_full:
            self.loop.call_later(_RETRY_S, self.when_there_is_room, callback)
        else:
            callback()

    def write(self, data: bytes) -> None:
        """Put each line into the channel. Nothing happens where the reader is gone."""
        self._put(self.text.lines(data))

    def _put(self, lines: Iterable[str]) -> None:
        if self.channel is None:
            return
        try:
            for line in lines:
                self.channel.put(line)
                self.unread.add(line)
        except (_core.DestroyedError, BrokenPipeError):
            self._leave()  # nobody will ever read it

    def close(self) -> None:
        """Put what is left of an incomplete character, then close the channel."""
        self._put(self.text.rest())
        self._leave()

    def _leave(self) -> None:
        if self.channel is not None:
            self.channel._close()
            self.channel = None


class ToDistantChannel(Sink):
    """The same where the reader's channel is on another node, which is asked what is unread when that may be much."""

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
        """Whether too many lines are on their way or unread."""
        return self.under_way >= _MOST_UNDER_WAY or self.unread.are_too_many

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false."""
        self.waiting.append(callback)
        self.look()

    def write(self, data: bytes) -> None:
        """Send each line to the channel's node. Nothing happens where the reader is gone."""
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
        """Call back who waits, if there is room."""
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
        """Take the number of unread lines that the channel's node has answered."""
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
    """To where the creator's stream goes, as fast as that takes it: whoever writes waits for it, and nobody else.

    The descriptor's file is the creator's too, so whether it blocks is not for the agent to set. `closed` is called at
    its end.
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
        """Write as much as the descriptor takes now, and the rest as soon as it can be written."""
        self.unwritten += data
        self.flush()

    def flush(self) -> None:
        """Write what is taken at once, and the rest when there is room."""
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
            # A pipe with any room at all has it for so many.
            self.unwritten = self.unwritten[os.write(self.fd, self.unwritten[: select.PIPE_BUF]) :]
        except BlockingIOError:
            return  # somebody else was faster
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
        """Write all that there is, however long that takes, and close."""
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
    """To the terminal of a run of several nodes."""

    def __init__(self, output: Output, number: int) -> None:
        self.output, self.number = output, number

    @property
    def is_full(self) -> bool:
        """Whether the output to the front end is full."""
        return self.output.is_full

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the output to the front end has room."""
        self.output.when_there_is_room(callback)

    def write(self, data: bytes) -> None:
        """Send output to the front end with the number of its stream."""
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
        self.patience = None if label else _PARTIAL_LINE_S

    @property
    def is_full(self) -> bool:
        """Whether the target is full."""
        return self.target.is_full

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the target has room."""
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
