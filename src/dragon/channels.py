"""Channels of messages, for programs of the low-level interface, over the channels of the run.

A channel is a FIFO of any number of senders and receivers on all nodes. It lives while a process has it. What is sent
is copied. dragon.native.queue.Queue does the same for objects with less to write.
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
from types import TracebackType
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
from dragon.infrastructure.messages import Name
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

_CAPACITY, _BLOCK_SIZE = 100, 1024  # where none is given
_LONGEST_SLEEP = 0.005  # seconds between looks at what cannot be slept on
_DEFAULT: Any = "USE_CHANNEL_HANDLE_DEFAULT"
_numbers = itertools.count(1)


class ChannelError(DragonException):
    """Any error of a channel."""


class ChannelTimeout(ChannelError, TimeoutError):
    """Something did not come about in time."""

    code = Code.TIMEOUT


class ChannelValueError(ChannelError, ValueError):
    """An argument that makes no sense."""

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
    """A handle is used without open() before."""


class ChannelDestroyed(ChannelError, DragonObjectDestroyed):
    """The channel was destroyed."""

    code = Code.OBJECT_DESTROYED


class ChannelBarrierBroken(ChannelError, threading.BrokenBarrierError):
    """Raised by nothing here: dragon.native.barrier.Barrier is the barrier."""


class ChannelSetError(DragonException):
    """Any error of a ChannelSet."""


class ChannelSetTimeout(ChannelSetError, TimeoutError):
    """No channel of the set had a message in time."""

    code = Code.TIMEOUT


class EventType(enum.IntEnum):
    """What poll() waits for. Those of barriers and semaphores are not offered: dragon.native has both."""

    POLLNOTHING = 0
    POLLIN = 1
    POLLOUT = 2
    POLLINOUT = 3
    POLLEMPTY = 4
    POLLFULL = 5
    POLLSIZE = 6
    POLLRESET = 7


class FlowControl(enum.IntEnum):
    """Taken and unused."""

    NO_FLOW_CONTROL = 0
    RESOURCES_FLOW_CONTROL = 1
    MEMORY_FLOW_CONTROL = 2
    MSGS_FLOW_CONTROL = 3


class LockType(enum.IntEnum):
    """Taken and unused."""

    FIFO = 0
    LITE = 1
    GREEDY = 2


class ChannelFlags(enum.IntEnum):
    """Taken and unused."""

    NO_FLAGS = 0
    MASQUERADE_AS_REMOTE = 1


class OwnershipOnSend(enum.IntEnum):
    """Whether send() leaves the message to its sender: it is copied in both cases."""

    copy_on_send = 0
    transfer_ownership_on_send = 1


class PollResult:
    """What poll() found: a value, and its code."""

    def __init__(self, value: int | None = None, rc: Code | None = None) -> None:
        self.value, self.rc = value, rc

    def __repr__(self) -> str:
        return f"PollResult(value={self.value}, rc={self.rc})"


class Message:
    """Bytes that are sent or were received, with two numbers of the sender's."""

    def __init__(self, memory: MemoryAlloc | bytearray | None, hints: int = 0, clientid: int = 0) -> None:
        self._memory, self.hints, self.clientid = memory, hints, clientid

    @classmethod
    def create_alloc(
        cls, mpool: MemoryPool, nbytes: int, hints: int = 0, clientid: int = 0, timeout: float | None = None
    ) -> Message:
        """One of so many bytes in memory of a pool."""
        return cls(mpool.alloc(nbytes), hints, clientid)

    @classmethod
    def create_empty(cls) -> Message:
        """One to receive into."""
        return cls(None)

    @classmethod
    def create_from_mem(cls, mem: MemoryAlloc, hints: int = 0, clientid: int = 0) -> Message:
        """One of a block."""
        return cls(mem, hints, clientid)

    def bytes_memview(self) -> memoryview:
        """Its bytes, to be read and written."""
        if self._memory is None:
            raise ChannelError("the message has no memory: it was not received yet, or was destroyed")
        return self._memory.get_memview() if isinstance(self._memory, MemoryAlloc) else memoryview(self._memory)

    def tobytes(self) -> bytes:
        """A copy of its bytes."""
        return bytes(self.bytes_memview())

    def clear_payload(self, start: int = 0, stop: int | None = None) -> None:
        """Set bytes to zero."""
        memory = self.bytes_memview()[start:stop]
        memory[:] = bytes(len(memory))

    def destroy(self, free_mem: bool = True) -> None:
        """Let its memory go; free it."""
        if free_mem and isinstance(self._memory, MemoryAlloc):
            self._memory.free()
        self._memory = None


