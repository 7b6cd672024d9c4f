"""A channel of messages, and a set of channels to wait for."""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec

from dragon.channels.errors import ChannelDestroyed, ChannelError, ChannelSetError, ChannelSetTimeout, ChannelValueError
from dragon.channels.events import ChannelFlags, EventType, FlowControl, LockType, PollResult
from dragon.channels.handles import ChannelRecvH, ChannelSendH
from dragon.dtypes import ADAPTIVE_WAIT, IDLE_WAIT, ReturnWhen, WaitMode
from dragon.infrastructure.errors import DestroyedError, NotSupportedError
from dragon.infrastructure.messages import SerializedName
from dragon.managed_memory import MemoryPool
from dragon.rc import DragonError as Code
from dragon.runtime import handle
from dragon.runtime.arguments import checked_seconds

__all__ = ["Channel", "ChannelSet"]

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
