"""The destinations of the output of processes that have a reader: connections to this node or another one."""

from __future__ import annotations

import asyncio
import codecs
import errno
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.agent.output.sinks import Sink
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.remote import node_of, to_parts
from dragon.runtime.rpc import RemoteError

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links


log = runtime_log("output")

_distant_RETRY_S = 1.0  # seconds until a node is asked again that could not be reached


class DistantChannel:
    """One end of a pipe whose channel is on another node. Objects that are put arrive in order."""

    def __init__(self, links: Links, name: Name) -> None:
        self._links = links
        self._name = name
        self._node = node_of(name)
        self._out_of_reach = False
        self._ask("attach")

    def put(self, obj: Any) -> asyncio.Future[tuple[Any, Any]]:
        """Put an object, which waits for memory on the channel's node; the future fails if the reader or its node is
        lost, or cannot be reached. Raises MemoryError if this node has none."""
        kind, data = to_parts(obj)
        future = self._ask("Channel.put_with_memory", kind, payload=data, waits=True)
        future.add_done_callback(self._note_loss)
        return future

    def get(self, received: Callable[[Any], None], ended: Callable[[], None]) -> None:
        """Call `received` with the next object, or `ended` if there will be none."""

        def done(future: asyncio.Future[tuple[Any, Any]]) -> None:
            if self._note_loss(future):
                asyncio.get_running_loop().call_later(_distant_RETRY_S, self.get, received, ended)
                return
            if future.cancelled() or future.exception() is not None:
                ended()
                return
            received(_core.object_of(*future.result()))

        self._ask("Channel.get", waits=True).add_done_callback(done)

    def count(self, counted: Callable[[int], None]) -> None:
        """Call `counted` with the number of objects in the channel; 0 if it no longer exists."""

        def done(future: asyncio.Future[tuple[Any, Any]]) -> None:
            failed = future.cancelled() or future.exception() is not None
            counted(0 if failed else future.result()[1])

        self._ask("Channel.size").add_done_callback(done)

    def close(self) -> None:
        """Release this end, whether or not the node can be reached now."""
        self._ask("detach")

    def _note_loss(self, future: asyncio.Future[tuple[Any, Any]]) -> bool:
        """Return whether the channel's node cannot be reached, but is not lost, and say what that means."""
        error = None if future.cancelled() else future.exception()
        known, self._out_of_reach = self._out_of_reach, isinstance(error, NodeLostError)
        if self._node in self._links.lost:
            return False
        if self._out_of_reach and not known:
            log.warning("some input or output of a process may be lost: %s", error)
        return self._out_of_reach

    def _ask(
        self, operation: str, *given: int, payload: Any = None, waits: bool = False
    ) -> asyncio.Future[tuple[Any, Any]]:
        future = self._links.operate(operation, self._name, *given, payload=payload, waits=waits)
        future.add_done_callback(_looked_at)
        return future


def _looked_at(future: asyncio.Future[tuple[Any, Any]]) -> None:
    # Callers that wait for it see its failure; otherwise the channel no longer exists, nor its reader.
    if not future.cancelled():
        future.exception()


_MOST_UNDER_WAY = 1000  # lines
_MOST_UNREAD, _MOST_UNREAD_BYTES = 250_000, 64 * 2**20  # lines and bytes
_RETRY_S = 0.05
_GONE = {f"OSError {errno.EPIPE:d}", _core.DestroyedError.__name__}  # what a channel without a reader answers


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


class _ToReader(Sink):
    """Sends lines to the reader of a process's `stdout_conn`. The process is blocked while very many are unread, or
    while there is no memory for one."""

    patience = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.text = _Text()
        self.unread = _Unread()
        self.unsent: deque[str] = deque()
        self.closing = self.retries = self.left = False

    def offer(self, line: str) -> None:
        """Put a line into the channel. Raises MemoryError, and DestroyedError or BrokenPipeError without a reader."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the channel, after the lines that are in flight to it."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send each line. Does nothing if the reader is gone."""
        self._add(self.text.lines(data))

    def _add(self, lines: Iterable[str]) -> None:
        if not self.left:
            self.unsent.extend(lines)
            self._send()

    def _send(self) -> None:
        try:
            while self.unsent:
                self.offer(self.unsent[0])
                self.unread.add(self.unsent.popleft())
        except MemoryError:
            self._retry()
        except (_core.DestroyedError, BrokenPipeError):
            self.leave()  # it has no reader any more
        else:
            if self.closing:
                self.leave()

    def leave(self) -> None:
        """Send nothing more."""
        if not self.left:
            self.left = True
            self.unsent.clear()
            self.unread = _Unread()
            self.release()

    def _retry(self) -> None:
        if not self.retries:
            self.retries = True
            self.loop.call_later(_RETRY_S, self._send_again)

    def _send_again(self) -> None:
        self.retries = False
        if not self.left:
            self._send()

    def close(self) -> None:
        """Send what is left of an incomplete character, then leave the channel."""
        self.closing = True
        self._add(self.text.rest())


class ToChannel(_ToReader):
    """Sends lines to a channel of this node."""

    def __init__(self, name: Name) -> None:
        super().__init__()
        self.channel = Channel._attached(name)

    @property
    def is_full(self) -> bool:
        """Whether too many lines, or bytes of them, are unread, or one is unsent. False if the reader is gone."""
        try:
            self.unread.are(0 if self.left else self.channel.qsize())
        except _core.DestroyedError:
            return False  # it has no reader any more, which the next write detects
        return bool(self.unsent) or self.unread.are_too_many

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false, which is tested every 50 ms."""
        if self.is_full:
            self.loop.call_later(_RETRY_S, self.when_there_is_room, callback)
        else:
            callback()

    def offer(self, line: str) -> None:
        """Put a line into the channel. Raises MemoryError, and DestroyedError or BrokenPipeError without a reader."""
        self.channel.put(line)

    def release(self) -> None:
        """Release the channel."""
        self.channel._close()


class ToDistantChannel(_ToReader):
    """Sends lines to a channel on another node, which is asked for the number of unread lines when it may be large."""

    def __init__(self, channel: DistantChannel) -> None:
        super().__init__()
        self.channel = channel
        self.under_way = 0
        self.asks = False
        self.waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether too many lines are in flight or unread, or one is unsent."""
        return bool(self.unsent) or self.under_way >= _MOST_UNDER_WAY or self.unread.are_too_many

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once is_full is false."""
        self.waiting.append(callback)
        self.look()

    def offer(self, line: str) -> None:
        """Send a line to the channel's node, where it waits for memory. Raises MemoryError if this node has none."""
        future = self.channel.put(line)
        self.under_way += 1
        future.add_done_callback(self.arrived)

    def arrived(self, future: asyncio.Future[Any]) -> None:
        """Count a line as arrived, and leave the channel if its reader is gone."""
        self.under_way -= 1
        error = None if future.cancelled() else future.exception()
        if isinstance(error, RemoteError) and error.kind in _GONE:
            self.leave()  # nobody will ever read it
        self.look()

    def look(self) -> None:
        """Call back waiting writers, if there is space."""
        if not self.waiting or self.asks:
            return
        if self.unread.are_too_many:
            self.asks = True
            self.channel.count(self.counted)
        elif self.unsent:
            self.loop.call_later(_RETRY_S, self.look)
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
        super().close()

    def release(self) -> None:
        """Release the channel, after the lines that are in flight to it."""
        self.channel.close()