class _Told(msgspec.Struct, array_like=True):
    """What serialize() says of a channel."""

    channel: Name
    cuid: int
    capacity: int
    block_size: int


class Channel:
    """A FIFO of messages.

    Args:
        mem_pool: taken; the channel is in the memory of its node.
        c_uid: a number of its own, by which nothing is found.
        block_size: taken; messages are of any size.
        capacity: messages that it holds; further ones wait. 100 by default.
        lock_type, fc_type, flags: taken and unused.
        semaphore, bounded_semaphore, initial_sem_value: not offered; use dragon.native.semaphore.Semaphore.
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
            raise NotSupportedError("a channel is no semaphore here: use dragon.native.semaphore.Semaphore")
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
        """One with a number that no other has in the run."""
        return cls(pool, os.getpid() << 32 | next(_numbers), block_size, capacity)

    def destroy_process_local(self, timeout: float | None = None) -> None:
        """destroy()."""
        self.destroy()

    @classmethod
    def attach(cls, serialized_bytes: Any, mem_pool: MemoryPool | None = None) -> Self:
        """The channel that serialize() described, of whatever node. Raises ChannelError where it is gone."""
        try:
            told = msgspec.msgpack.decode(bytes(serialized_bytes), type=_Told)
            channel = handle.Channel._attached(told.channel)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise ChannelError(f"this is not what serialize() of a channel gave: {error}") from error
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {told.cuid} is gone: {error}") from error
        found = cls.__new__(cls)
        found._open(channel, told.cuid, told.capacity, told.block_size)
        return found

    def serialize(self) -> bytes:
        """What attach() takes."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.detach()

    # ---- sending and receiving

    def sendh(
        self,
        return_mode: ReturnWhen = ReturnWhen.WHEN_BUFFERED,
        wait_mode: WaitMode = ADAPTIVE_WAIT,
        timeout: float | None = None,
    ) -> ChannelSendH:
        """A handle to send by, to be opened. `timeout` is that of its sends."""
        return ChannelSendH(self, timeout)

    def recvh(
        self,
        notification_type: Any = None,
        signal: Any = None,
        wait_mode: WaitMode = ADAPTIVE_WAIT,
        timeout: float | None = None,
    ) -> ChannelRecvH:
        """A handle to receive by, to be opened. `timeout` is that of its receives."""
        if signal is not None:
            raise NotSupportedError("no signal is sent when a message comes: wait in a thread, or poll()")
        return ChannelRecvH(self, timeout)

    def poll(
        self,
        timeout: float | None = None,
        wait_mode: WaitMode = ADAPTIVE_WAIT,
        event_mask: EventType = EventType.POLLIN,
        poll_result: PollResult | None = None,
    ) -> bool | int:
        """Wait until there is a message, or what `event_mask` says; False after `timeout` seconds. POLLSIZE gives the
        number of messages, POLLRESET drops them all."""
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

    # ---- what is known of it

    @property
    def num_msgs(self) -> int:
        """Messages in it."""
        return int(self._its().qsize())

    @property
    def is_local(self) -> bool:
        """Whether it is in the memory of this node."""
        return type(self._its()) is handle.Channel

    def get_pool(self) -> MemoryPool:
        """The default pool of this node."""
        return MemoryPool.default()

    @property
    def default_alloc_pool(self) -> MemoryPool:
        """The same."""
        return MemoryPool.default()

    # ---- its end

    def destroy(self) -> None:
        """End it for all processes: every other use raises ChannelDestroyed."""
        self._its()._destroy()

    def detach(self, serialize: bool = False) -> None:
        """Use it no more in this process."""
        self._channel = None


def _drop_all(channel: handle.Channel) -> bool:
    try:
        while True:
            channel.get(False)
    except queue.Empty:
        return True


