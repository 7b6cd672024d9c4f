"""Channels of messages, for programs of the low-level interface, implemented by the channels of the run.

A channel is a FIFO queue with any number of senders and receivers on all nodes. It exists while a process has it.
Messages are copied when they are sent. dragon.native.queue.Queue does the same for objects with less code.
"""

from __future__ import annotations

import enum
import io
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import msgspec

from dragon.dtypes import (
    ADAPTIVE_WAIT,
    IDLE_WAIT,
    SPIN_WAIT,
    DragonException,
    DragonObjectDestroyed,
    ReturnWhen,
    WaitMode,
)
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.infrastructure.messages import SerializedName
from dragon.managed_memory import MemoryAlloc, MemoryPool
from dragon.rc import DragonError as Code
from dragon.runtime import handle
from dragon.runtime.arguments import checked_seconds

__all__ = [
    "ADAPTIVE_WAIT",
    "IDLE_WAIT",
    "SPIN_WAIT",
    "Channel",
    "ChannelBarrierBroken",
    "ChannelDestroyed",
    "ChannelEmpty",
    "ChannelError",
    "ChannelFlags",
    "ChannelFull",
    "ChannelHandleNotOpenError",
    "ChannelRecvError",
    "ChannelRecvH",
    "ChannelRecvTimeout",
    "ChannelSendError",
    "ChannelSendH",
    "ChannelSendTimeout",
    "ChannelSet",
    "ChannelSetError",
    "ChannelSetTimeout",
    "ChannelTimeout",
    "ChannelValueError",
    "EventType",
    "FlowControl",
    "LockType",
    "Many2ManyReadingChannelFile",
    "Many2ManyWritingChannelFile",
    "Message",
    "OwnershipOnSend",
    "Peer2PeerReadingChannelFile",
    "Peer2PeerWritingChannelFile",
    "PollResult",
]


class ChannelError(DragonException):
    """The base class of the errors of channels."""


class ChannelTimeout(ChannelError, TimeoutError):
    """An operation did not finish in time."""

    code = Code.TIMEOUT


class ChannelValueError(ChannelError, ValueError):
    """An argument is invalid."""

    code = Code.INVALID_ARGUMENT


class ChannelSendError(ChannelError):
    """A message cannot be sent."""


class ChannelSendTimeout(ChannelSendError, TimeoutError):
    """There was no room for a message in time."""

    code = Code.TIMEOUT


class ChannelFull(ChannelSendError):
    """There is no room for a message."""

    code = Code.CHANNEL_FULL


class ChannelRecvError(ChannelError):
    """A message cannot be received."""


class ChannelRecvTimeout(ChannelRecvError, TimeoutError):
    """There was no message in time."""

    code = Code.TIMEOUT


class ChannelEmpty(ChannelRecvError):
    """There is no message."""

    code = Code.CHANNEL_EMPTY


class ChannelHandleNotOpenError(ChannelError):
    """A handle was used before open()."""


class ChannelDestroyed(ChannelError, DragonObjectDestroyed):
    """The channel was destroyed."""

    code = Code.OBJECT_DESTROYED


class ChannelBarrierBroken(ChannelError, threading.BrokenBarrierError):
    """Never raised: use dragon.native.barrier.Barrier."""


class ChannelSetError(DragonException):
    """The base class of the errors of a ChannelSet."""


class ChannelSetTimeout(ChannelSetError, TimeoutError):
    """No channel of the set had a message in time."""

    code = Code.TIMEOUT


class EventType(enum.IntEnum):
    """The events that poll() waits for. Those of barriers and semaphores are not supported: dragon.native has both.

    Attributes:
        POLLNOTHING: do not wait.
        POLLIN: there is a message.
        POLLOUT: there is room for a message.
        POLLINOUT: there is a message, or room for one; always true.
        POLLEMPTY: there is no message.
        POLLFULL: there is no room for a message.
        POLLSIZE: return the number of messages.
        POLLRESET: drop all messages.
    """

    POLLNOTHING, POLLIN, POLLOUT, POLLINOUT, POLLEMPTY, POLLFULL, POLLSIZE, POLLRESET = range(8)


FlowControl = enum.IntEnum(
    "FlowControl", "NO_FLOW_CONTROL RESOURCES_FLOW_CONTROL MEMORY_FLOW_CONTROL MSGS_FLOW_CONTROL", start=0
)
"""Options of dragonhpc that have no effect."""

LockType = enum.IntEnum("LockType", "FIFO LITE GREEDY", start=0)
"""Options of dragonhpc that have no effect."""

ChannelFlags = enum.IntEnum("ChannelFlags", "NO_FLAGS MASQUERADE_AS_REMOTE", start=0)
"""Options of dragonhpc that have no effect."""

