"""The handles for sending to and receiving from a channel."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import Any, Protocol, Self

from dragon.channels.errors import (
    ChannelDestroyed,
    ChannelEmpty,
    ChannelFull,
    ChannelHandleNotOpenError,
    ChannelRecvError,
    ChannelRecvTimeout,
    ChannelSendTimeout,
)
from dragon.channels.events import OwnershipOnSend
from dragon.channels.message import Message
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.runtime import handle
from dragon.runtime.arguments import checked_seconds

__all__ = ["ChannelRecvH", "ChannelSendH"]

_DEFAULT: Any = "USE_CHANNEL_HANDLE_DEFAULT"


class _Whole(Protocol):
    """The channel of a handle."""

    cuid: int
    capacity: int

    def _its(self) -> handle.Channel: ...


class _Handle:
    """A handle of a channel, which is used between open() and close(), or in a `with` block."""

    def __init__(self, channel: _Whole, timeout: float | None) -> None:
        self._whole = channel
        self._timeout = checked_seconds("timeout", timeout)
        self._channel: handle.Channel | None = None

    def open(self) -> None:
        """Open the handle. Raises ChannelError if the channel was detached."""
        self._channel = self._whole._its()

    def close(self) -> None:
        """Close the handle."""
        self._channel = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> handle.Channel:
        if self._channel is None:
            raise ChannelHandleNotOpenError(f"this {type(self).__name__} is not open: open() it, or use it in a block")
        return self._channel

    def _wait(self, blocking: bool, timeout: Any) -> float | None:
        """Return the seconds to wait: 0 for not at all, None for no limit."""
        chosen = self._timeout if timeout is _DEFAULT else checked_seconds("timeout", timeout)
        return chosen if blocking else 0.0


class ChannelSendH(_Handle):
    """A handle for sending messages. Channel.sendh() makes it.

    Attributes:
        USE_CHANNEL_SENDH_DEFAULT: as a timeout: that of the handle.
        copy_on_send: OwnershipOnSend.copy_on_send.
        transfer_ownership_on_send: OwnershipOnSend.transfer_ownership_on_send.
    """

    USE_CHANNEL_SENDH_DEFAULT = _DEFAULT
    copy_on_send = OwnershipOnSend.copy_on_send
    transfer_ownership_on_send = OwnershipOnSend.transfer_ownership_on_send

    def send(
        self,
        msg: Message,
        dest_msg: Message | None = None,
        ownership: OwnershipOnSend = OwnershipOnSend.copy_on_send,
        blocking: bool = True,
        timeout: float | None = _DEFAULT,
    ) -> None:
        """Send a message.

        If there is no room for it, raises ChannelFull, or ChannelSendTimeout after `timeout` seconds. Raises
        NotSupportedError for a `dest_msg`.
        """
        if dest_msg is not None:
            raise NotSupportedError("the receiver chooses where a message goes: recv(dest_msg)")
        data = msg.tobytes()
        self._put((data, msg.hints, msg.clientid) if msg.hints or msg.clientid else data, blocking, timeout)
        if ownership == OwnershipOnSend.transfer_ownership_on_send:
            msg.destroy()

    def send_bytes(
        self, msg_bytes: Any, msg_len: int = 0, blocking: bool = True, timeout: float | None = _DEFAULT
    ) -> None:
        """Send the first `msg_len` bytes, by default all, as a message. Raises the same exceptions as send()."""
        data = bytes(memoryview(msg_bytes).cast("B")[: msg_len or None])
        self._put(data, blocking, timeout)

    def _put(self, sent: Any, blocking: bool, timeout: Any) -> None:
        channel, seconds = self._opened(), self._wait(blocking, timeout)
        try:
            channel.put(sent, seconds != 0, seconds or None)
        except queue.Full:
            cuid = self._whole.cuid
            if seconds:
                raise ChannelSendTimeout(f"channel {cuid} had no room within {seconds} s") from None
            raise ChannelFull(f"channel {cuid} is full: it holds {self._whole.capacity} messages") from None
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {self._whole.cuid}: {error}") from error


class ChannelRecvH(_Handle):
    """A handle for receiving messages. Channel.recvh() makes it.

    Attributes:
        USE_CHANNEL_RECVH_DEFAULT: as a timeout: that of the handle.
    """

    USE_CHANNEL_RECVH_DEFAULT = _DEFAULT

    def recv(self, dest_msg: Message | None = None, blocking: bool = True, timeout: float | None = _DEFAULT) -> Message:
        """Return the next message. It is received into the memory of `dest_msg` if that is given, or as its new memory.

        If there is no message, raises ChannelEmpty, or ChannelRecvTimeout after `timeout` seconds. A message that is
        too large for `dest_msg` is lost, with a ChannelRecvError.
        """
        found = self._get(blocking, timeout)
        data, hints, clientid = found if isinstance(found, tuple) else (found, 0, 0)
        if dest_msg is None:
            return Message(bytearray(data), hints, clientid)
        if dest_msg._memory is None:
            dest_msg._memory = bytearray(data)
        else:
            memory = dest_msg.bytes_memview()
            if len(memory) < len(data):
                raise ChannelRecvError(f"a message of {len(data)} bytes does not fit into {len(memory)}; it is lost")
            memory[: len(data)] = data
        dest_msg.hints, dest_msg.clientid = hints, clientid
        return dest_msg

    def recv_bytes(self, blocking: bool = True, timeout: float | None = _DEFAULT) -> bytes:
        """Return the bytes of the next message. Raises ChannelEmpty or ChannelRecvTimeout, as recv()."""
        found = self._get(blocking, timeout)
        return bytes(found[0] if isinstance(found, tuple) else found)

    def _get(self, blocking: bool, timeout: Any) -> Any:
        channel, seconds = self._opened(), self._wait(blocking, timeout)
        try:
            return channel.get(seconds != 0, seconds or None)
        except queue.Empty:
            cuid = self._whole.cuid
            if seconds:
                raise ChannelRecvTimeout(f"channel {cuid} had no message within {seconds} s") from None
            raise ChannelEmpty(f"channel {cuid} is empty") from None
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {self._whole.cuid}: {error}") from error
