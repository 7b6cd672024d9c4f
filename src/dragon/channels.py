"""Channels of messages under dragonhpc's names: each is a queue of the run.

A channel is a FIFO queue with any number of senders and receivers on all nodes. It exists while a process has it.
Messages are copied when they are sent. dragon.native.queue.Queue does the same for objects with less code.
"""

from __future__ import annotations

import contextlib
import enum
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NoReturn, Self, TypeVar, cast

from dragon.dtypes import (
    ADAPTIVE_WAIT,
    IDLE_WAIT,
    SPIN_WAIT,
    DragonException,
    DragonObjectDestroyed,
    ReturnWhen,
    WaitMode,
    error_class,
)
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.structs import msgspec
from dragon.managed_memory import MemoryAlloc, MemoryPool, attaching
from dragon.native.queue import Empty, Full, Queue
from dragon.rc import DragonError as Code
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.run import this_run

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

ChannelError = error_class("ChannelError", Code.FAILURE, DragonException)
"""The base class of the errors of channels."""
ChannelTimeout = error_class("ChannelTimeout", Code.TIMEOUT, ChannelError, TimeoutError)
"""An operation did not finish in time."""
ChannelValueError = error_class("ChannelValueError", Code.INVALID_ARGUMENT, ChannelError, ValueError)
"""An argument is invalid."""
ChannelSendError = error_class("ChannelSendError", Code.FAILURE, ChannelError)
"""A message cannot be sent."""
ChannelSendTimeout = error_class("ChannelSendTimeout", Code.TIMEOUT, ChannelSendError, TimeoutError)
"""There was no room for a message in time."""
ChannelFull = error_class("ChannelFull", Code.CHANNEL_FULL, ChannelSendError)
"""There is no room for a message."""
ChannelRecvError = error_class("ChannelRecvError", Code.FAILURE, ChannelError)
"""A message cannot be received."""
ChannelRecvTimeout = error_class("ChannelRecvTimeout", Code.TIMEOUT, ChannelRecvError, TimeoutError)
"""There was no message in time."""
ChannelEmpty = error_class("ChannelEmpty", Code.CHANNEL_EMPTY, ChannelRecvError)
"""There is no message."""
ChannelHandleNotOpenError = error_class("ChannelHandleNotOpenError", Code.FAILURE, ChannelError)
"""A handle was used before open()."""
ChannelDestroyed = error_class("ChannelDestroyed", Code.OBJECT_DESTROYED, ChannelError, DragonObjectDestroyed)
"""The channel was destroyed."""
ChannelBarrierBroken = error_class(
    "ChannelBarrierBroken", Code.BARRIER_BROKEN, ChannelError, threading.BrokenBarrierError
)
"""Never raised: use dragon.native.barrier.Barrier."""
ChannelSetError = error_class("ChannelSetError", Code.FAILURE, DragonException)
"""The base class of the errors of a ChannelSet."""
ChannelSetTimeout = error_class("ChannelSetTimeout", Code.TIMEOUT, ChannelSetError, TimeoutError)
"""No channel of the set had a message in time."""

EventType = enum.IntEnum(
    "EventType", "POLLNOTHING POLLIN POLLOUT POLLINOUT POLLEMPTY POLLFULL POLLSIZE POLLRESET", start=0
)
"""The events that poll() waits for; POLLSIZE returns the number of messages, POLLRESET drops them all. Those of
barriers and semaphores are not supported: dragon.native has both."""
FlowControl = enum.IntEnum(
    "FlowControl", "NO_FLOW_CONTROL RESOURCES_FLOW_CONTROL MEMORY_FLOW_CONTROL MSGS_FLOW_CONTROL", start=0
)
"""Options without effect."""
LockType = enum.IntEnum("LockType", "FIFO LITE GREEDY", start=0)
"""Options without effect."""
ChannelFlags = enum.IntEnum("ChannelFlags", "NO_FLAGS MASQUERADE_AS_REMOTE", start=0)
"""Options without effect."""
OwnershipOnSend = enum.IntEnum("OwnershipOnSend", "copy_on_send transfer_ownership_on_send", start=0)
"""Whether the sender keeps a message after send(), which copies it in both cases, or send() destroys it."""

