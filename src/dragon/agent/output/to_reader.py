"""The channels of the standard streams of processes that have a reader or writer."""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.agent.output.sinks import Sink
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.remote import node_of

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links


log = runtime_log("output")

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
    """Sends lines to the reader of a process's `stdout_conn`, by a channel of this node. The process is blocked while
    very many are unread, or while there is no memory for one. Raises DestroyedError."""

    patience = None

    def __init__(self, name: Name) -> None:
        self._waiting = []
        self.loop = asyncio.get_running_loop()
        self.channel = Channel._attached(name)
        self.text = _Text()
        self.unread = _Unread()
        self.unsent: deque[str] = deque()
        self.closing = self.retries = self.left = False

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
                self.channel.put(self.unsent[0])
                self.unread.add(self.unsent.popleft())
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
            self.unread = _Unread()
            self.channel._close()

    def _send_again(self) -> None:
        self.retries = False
        if not self.left:
            self._send()

    def close(self) -> None:
        """Send what is left of an incomplete character, then leave the channel."""
        self.closing = True
        self._add(self.text.rest())