OwnershipOnSend = enum.IntEnum("OwnershipOnSend", "copy_on_send transfer_ownership_on_send", start=0)
"""Whether the sender keeps a message after send(), which copies it in both cases, or send() destroys it."""


class PollResult:
    """The result of a poll().

    Attributes:
        value: the value that poll() returned, as a number; None before.
        rc: SUCCESS, or TIMEOUT if poll() returned False; None before.
    """

    def __init__(self, value: int | None = None, rc: Code | None = None) -> None:
        self.value, self.rc = value, rc

    def __repr__(self) -> str:
        return f"PollResult(value={self.value}, rc={self.rc})"


class Message:
    """The bytes of a message that is sent or was received.

    Attributes:
        hints: a number that the sender chooses.
        clientid: another number that the sender chooses.
    """

    def __init__(self, memory: MemoryAlloc | bytearray | None, hints: int = 0, clientid: int = 0) -> None:
        self._memory, self.hints, self.clientid = memory, hints, clientid

    @classmethod
    def create_alloc(
        cls, mpool: MemoryPool, nbytes: int, hints: int = 0, clientid: int = 0, timeout: float | None = None
    ) -> Message:
        """Return a message of `nbytes` bytes in memory of a pool. `timeout` has no effect."""
        return cls(mpool.alloc(nbytes), hints, clientid)

    @classmethod
    def create_empty(cls) -> Message:
        """Return a message without memory, to receive into."""
        return cls(None)

    @classmethod
    def create_from_mem(cls, mem: MemoryAlloc, hints: int = 0, clientid: int = 0) -> Message:
        """Return a message whose bytes are a block of memory."""
        return cls(mem, hints, clientid)

    def bytes_memview(self) -> memoryview:
        """Return the message's bytes as writable memory. Raises ChannelError if it has none."""
        if self._memory is None:
            raise ChannelError("the message has no memory: it was not received yet, or was destroyed")
        return self._memory.get_memview() if isinstance(self._memory, MemoryAlloc) else memoryview(self._memory)

    def tobytes(self) -> bytes:
        """Return a copy of the message's bytes."""
        return bytes(self.bytes_memview())

    def clear_payload(self, start: int = 0, stop: int | None = None) -> None:
        """Set the bytes from `start` to `stop` to zero."""
        memory = self.bytes_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def destroy(self, free_mem: bool = True) -> None:
        """Release the message's memory, and free it unless `free_mem` is False."""
        if free_mem and isinstance(self._memory, MemoryAlloc):
            self._memory.free()
        self._memory = None


_DEFAULT: Any = "USE_CHANNEL_HANDLE_DEFAULT"


class _Openable:
    """Something that is used between open() and close(), or in a `with` block."""

    _used: Any = None  # what is used meanwhile

    def open(self) -> None:
        """Open the object."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the object."""
        self._used = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._used = None  # do not send an incomplete message
        self.close()

    def _opened(self) -> Any:
        if self._used is None:
            raise ChannelHandleNotOpenError(f"this {type(self).__name__} is not open: open() it, or use it in a block")
        return self._used


class _Handle(_Openable):
    """A handle of a channel."""

    def __init__(self, channel: Channel, timeout: float | None) -> None:
        self._whole = channel
        self._timeout = checked_seconds("timeout", timeout)

    def open(self) -> None:
        """Open the handle. Raises ChannelError if the channel was detached."""
        self._used = self._whole._its()

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


_CAPACITY, _BLOCK_SIZE = 100, 1024  # defaults: messages, bytes
_LONGEST_SLEEP_S = 0.005  # seconds at most between two checks of a condition that is polled
_numbers = itertools.count(1)


class _Told(msgspec.Struct, array_like=True):
    """The form in which serialize() describes a channel."""

    channel: SerializedName
    cuid: int
    capacity: int
    block_size: int