# What must hold for the number of messages and the capacity of a channel.
_HOLDS: dict[EventType, Callable[[int, int], bool]] = {
    EventType.POLLNOTHING: lambda count, capacity: True,
    EventType.POLLOUT: lambda count, capacity: count < capacity,
    EventType.POLLINOUT: lambda count, capacity: True,  # there is a message, or room for one
    EventType.POLLEMPTY: lambda count, capacity: count == 0,
    EventType.POLLFULL: lambda count, capacity: count >= capacity,
}
_CAPACITY, _BLOCK_SIZE = 100, 1024  # defaults: messages, bytes
_LONGEST_SLEEP_S = 0.005  # seconds at most between two checks of a condition that is polled
_DEFAULT = cast(float, "USE_CHANNEL_HANDLE_DEFAULT")
_numbers = itertools.count(1)
_Bytes = bytes | bytearray | memoryview
_Sent = bytes | tuple[bytes, int, int]  # alone, or with hints and clientid
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass
class PollResult:
    """The result of a poll(): what it returned, as a number, and SUCCESS, or TIMEOUT for False; None before."""

    value: int | None = None
    rc: Code | None = None


class Message:
    """The bytes of a message, and two numbers that the sender chooses: `hints` and `clientid`."""

    def __init__(self, memory: MemoryAlloc | bytearray | None, hints: int = 0, clientid: int = 0) -> None:
        self._memory, self.hints, self.clientid = memory, hints, clientid

    @classmethod
    def create_alloc(
        cls, mpool: MemoryPool, nbytes: int, hints: int = 0, clientid: int = 0, timeout: float | None = None
    ) -> Message:
        """Return a message of `nbytes` bytes in memory of a pool."""
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


class _Openable(Generic[_T]):
    """Something that is used between open() and close(), or in a `with` block."""

    _used: _T | None = None  # what is used meanwhile

    def _begin(self) -> _T:
        raise NotImplementedError

    def open(self) -> None:
        """Open it. Raises ChannelError if the channel was detached."""
        self._used = self._begin()

    def close(self) -> None:
        """Close it."""
        self._used = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._used = None  # do not send an incomplete message
        self.close()

    def _opened(self) -> _T:
        if self._used is None:
            raise ChannelHandleNotOpenError(f"this {type(self).__name__} is not open: open() it, or use it in a block")
        return self._used


class _Handle(_Openable[Queue[_Sent]]):
    """A handle of a channel."""

    _late: tuple[type[DragonException], str]  # the errors with and without waiting
    _now: tuple[type[DragonException], str]

    def __init__(self, channel: Channel, timeout: float | None) -> None:
        self._channel, self._timeout = channel, checked_seconds("timeout", timeout)

    def _begin(self) -> Queue[_Sent]:
        return self._channel._its()

    def _do(self, what: Callable[[Queue[_Sent], bool, float | None], _R], blocking: bool, timeout: float | None) -> _R:
        seconds = self._timeout if timeout is _DEFAULT else checked_seconds("timeout", timeout)
        seconds = seconds if blocking else 0  # 0: do not wait, None: no limit
        try:
            return what(self._opened(), seconds != 0, seconds or None)
        except (Full, Empty):
            error, told = self._late if seconds else self._now
            raise error(f"channel {self._channel.cuid} {told}{f' within {seconds} s' if seconds else ''}") from None
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {self._channel.cuid}: {error}") from error


class ChannelSendH(_Handle):
    """A handle for sending messages, made by Channel.sendh(), whose timeout is meant by USE_CHANNEL_SENDH_DEFAULT."""

    USE_CHANNEL_SENDH_DEFAULT = _DEFAULT
    copy_on_send, transfer_ownership_on_send = OwnershipOnSend
    _late, _now = (ChannelSendTimeout, "had no room"), (ChannelFull, "is full")

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
        self, msg_bytes: _Bytes, msg_len: int = 0, blocking: bool = True, timeout: float | None = _DEFAULT
    ) -> None:
        """Send the first `msg_len` bytes, by default all, as a message. Raises the same exceptions as send()."""
        self._put(bytes(memoryview(msg_bytes).cast("B")[: msg_len or None]), blocking, timeout)

    def _put(self, sent: _Sent, blocking: bool, timeout: float | None) -> None:
        self._do(lambda queue, *wait: queue.put(sent, *wait), blocking, timeout)