def _comes_about(condition: Callable[[], bool], timeout: float | None) -> bool:
    """Look until something holds; False after `timeout` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    sleep = _LONGEST_SLEEP / 50
    while not condition():
        left = _LONGEST_SLEEP if end is None else end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(sleep, left))
        sleep = min(2 * sleep, _LONGEST_SLEEP)
    return True


class _Handle:
    """One end of a channel. Used between open() and close(), or in a block."""

    def __init__(self, channel: Channel, timeout: float | None) -> None:
        self._whole = channel
        self._timeout = checked_seconds("timeout", timeout)
        self._channel: handle.Channel | None = None

    def open(self) -> None:
        """Use it from now on."""
        self._channel = self._whole._its()

    def close(self) -> None:
        """Use it no more."""
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
        """Seconds to wait, 0 for not at all, None for ever."""
        chosen = self._timeout if timeout is _DEFAULT else checked_seconds("timeout", timeout)
        return chosen if blocking else 0.0


class ChannelSendH(_Handle):
    """Sends messages. Made by Channel.sendh()."""

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
        """Send a message. Raises ChannelFull, or after a time ChannelSendTimeout, where there is no room for it."""
        if dest_msg is not None:
            raise NotSupportedError("the receiver chooses where a message goes: recv(dest_msg)")
        data = msg.tobytes()
        self._put((data, msg.hints, msg.clientid) if msg.hints or msg.clientid else data, blocking, timeout)
        if ownership == OwnershipOnSend.transfer_ownership_on_send:
            msg.destroy()

    def send_bytes(
        self, msg_bytes: Any, msg_len: int = 0, blocking: bool = True, timeout: float | None = _DEFAULT
    ) -> None:
        """Send bytes, of which `msg_len` says how many: all by default."""
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
    """Receives messages. Made by Channel.recvh()."""

    USE_CHANNEL_RECVH_DEFAULT = _DEFAULT

    def recv(self, dest_msg: Message | None = None, blocking: bool = True, timeout: float | None = _DEFAULT) -> Message:
        """The next message, in `dest_msg` if that is given: into its memory, which must have room, or with its own.

        Raises ChannelEmpty, or after a time ChannelRecvTimeout, where there is none.
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
        """The bytes of the next message."""
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


class ChannelSet:
    """Several channels to wait for at a time. Taken and unused: the pool, the lock and the number of waiters."""

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
        """The first channel for which the event holds, and the event. Raises ChannelSetTimeout."""
        found: list[Channel] = []

        def look() -> bool:
            found.extend(one for one in self._channels if one.poll(0, event_mask=self._event))
            return bool(found)

        if not _comes_about(look, checked_seconds("timeout", timeout)):
            raise ChannelSetTimeout(f"none of {len(self._channels)} channels was ready within {timeout} s")
        return found[0], int(self._event)


class _ChannelFile:
    """A file over a channel. What is written between open() and close() is one message, which is read as a whole."""

    def __init__(self, channel: Channel, options: Any = None, wait_mode: WaitMode = ADAPTIVE_WAIT) -> None:
        self._channel = channel
        self._file: io.BytesIO | None = None
        self._blocking, self._timeout = True, None

    def set_adapter_timeout(self, blocking: bool = True, timeout: float | None = None) -> None:
        """How long sending or receiving the message may wait; for ever by default."""
        self._blocking, self._timeout = blocking, checked_seconds("timeout", timeout)

    def open(self) -> None:
        """Begin a message."""
        self._file = io.BytesIO()

    def close(self) -> None:
        """End it."""
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
            self._file = None  # half a message is sent to nobody
        self.close()


class Peer2PeerWritingChannelFile(_ChannelFile):
    """A file to write to, as pickle.dump() does."""

    def write(self, buf: Any) -> int:
        """Add to the message."""
        return self._opened().write(buf)

    def close(self) -> None:
        """Send what was written."""
        if self._file is not None:
            data, self._file = self._file.getvalue(), None
            with self._channel.sendh() as sender:
                sender.send_bytes(data, blocking=self._blocking, timeout=self._timeout)


class Peer2PeerReadingChannelFile(_ChannelFile):
    """A file to read from, as pickle.load() does. The message is received when it is first read."""

    _received = False

    def open(self) -> None:
        """Begin with the next message."""
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
        """So many bytes of the message, all by default."""
        return self._message().read(size)

    def readinto(self, buf: Any) -> int:
        """Fill a buffer; how many bytes that were."""
        return self._message().readinto(buf)

    def readline(self) -> bytes:
        """Bytes up to the end of a line."""
        return self._message().readline()


class Many2ManyWritingChannelFile(Peer2PeerWritingChannelFile):
    """The same: messages of several writers do not mix."""


class Many2ManyReadingChannelFile(Peer2PeerReadingChannelFile):
    """The same: each message has one reader."""


def __getattr__(name: str) -> Any:
    if name in ("GatewayMessage", "register_gateways_from_env", "discard_gateways", "ChannelAdapterMsgTypes"):
        raise NotSupportedError(
            f"dragon.channels.{name} is not offered: agents take messages to other nodes themselves"
        )
    raise AttributeError(f"module 'dragon.channels' has no attribute {name!r}")