class Channel:
    """A FIFO queue of messages.

    Args:
        mem_pool: has no effect: the channel is in the memory of its node.
        c_uid: a number for the program's own use.
        block_size: has no effect: messages are of any size.
        capacity: the number of messages that it holds; further sends wait. Default: 100.
        lock_type, fc_type, flags: have no effect.
        semaphore, bounded_semaphore, initial_sem_value: not supported; use dragon.native.semaphore.Semaphore.

    Attributes:
        cuid: the number `c_uid`.
        capacity: the number of messages that it holds.
        block_size: as it was passed.
    """

    def __init__(
        self,
        mem_pool: MemoryPool | None,
        c_uid: int,
        block_size: int | None = None,
        capacity: int | None = None,
        lock_type: LockType | None = None,
        fc_type: FlowControl | None = None,
        flags: ChannelFlags | None = None,
        semaphore: bool = False,
        bounded_semaphore: bool = False,
        initial_sem_value: int = 0,
    ) -> None:
        if semaphore or bounded_semaphore:
            raise NotSupportedError("a channel cannot be a semaphore: use dragon.native.semaphore.Semaphore")
        capacity = _CAPACITY if capacity is None else capacity
        if capacity < 1:
            raise ChannelValueError(f"capacity must be at least 1, not {capacity}")
        self._open(handle.Channel(capacity), c_uid, capacity, _BLOCK_SIZE if block_size is None else block_size)

    def _open(self, channel: handle.Channel, cuid: int, capacity: int, block_size: int) -> None:
        self._channel: handle.Channel | None = channel
        self.cuid, self.capacity, self.block_size = cuid, capacity, block_size

    @classmethod
    def make_process_local(
        cls,
        pool: MemoryPool | None = None,
        block_size: int | None = None,
        capacity: int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Return a new channel with a number that is unique in the run. `timeout` has no effect."""
        return cls(pool, os.getpid() << 32 | next(_numbers), block_size, capacity)

    def destroy_process_local(self, timeout: float | None = None) -> None:
        """Destroy the channel, as destroy(). `timeout` has no effect."""
        self.destroy()

    @classmethod
    def attach(cls, serialized_bytes: Any, mem_pool: MemoryPool | None = None) -> Self:
        """Return the channel that serialize() described, on any node. Raises ChannelError if it does not exist any
        more."""
        try:
            told = msgspec.msgpack.decode(bytes(serialized_bytes), type=_Told)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise ChannelError(f"this is not what serialize() of a channel gave: {error}") from error
        try:
            channel = handle.Channel._attached(told.channel)
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {told.cuid} is gone: {error}") from error
        except ValueError as error:
            raise ChannelError(f"this is not what serialize() of a channel gave: {error}") from error
        found = cls.__new__(cls)
        found._open(channel, told.cuid, told.capacity, told.block_size)
        return found

    def serialize(self) -> bytes:
        """Return bytes that describe the channel, for attach()."""
        return msgspec.msgpack.encode(_Told(self._its()._name(), self.cuid, self.capacity, self.block_size))

    def __reduce__(self) -> Any:
        return Channel._again, (self._its(), self.cuid, self.capacity, self.block_size)

    @classmethod
    def _again(cls, *parts: Any) -> Self:
        found = cls.__new__(cls)
        found._open(*parts)
        return found

    def _its(self) -> handle.Channel:
        if self._channel is None:
            raise ChannelError(f"channel {self.cuid} was detached", Code.INVALID_OPERATION)
        return self._channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    # ---- sending and receiving

    def sendh(
        self,
        return_mode: ReturnWhen = ReturnWhen.WHEN_BUFFERED,
        wait_mode: WaitMode = ADAPTIVE_WAIT,
        timeout: float | None = None,
    ) -> ChannelSendH:
        """Return a handle for sending, which must be opened. `timeout` is the default of its sends, in seconds."""
        return ChannelSendH(self, timeout)

    def recvh(
        self,
        notification_type: Any = None,
        signal: Any = None,
        wait_mode: WaitMode = ADAPTIVE_WAIT,
        timeout: float | None = None,
    ) -> ChannelRecvH:
        """Return a handle for receiving, which must be opened. `timeout` is the default of its receives, in seconds.

        Raises NotSupportedError for a `signal`.
        """
        if signal is not None:
            raise NotSupportedError("no signal can be sent when a message arrives: wait in a thread, or poll()")
        return ChannelRecvH(self, timeout)

    def poll(
        self,
        timeout: float | None = None,
        wait_mode: WaitMode = ADAPTIVE_WAIT,
        event_mask: EventType = EventType.POLLIN,
        poll_result: PollResult | None = None,
    ) -> bool | int:
        """Wait until the event of `event_mask` holds, by default that there is a message. Returns False after `timeout`
        seconds.

        POLLSIZE returns the number of messages, POLLRESET drops them all. `poll_result` gets the value and its code.
        """
        timeout = checked_seconds("timeout", timeout)
        try:
            found = self._poll(timeout, EventType(event_mask))
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {self.cuid}: {error}") from error
        if poll_result is not None:
            poll_result.value = int(found)
            poll_result.rc = Code.TIMEOUT if found is False else Code.SUCCESS
        return found

    def _poll(self, timeout: float | None, event: EventType) -> bool | int:
        channel = self._its()
        if event == EventType.POLLIN:
            return bool(channel._wait_readable(timeout))
        if event == EventType.POLLSIZE:
            return int(channel.qsize())
        if event == EventType.POLLRESET:
            return _drop_all(channel)
        conditions: dict[EventType, Callable[[int], bool]] = {
            EventType.POLLNOTHING: lambda count: True,
            EventType.POLLOUT: lambda count: count < self.capacity,
            EventType.POLLINOUT: lambda count: True,  # there is a message, or room for one
            EventType.POLLEMPTY: lambda count: count == 0,
            EventType.POLLFULL: lambda count: count >= self.capacity,
        }
        return _comes_about(lambda: conditions[event](channel.qsize()), timeout)

    # ---- attributes

    @property
    def num_msgs(self) -> int:
        """The number of messages in the channel."""
        return int(self._its().qsize())

    @property
    def is_local(self) -> bool:
        """Whether the channel is in the memory of this node."""
        return type(self._its()) is handle.Channel

    def get_pool(self) -> MemoryPool:
        """Return the default pool of this node."""
        return MemoryPool.default()

    @property
    def default_alloc_pool(self) -> MemoryPool:
        """The default pool of this node."""
        return MemoryPool.default()

    # ---- ending

    def destroy(self) -> None:
        """Destroy the channel for all processes: every later use raises ChannelDestroyed."""
        self._its()._destroy()

    def detach(self, serialize: bool = False) -> None:
        """Close the channel in this process. `serialize` has no effect."""
        self._channel = None


def _drop_all(channel: handle.Channel) -> bool:
    try:
        while True:
            channel.get(False)
    except queue.Empty:
        return True


def _comes_about(condition: Callable[[], bool], timeout: float | None) -> bool:
    """Wait until a condition holds, by polling. Returns False after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    sleep = _LONGEST_SLEEP_S / 50
    while not condition():
        left = _LONGEST_SLEEP_S if end is None else end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(sleep, left))
        sleep = min(2 * sleep, _LONGEST_SLEEP_S)
    return True