class ChannelRecvH(_Handle):
    """A handle for receiving messages, made by Channel.recvh(), whose timeout is meant by USE_CHANNEL_RECVH_DEFAULT."""

    USE_CHANNEL_RECVH_DEFAULT = _DEFAULT
    _late, _now = (ChannelRecvTimeout, "had no message"), (ChannelEmpty, "is empty")

    def recv(self, dest_msg: Message | None = None, blocking: bool = True, timeout: float | None = _DEFAULT) -> Message:
        """Return the next message. It is received into the memory of `dest_msg` if that is given, or as its new memory.

        If there is no message, raises ChannelEmpty, or ChannelRecvTimeout after `timeout` seconds. A message that is
        too large for `dest_msg` is lost, with a ChannelRecvError.
        """
        data, hints, clientid = self._get(blocking, timeout)
        message = Message.create_empty() if dest_msg is None else dest_msg
        if message._memory is None:
            message._memory = bytearray(data)
        else:
            memory = message.bytes_memview()
            if len(memory) < len(data):
                raise ChannelRecvError(f"a message of {len(data)} bytes does not fit into {len(memory)}; it is lost")
            memory[: len(data)] = data
        message.hints, message.clientid = hints, clientid
        return message

    def recv_bytes(self, blocking: bool = True, timeout: float | None = _DEFAULT) -> bytes:
        """Return the bytes of the next message. Raises ChannelEmpty or ChannelRecvTimeout, as recv()."""
        return self._get(blocking, timeout)[0]

    def _get(self, blocking: bool, timeout: float | None) -> tuple[bytes, int, int]:
        found = self._do(Queue.get, blocking, timeout)
        return found if isinstance(found, tuple) else (bytes(found), 0, 0)


class Channel:
    """A FIFO queue of messages.

    Args:
        c_uid: a number for the program's own use: `cuid`.
        capacity: the number of messages that it holds; further sends wait. Default: 100.
        semaphore, bounded_semaphore: not supported; use dragon.native.semaphore.Semaphore.
        policy: a policy that names a host selects the node that holds the channel.

    The other arguments have no effect: the channel is in the memory of its node, and messages are of any size.
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
        *,
        policy: Policy | None = None,
    ) -> None:
        if semaphore or bounded_semaphore:
            raise NotSupportedError("a channel cannot be a semaphore: use dragon.native.semaphore.Semaphore")
        capacity = _CAPACITY if capacity is None else capacity
        if capacity < 1:
            raise ChannelValueError(f"capacity must be at least 1, not {capacity}")
        self._set(Queue(capacity, policy=policy), c_uid, capacity, _BLOCK_SIZE if block_size is None else block_size)

    def _set(self, queue: Queue[_Sent], cuid: int, capacity: int, block_size: int) -> None:
        self._queue: Queue[_Sent] | None = queue
        self.cuid, self.capacity, self.block_size = cuid, capacity, block_size

    @classmethod
    def make_process_local(
        cls,
        pool: MemoryPool | None = None,
        block_size: int | None = None,
        capacity: int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Return a new channel with a number that is unique in the run."""
        return cls(pool, os.getpid() << 32 | next(_numbers), block_size, capacity)

    def destroy_process_local(self, timeout: float | None = None) -> None:
        """Destroy the channel, as destroy()."""
        self.destroy()

    @classmethod
    def attach(cls, serialized_bytes: bytes, mem_pool: MemoryPool | None = None) -> Self:
        """Return the channel that serialize() described, on any node. Raises ChannelError if it does not exist any
        more."""
        found = cls.__new__(cls)
        with attaching("channel", ChannelError, ChannelDestroyed):
            name, *rest = msgspec.msgpack.decode(bytes(serialized_bytes), type=tuple[bytes, int, int, int])
            found._set(Queue.attach(name), *rest)
        return found

    def serialize(self) -> bytes:
        """Return bytes that describe the channel, for attach()."""
        return msgspec.msgpack.encode((self._its().serialize(), self.cuid, self.capacity, self.block_size))

    def _its(self) -> Queue[_Sent]:
        if self._queue is None:
            raise ChannelError(f"channel {self.cuid} was detached", Code.INVALID_OPERATION)
        return self._queue

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
        notification_type: object = None,
        signal: object = None,
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
        try:
            found = self._poll(checked_seconds("timeout", timeout), EventType(event_mask))
        except DestroyedError as error:
            raise ChannelDestroyed(f"channel {self.cuid}: {error}") from error
        if poll_result is not None:
            poll_result.value, poll_result.rc = int(found), Code.TIMEOUT if found is False else Code.SUCCESS
        return found

    def _poll(self, timeout: float | None, event: EventType) -> bool | int:
        queue = self._its()
        if event == EventType.POLLIN:
            return queue.poll(timeout)
        if event == EventType.POLLSIZE:
            return queue.size()
        if event == EventType.POLLRESET:
            with contextlib.suppress(Empty):
                while True:
                    queue.get_nowait()
            return True
        return _comes_about(lambda: _HOLDS[event](queue.size(), self.capacity), timeout)

    # ---- attributes

    @property
    def num_msgs(self) -> int:
        """The number of messages in the channel."""
        return self._its().size()

    @property
    def node(self) -> int:
        """The index of the node that holds the channel."""
        return self._its().node

    @property
    def is_local(self) -> bool:
        """Whether the channel is in the memory of this node."""
        return self.node == this_run().node

    @property
    def default_alloc_pool(self) -> MemoryPool:
        """The default pool of this node."""
        return MemoryPool.default()

    def get_pool(self) -> MemoryPool:
        """Return the default pool of this node."""
        return MemoryPool.default()

    # ---- ending

    def destroy(self) -> None:
        """Destroy the channel for all processes: every later use raises ChannelDestroyed."""
        self._its().destroy()

    def detach(self, serialize: bool = False) -> None:
        """Close the channel in this process."""
        self._queue = None


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
    """Several channels to wait for. Only the channels and `event_mask` have an effect."""

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


