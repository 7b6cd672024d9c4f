"""Awaitable queues and connections."""

from __future__ import annotations

import queue as standard
from collections.abc import AsyncIterator
from typing import Any

from dragon.aio.waiting import is_here, readable, turn_of, wait
from dragon.native.queue import Queue as NativeQueue
from dragon.runtime.connection import Connection
from dragon.runtime.handle import Channel
from dragon.runtime.remote import RemoteChannel

__all__ = ["Queue", "recv", "send"]


class Queue:
    """A queue of the run, or one of multiprocessing with the start method "dragon", with the interface of
    asyncio.Queue.

    Tasks of a loop get and put objects in the order of their calls. Raises TypeError for any other object.
    """

    def __init__(self, queue: Any) -> None:
        if not isinstance(queue, Channel):
            raise TypeError(
                f"aio.Queue takes a queue of dragon.native or of multiprocessing with the start method 'dragon', not "
                f"{queue!r}"
            )
        self._queue: Any = queue

    async def get(self) -> Any:
        """Wait for an object and take the oldest one."""
        return await _get(self._queue)

    async def put(self, obj: Any) -> None:
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

    def put_nowait(self, obj: Any) -> None:
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


async def _get(channel: Channel) -> Any:
    async with turn_of(channel, "get"):  # also where an object is there: those who came earlier may have to run yet
        if not (is_here(channel) and channel._wait_readable(0)):
            await readable(channel)
        while True:
            try:
                return channel.get_nowait()
            except standard.Empty:  # another process took it
                await readable(channel)


async def _put(channel: Channel, obj: Any) -> None:
    async with turn_of(channel, "put"):
        while not _try_put(channel, obj):
            await wait(channel, "Channel", "wait_writable")


def _try_put(channel: Channel, obj: Any) -> bool:
    if isinstance(channel, RemoteChannel) and channel._is_held_up():
        return False
    try:
        channel.put_nowait(obj)
    except standard.Full:
        return False
    return True


async def send(connection: Connection, obj: Any) -> None:
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
