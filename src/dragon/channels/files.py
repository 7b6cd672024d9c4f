"""Files over channels, for functions that read or write files."""

from __future__ import annotations

import io
from types import TracebackType
from typing import Any, Self

from dragon.channels.channel import Channel
from dragon.channels.errors import ChannelHandleNotOpenError
from dragon.dtypes import ADAPTIVE_WAIT, WaitMode
from dragon.runtime.arguments import checked_seconds

__all__ = [
    "Many2ManyReadingChannelFile",
    "Many2ManyWritingChannelFile",
    "Peer2PeerReadingChannelFile",
    "Peer2PeerWritingChannelFile",
]


class _ChannelFile:
    """A file over a channel. The data written between open() and close() is one message, which is read as a whole."""

    def __init__(self, channel: Channel, options: Any = None, wait_mode: WaitMode = ADAPTIVE_WAIT) -> None:
        self._channel = channel
        self._file: io.BytesIO | None = None
        self._blocking, self._timeout = True, None

    def set_adapter_timeout(self, blocking: bool = True, timeout: float | None = None) -> None:
        """Set how long sending or receiving the message may wait, in seconds; None: no limit. Not `blocking`: do not
        wait."""
        self._blocking, self._timeout = blocking, checked_seconds("timeout", timeout)

    def open(self) -> None:
        """Start a message."""
        self._file = io.BytesIO()

    def close(self) -> None:
        """End the message."""
        self._file = None

    def _opened(self) -> io.BytesIO:
        if self._file is None:
            raise ChannelHandleNotOpenError(f"this {type(self).__name__} is not open: open() it, or use it in a block")
        return self._file

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file = None  # do not send an incomplete message
        self.close()


class Peer2PeerWritingChannelFile(_ChannelFile):
    """A file to write to, for example with pickle.dump()."""

    def write(self, buf: Any) -> int:
        """Append to the message. Returns the number of bytes."""
        return self._opened().write(buf)

    def close(self) -> None:
        """Send the message."""
        if self._file is not None:
            data, self._file = self._file.getvalue(), None
            with self._channel.sendh() as sender:
                sender.send_bytes(data, blocking=self._blocking, timeout=self._timeout)


class Peer2PeerReadingChannelFile(_ChannelFile):
    """A file to read from, for example with pickle.load(). The message is received at the first read."""

    _received = False

    def open(self) -> None:
        """Start to read the next message."""
        super().open()
        self._received = False

    def _message(self) -> io.BytesIO:
        self._opened()
        if not self._received:
            with self._channel.recvh() as receiver:
                self._file = io.BytesIO(receiver.recv_bytes(self._blocking, self._timeout))
            self._received = True
        return self._opened()

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes of the message, by default all."""
        return self._message().read(size)

    def readinto(self, buf: Any) -> int:
        """Read into a buffer and return the number of bytes."""
        return self._message().readinto(buf)

    def readline(self) -> bytes:
        """Return the bytes up to the end of a line."""
        return self._message().readline()


class Many2ManyWritingChannelFile(Peer2PeerWritingChannelFile):
    """A file to write to, as Peer2PeerWritingChannelFile: messages of several writers are not mixed."""


class Many2ManyReadingChannelFile(Peer2PeerReadingChannelFile):
    """A file to read from, as Peer2PeerReadingChannelFile: each message has one reader."""