class _ChannelFile(_Openable[io.BytesIO]):
    """A file over a channel. The data written between open() and close() is one message, which is read as a whole."""

    def __init__(self, channel: Channel, options: object = None, wait_mode: WaitMode = ADAPTIVE_WAIT) -> None:
        self._channel = channel
        self.set_adapter_timeout()

    def set_adapter_timeout(self, blocking: bool = True, timeout: float | None = None) -> None:
        """Set how long sending or receiving the message may wait, in seconds; None: no limit."""
        self._blocking, self._timeout = blocking, checked_seconds("timeout", timeout)

    def _begin(self) -> io.BytesIO:
        return io.BytesIO()


class Peer2PeerWritingChannelFile(_ChannelFile):
    """A file to write to, for example with pickle.dump(). Messages of several writers are not mixed."""

    def write(self, buf: _Bytes) -> int:
        """Append to the message. Returns the number of bytes."""
        return self._opened().write(buf)

    def close(self) -> None:
        """Send the message."""
        if self._used is not None:
            data, self._used = self._used.getvalue(), None
            with self._channel.sendh() as sender:
                sender.send_bytes(data, blocking=self._blocking, timeout=self._timeout)


class Peer2PeerReadingChannelFile(_ChannelFile):
    """A file to read from, for example with pickle.load(). The message is received at the first read, by one reader."""

    _received: io.BytesIO | None = None

    def _message(self) -> io.BytesIO:
        file = self._opened()
        if self._received is not file:
            with self._channel.recvh() as receiver:
                file.write(receiver.recv_bytes(self._blocking, self._timeout))
            file.seek(0)
            self._received = file
        return file

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes of the message, by default all."""
        return self._message().read(size)

    def readinto(self, buf: bytearray | memoryview) -> int:
        """Read into a buffer and return the number of bytes."""
        return self._message().readinto(buf)

    def readline(self) -> bytes:
        """Return the bytes up to the end of a line."""
        return self._message().readline()


Many2ManyWritingChannelFile = Peer2PeerWritingChannelFile
"""The same class."""
Many2ManyReadingChannelFile = Peer2PeerReadingChannelFile
"""The same class."""


def __getattr__(name: str) -> NoReturn:
    if name in ("GatewayMessage", "register_gateways_from_env", "discard_gateways", "ChannelAdapterMsgTypes"):
        raise AttributeError(f"dragon.channels.{name} is not offered: agents take messages to other nodes themselves")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
