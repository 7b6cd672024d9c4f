"""Awaitable queues, dictionaries, locks, semaphores, events, conditions and barriers."""

from __future__ import annotations

import asyncio
import itertools
import queue as standard
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from dragon import _core
from dragon.aio.waiting import is_here, readable, turn_of, wait
from dragon.data.ddict import DDict
from dragon.data.ddict.handle import equal
from dragon.native.barrier import Barrier as NativeBarrier
from dragon.native.condition import Condition as NativeCondition
from dragon.native.queue import Queue as NativeQueue
from dragon.runtime import handle as handles
from dragon.runtime.connection import Connection
from dragon.runtime.handle import Channel, Words
from dragon.runtime.log import warn_user
from dragon.runtime.remote import RemoteChannel
from dragon.shards.shard import CHANGES, MISSING


class Queue:
    """A queue of the run, or one of multiprocessing with the start method "dragon", with the interface of
    asyncio.Queue.

    Tasks of a loop get and put objects in the order of their calls. Raises TypeError for any other object.
    """

    def __init__(self, queue: object) -> None:
        if not isinstance(queue, Channel):
            raise TypeError(
                f"aio.Queue takes a queue of dragon.native or of multiprocessing with the start method 'dragon', not "
                f"{queue!r}"
            )
        self._queue: Any = queue

    async def get(self) -> Any:
        """Wait for an object and take the oldest one."""
        return await _get(self._queue)

    async def put(self, obj: object) -> None:
        """Wait for room and put an object."""
        await _put(self._queue, obj)

    async def join(self) -> None:
        """Wait until task_done() was called for every object that was put.

        Raises QueueError or TypeError for a queue that is not joinable.
        """
        if isinstance(self._queue, NativeQueue):
            self._queue._check_joinable()
        elif not hasattr(self._queue, "task_done"):
            raise TypeError(f"{type(self._queue).__name__} does not count what is dealt with: use a JoinableQueue")
        await wait(self._queue, "Channel", "join")

    def get_nowait(self) -> Any:
        """Take the oldest object. Raises queue.Empty if there is none."""
        return self._queue.get_nowait()

    def put_nowait(self, obj: object) -> None:
        """Put an object. Raises queue.Full if there is no room."""
        self._queue.put_nowait(obj)

    def task_done(self) -> None:
        """Report that an object that was taken is processed."""
        self._queue.task_done()

    def qsize(self) -> int:
        """Return the number of objects in the queue."""
        return int(self._queue._size())

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return an iterator over the objects as they arrive, without an end."""
        return self._all()

    async def _all(self) -> AsyncIterator[Any]:
        while True:
            yield await self.get()


async def _get(channel: Channel) -> object:
    async with turn_of(channel, "get"):  # also where an object is there: those who came earlier may have to run yet
        if not (is_here(channel) and channel._wait_readable(0)):
            await readable(channel)
        while True:
            try:
                return channel.get_nowait()
            except standard.Empty:  # another process took it
                await readable(channel)


async def _put(channel: Channel, obj: object) -> None:
    async with turn_of(channel, "put"):
        while True:
            with suppress(standard.Full):
                if not (isinstance(channel, RemoteChannel) and channel._is_held_up()):
                    channel.put_nowait(obj)
                    return
            await wait(channel, "Channel", "wait_writable")


async def send(connection: Connection, obj: object) -> None:
    """Wait for room and send an object over a connection. Raises BrokenPipeError once the other end is closed."""
    _check(connection, "send")
    await _put(connection._out(), obj)


async def recv(connection: Connection) -> Any:
    """Wait for the next object of a connection and return it. Raises EOFError once the other end is closed."""
    _check(connection, "recv")
    return await _get(connection._in())


def _check(connection: Connection, name: str) -> None:
    if not isinstance(connection, Connection):
        raise TypeError(
            f"aio.{name}() takes a connection of dragon.native or of multiprocessing with the start method 'dragon', "
            f"not {connection!r}"
        )


_KEY_POLL_S = 0.05  # seconds between two reads of a key whose changes cannot be awaited


class Dict:
    """A distributed dictionary whose keys can be awaited until they are written.

    Use the DDict itself for all other operations, which take microseconds on its own node. Raises TypeError for any
    other object.
    """

    def __init__(self, ddict: DDict) -> None:
        if not isinstance(ddict, DDict):
            raise TypeError(f"aio.Dict takes a DDict, not {ddict!r}")
        self._ddict = ddict

    async def get(self, key: object) -> Any:
        """Wait until a key is written in this checkpoint, and return its value."""
        return await self._until(key, lambda found: True)

    async def wait_for(self, key: object, value: object) -> None:
        """Wait until a key has that value."""
        await self._until(key, lambda found: equal(found, value))

    async def _until(self, key: object, wanted: Callable[[Any], bool]) -> object:
        codec = self._ddict._codec
        found = await self._ddict._scope.await_until(
            codec.key(key), lambda value: value is not MISSING and wanted(codec.loaded(value)), _changed
        )
        return codec.loaded(found)


async def _changed(words: Words | None, seen: int) -> None:
    if words is None:
        await asyncio.sleep(_KEY_POLL_S)
    else:
        await wait(words, "Words", "wait", CHANGES, seen)


T = TypeVar("T")


def _checked(shared: object, kind: type[T]) -> T:
    if not isinstance(shared, kind):
        name = kind.__name__.lower()
        raise TypeError(
            f"this takes a {name} of dragon.native or of multiprocessing with the start method 'dragon', not {shared!r}"
        )
    return shared


_owners = itertools.count(1)  # less than any thread's number


@contextmanager
def _as(owner: int) -> Iterator[None]:
    """Within the block use locks as an owner beside this thread, with 0 as the thread."""
    _core.act_as(_core.myself(), owner)
    try:
        yield
    finally:
        _core.act_as(_core.myself(), 0)


async def _acquire(shared: handles.Lock | handles.Semaphore, kind: str, owner: int = 0) -> None:
    """Acquire a lock or semaphore as an owner."""

    def give_back(answer: tuple[bool, Any]) -> None:
        if answer[0]:
            with _as(owner):
                shared.release()

    with _as(owner):
        if is_here(shared) and shared.acquire(False):
            return
    if await wait(shared, kind, "acquire", owner=owner, late=give_back):
        warn_user(f"the {kind.lower()} was held by a process that died; it is recovered")


class _Acquired:
    """An object for `async with`, which acquires and releases it."""

    acquire: Callable[[], Awaitable[bool]]
    release: Callable[[], None]

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *raised: object) -> None:
        self.release()


class Lock(_Acquired):
    """A lock of the run, for `async with`. One task of a process has it at a time, also if it is an RLock."""

    def __init__(self, lock: object) -> None:
        self._lock = _checked(lock, handles.Lock)
        self._turn: asyncio.Lock | None = None
        self._owner = 0

    async def acquire(self) -> bool:
        """Wait until the lock is free, and acquire it. Returns True."""
        turn = turn_of(self._lock, "acquire")
        await turn.acquire()
        owner = next(_owners)  # of its own, so that an RLock excludes tasks of other loops of this thread too
        try:
            await _acquire(self._lock, "Lock", owner)
        except BaseException:
            turn.release()
            raise
        self._turn, self._owner = turn, owner
        return True

    def release(self) -> None:
        """Release the lock; call this on the wrapper that acquired it."""
        with _as(self._owner):
            self._lock.release()
        if self._turn is not None:
            turn, self._turn = self._turn, None
            turn.release()


class Semaphore(_Acquired):
    """A semaphore of the run, for `async with`."""

    def __init__(self, semaphore: object) -> None:
        self._semaphore = _checked(semaphore, handles.Semaphore)

    async def acquire(self) -> bool:
        """Wait until the counter is above 0, and decrement it. Returns True."""
        async with turn_of(self._semaphore, "acquire"):
            await _acquire(self._semaphore, "Semaphore")
        return True

    def release(self) -> None:
        """Increment the counter."""
        self._semaphore.release()


class Event:
    """An event of the run."""

    def __init__(self, event: object) -> None:
        self._event = _checked(event, handles.Event)

    async def wait(self) -> bool:
        """Wait until the event is set. Returns True."""
        if not (is_here(self._event) and self._event.is_set()):
            await wait(self._event, "Event", "wait")
        return True

    def set(self) -> None:
        """Set the event, and wake all that wait for it."""
        self._event.set()

    def clear(self) -> None:
        """Reset the event."""
        self._event.clear()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return bool(self._event.is_set())


class Condition(Lock):
    """A condition of the run, for `async with`."""

    def __init__(self, condition: object) -> None:
        self._condition = _checked(condition, NativeCondition)
        super().__init__(self._condition._lock)

    async def wait(self) -> bool:
        """Release the lock, wait for a notification, and acquire the lock again. Returns True."""
        with _as(self._owner):
            self._condition._check()
        waiter = self._condition._enter()
        self.release()
        failure: BaseException | None = None
        try:
            await wait(self._condition, "Condition", "sleep", waiter)
        except BaseException as error:
            failure = error
        while True:  # the caller's `async with` block releases the lock, also if this task is cancelled
            try:
                await self.acquire()
                break
            except asyncio.CancelledError as error:
                failure = error
        told = self._condition._leave(waiter)
        if failure is not None:
            if told:
                self._condition._notify(1)  # pass the notification on to another waiter
            raise failure
        return True

    async def wait_for(self, predicate: Callable[[], T]) -> T:
        """Wait until `predicate()` is true, and return its value."""
        while not (found := predicate()):
            await self.wait()
        return found

    def notify(self, n: int = 1) -> None:
        """Notify `n` of the waiting processes and tasks."""
        with _as(self._owner):
            self._condition.notify(n)

    def notify_all(self) -> None:
        """Notify all waiting processes and tasks."""
        self.notify(2**32 - 1)


class Barrier:
    """A barrier of the run, with the rules of threading.Barrier."""

    def __init__(self, barrier: object) -> None:
        self._barrier = _checked(barrier, NativeBarrier)

    async def wait(self) -> int:
        """Wait for the other parties. Returns a number from 0 to parties - 1, different for each.

        Raises threading.BrokenBarrierError if the barrier is broken: by a task that is cancelled, or after the timeout
        with which it was made.
        """
        barrier = self._barrier
        while (place := barrier._arrive())[1] >= barrier.parties:
            await wait(barrier._round, "Words", "wait", 0, place[0])
        if place[1] + 1 == barrier.parties:
            return int(barrier._result(place, barrier._release(place[0])))
        after = None
        try:
            async with asyncio.timeout(barrier._timeout):
                after = await wait(barrier._round, "Words", "wait", 0, place[0])
        except TimeoutError:
            pass
        except BaseException:
            barrier._end(place[0], is_broken=True)
            raise
        return int(barrier._result(place, after))
