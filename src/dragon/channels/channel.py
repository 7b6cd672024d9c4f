"""A channel, and several to wait for at a time."""

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

_CAPACITY, _BLOCK_SIZE = 100, 1024  # where none is given
_LONGEST_SLEEP_S = 0.005  # seconds between looks at what cannot be slept on
_numbers = itertools.count(1)


class _Told(msgspec.Struct, array_like=True):
    """What serialize() says of a channel."""

    channel: SerializedName
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
    sleep = _LONGEST_SLEEP_S / 50
    while not condition():
        left = _LONGEST_SLEEP_S if end is None else end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(sleep, left))
        sleep = min(2 * sleep, _LONGEST_SLEEP_S)
    return True


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