class ChannelSet:
    """Several channels to wait for. `mem_pool`, `lock_type`, `num_allowed_spin_waiters` and `capture_all_events` have
    no effect."""

    def __init__(
        self,
        mem_pool: MemoryPool | None,
        channel_list: Iterable[Channel],
        lock_type: LockType | None = None,
        num_allowed_spin_waiters: int = 0,
        event_mask: EventType = EventType.POLLIN,
        capture_all_events: bool = True,
    ) -> None:
        self._channels, self._event = list(channel_list), EventType(event_mask)
        if not self._channels:
            raise ChannelSetError("a ChannelSet needs a channel")

    def poll(self, timeout: float | None = None, wait_mode: WaitMode = IDLE_WAIT) -> tuple[Channel, int]:
        """Wait until the event holds for a channel, and return the first such channel and the event. Raises
        ChannelSetTimeout."""
        found: list[Channel] = []

        def look() -> bool:
            found.extend(one for one in self._channels if one.poll(0, event_mask=self._event))
            return bool(found)

        if not _comes_about(look, checked_seconds("timeout", timeout)):
            raise ChannelSetTimeout(f"none of {len(self._channels)} channels was ready within {timeout} s")
        return found[0], int(self._event)


class _ChannelFile(_Openable):
    """A file over a channel. The data written between open() and close() is one message, which is read as a whole."""

    def __init__(self, channel: Channel, options: Any = None, wait_mode: WaitMode = ADAPTIVE_WAIT) -> None:
        self._channel = channel
        self._blocking, self._timeout = True, None

    def set_adapter_timeout(self, blocking: bool = True, timeout: float | None = None) -> None:
        """Set how long sending or receiving the message may wait, in seconds; None: no limit."""
        self._blocking, self._timeout = blocking, checked_seconds("timeout", timeout)

    def open(self) -> None:
        """Start a message."""
        self._used = io.BytesIO()


class Peer2PeerWritingChannelFile(_ChannelFile):
    """A file to write to, for example with pickle.dump()."""

    def write(self, buf: Any) -> int:
        """Append to the message. Returns the number of bytes."""
        return int(self._opened().write(buf))

    def close(self) -> None:
        """Send the message."""
        if self._used is not None:
            data, self._used = self._used.getvalue(), None
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
                self._used = io.BytesIO(receiver.recv_bytes(self._blocking, self._timeout))
            self._received = True
        file: io.BytesIO = self._opened()
        return file

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


def __getattr__(name: str) -> Any:
    if name in ("GatewayMessage", "register_gateways_from_env", "discard_gateways", "ChannelAdapterMsgTypes"):
        raise AttributeError(f"dragon.channels.{name} is not offered: agents take messages to other nodes themselves")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
