"""Awaits objects of the run, results of a pool or a batch, and the ends of processes.

A task waits through the desk of the agent, or through a file descriptor of a channel of this node, which is faster.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

from dragon import _core
from dragon.infrastructure.errors import DestroyedError, RunEndedError
from dragon.infrastructure.start_request import RUNNING, STATUS
from dragon.native.collecting import Collector
from dragon.native.process_group import ProcessGroup
from dragon.native.results import ApplyResult, Elements, IMapIterator
from dragon.runtime import processes
from dragon.runtime.agent_client import ask
from dragon.runtime.copies import refresh, write_back
from dragon.runtime.handle import Channel, Words
from dragon.runtime.protocol.objects import OpenDesk
from dragon.runtime.remote import node_of
from dragon.runtime.run import this_run

if TYPE_CHECKING:
    from dragon.infrastructure.start_request import Name
    from dragon.native.process import Process
    from dragon.workflows.batch.task import Task

_MOST_BELLS = 128  # channels of a process that are awaited through their own descriptors, which is faster
_BRIEFLY_S = 5e-5  # seconds for which the whole loop blocks, for a message that is likely to arrive at once
_MOST_PASSED = 64  # waits, at most, that do without this while messages do not arrive at once


class _Handle(Protocol):
    def _name(self) -> tuple[int, int, int]: ...


def is_here(handle: _Handle) -> bool:
    """Return whether an object is on this node, so that reading its state takes microseconds."""
    return node_of(handle._name()) == this_run().node


async def wait(
    handle: _Handle,
    kind: str,
    method: str,
    *given: int,
    owner: int = 0,
    late: Callable[[tuple[bool, Any]], object] | None = None,
) -> Any:
    """Wait until that method of an object of that kind succeeds, and return its result. Raises what it raises.

    Locks are acquired for `owner`, in place of this thread. If the caller is cancelled, `late` is called with the
    outcome of a method that succeeded nevertheless.
    """
    if is_here(handle):
        if not _core.desk()[0]:
            ask(OpenDesk())
        return await _line().perform(handle._name(), f"{kind}.{method}", given, owner, late)
    write_back()
    value = await _line().perform(handle._name(), f"{kind}.{method}", given, owner, late)
    refresh()
    return value


_Late = Callable[[tuple[bool, Any]], object]


class _Line:
    """The operations that one event loop waits for. A forked child makes its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.key = (os.getpid(), this_run().folder)
        self._line = _core.Line()
        self._asked: dict[int, tuple[asyncio.Future[Any], _Late | None]] = {}
        self.is_lost = False  # the agent has ended
        self._agent = _core.open_process(this_run().agent.pid)
        loop.add_reader(self._line.fileno(), self._take)
        loop.add_reader(self._agent, self._lose)

    def __del__(self) -> None:
        if hasattr(self, "_agent"):
            os.close(self._agent)

    async def perform(self, name: Name, kind: str, given: tuple[int, ...], owner: int, late: _Late | None) -> object:
        what = _core.OPERATIONS[kind]
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self._line.ask(what, name, given, owner)
        self._asked[number] = answer, late
        try:
            return await answer
        except asyncio.CancelledError:
            if number in self._asked:
                self._line.cancel(number)
            elif late is not None and not answer.cancelled() and answer.exception() is None:
                late((True, answer.result()))  # the answer arrived just before this task was cancelled
            raise

    def _take(self) -> None:
        for number, cancelled, value, error in self._line.take():
            answer, late = self._asked.pop(number)
            if answer.done():
                if not cancelled and error is None and late is not None:
                    late((True, value))
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

    def _lose(self) -> None:
        asyncio.get_running_loop().remove_reader(self._agent)
        self.is_lost = True
        asked, self._asked = self._asked, {}
        for answer, _ in asked.values():
            if not answer.done():
                answer.set_exception(RunEndedError(f"the agent of the run in {self.key[1]} has ended"))


def _line() -> _Line:
    loop = asyncio.get_running_loop()
    known = _mine.lines.get(loop)
    if known is None or known.key != (os.getpid(), this_run().folder) or known.is_lost:
        try:
            known = _mine.lines[loop] = _Line(loop)
        except ProcessLookupError:
            this_run().check()
            raise RunEndedError("the agent of the run has ended") from None
    return known


_Turns = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[Any, asyncio.Lock]]


class _Mine(threading.local):
    """The state of a thread: for each of its loops the lock of each object whose turns its tasks take."""

    passed = 0  # waits that are left until one blocks the loop briefly again
    to_pass = 1  # the value for `passed` after a brief wait without a message

    def __init__(self) -> None:
        self.turns: _Turns = weakref.WeakKeyDictionary()
        self.lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()


_mine = _Mine()
_bells: set[tuple[int, int]] = set()


def turn_of(handle: _Handle, what: str) -> asyncio.Lock:
    """Return the lock that tasks of this loop hold while they perform the operation `what` on an object.

    So only one of many waiting tasks waits outside of the loop, and they are served in the order in which they came.
    """
    turns = _mine.turns.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    name = handle._name()
    key = (*name[:2], node_of(name), what)  # objects of several nodes may have the same offset
    turn = turns.get(key)
    if turn is None:
        turn = turns[key] = asyncio.Lock()
    return turn


async def readable(channel: Channel) -> None:
    """Wait until a channel has an object to get, or no writer is left."""
    if not is_here(channel):
        await wait(channel, "Channel", "wait_readable")
        return
    if _comes_at_once(channel):
        return
    if not _may_ring(channel._name()[:2]):
        await wait(channel, "Channel", "wait_readable")
        return
    loop, rung, bell = asyncio.get_running_loop(), asyncio.Event(), channel._fileno()
    loop.add_reader(bell, rung.set)
    try:
        await rung.wait()
    finally:
        loop.remove_reader(bell)


def _may_ring(name: tuple[int, int]) -> bool:
    """Return whether a channel is one of those that are awaited through their own descriptors."""
    if name not in _bells:
        if len(_bells) >= _MOST_BELLS:
            # Of a copy, as loops of other threads add some meanwhile.
            _bells.difference_update([each for each in list(_bells) if not _core.exists(*each)])
        if len(_bells) >= _MOST_BELLS:
            return False
        _bells.add(name)
    return True


def _comes_at_once(channel: Channel) -> bool:
    """Return whether an object arrives within microseconds, blocking the loop for that long. If two processes answer
    each other at once, a turn of the event loop would take longer. While nothing arrives, this is tried less and less
    often."""
    if _mine.passed > 0:
        _mine.passed -= 1
        return False
    if channel._wait_readable(_BRIEFLY_S):
        _mine.to_pass = 1
        return True
    _mine.passed, _mine.to_pass = _mine.to_pass, min(2 * _mine.to_pass, _MOST_PASSED)
    return False


async def join(process: ProcessGroup | BaseProcess | Process) -> Any:
    """Wait for a process or ProcessGroup to end. Returns or raises what its own join() does.

    `process` is one of dragon.native, or of multiprocessing with the start method "dragon"; TypeError for one of
    another start method.
    """
    if isinstance(process, ProcessGroup):
        await process._wait_with(lambda words, word, value: wait(words, "Words", "wait", word, value))
        return process.join()
    if process.is_alive() if isinstance(process, BaseProcess) else process.is_alive:
        known = await asyncio.to_thread(processes.look_up, _puid(process))
        if known.ecode is None and known.record is not None:
            with suppress(DestroyedError):  # it has ended meanwhile
                await wait(Words._attached(known.record), "Words", "wait", STATUS, RUNNING)
    return await asyncio.to_thread(process.join)  # which waits for messages that a process of another node has put


def _puid(process: object) -> int:
    """Return the puid of a process. Raises TypeError for one of another start method."""
    puid = getattr(getattr(process, "_popen", process), "puid", None)
    if puid is None:
        raise TypeError(f"aio.join() takes processes of the start method 'dragon', not {process!r}")
    return int(puid)


async def result(pending: ApplyResult | Task) -> Any:
    """Wait for a result of apply_async(), map_async() or starmap_async() of a pool, or of a task of a batch, and return
    it. Raises what the function raised, and for a task what its get() raises."""
    if isinstance(pending, ApplyResult):
        await _until(pending._collector, pending.ready)
        return pending.get()
    loop, there = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:  # in the thread of the batch
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(there.set)

    pending._promise.listen(wake)
    try:
        await there.wait()
    finally:
        pending._promise.unlisten(wake)
    return pending.get(block=False)


async def results(iterator: IMapIterator | Elements) -> AsyncIterator[Any]:
    """Yield the results of imap() or imap_unordered() of a pool as they arrive. Raises what the function raised."""
    if isinstance(iterator, Elements):
        async for part in results(iterator.parts):
            for element in part:
                yield element
        return
    while True:
        await _until(iterator._collector, iterator.is_due)
        try:
            found = iterator.next(0)
        except StopIteration:
            return
        except (TimeoutError, multiprocessing.TimeoutError):
            continue  # another task took it
        yield found


class _Collecting:
    """Collects a pool's results for one event loop, while any of its tasks waits for one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collector: Collector) -> None:
        self.loop, self._collector = loop, collector
        self.waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        loop.add_reader(collector.fileno(), collector.poll)
        collector.listeners.append(self._on_results)

    def close(self) -> None:
        """Stop collecting: no task waits any more."""
        self._collector.listeners.remove(self._on_results)
        self.loop.remove_reader(self._collector.fileno())

    def look(self) -> None:
        """Wake the tasks whose results have arrived."""
        for found, done in list(self.waiting.items()):
            if not found.done() and done():
                found.set_result(None)

    def _on_results(self) -> None:
        self.loop.call_soon_threadsafe(self.look)


_collecting: dict[tuple[asyncio.AbstractEventLoop, Collector], _Collecting] = {}


async def _until(collector: Collector, done: Callable[[], bool]) -> None:
    """Wait until `done()` is true, which is checked when results have arrived."""
    if done():
        return
    loop = asyncio.get_running_loop()
    collecting = _collecting.get((loop, collector))
    if collecting is None:
        collecting = _collecting[loop, collector] = _Collecting(loop, collector)
    found: asyncio.Future[None] = loop.create_future()
    collecting.waiting[found] = done
    try:
        collecting.look()  # the result may have arrived before the listener was added
        await found
    finally:
        del collecting.waiting[found]
        if not collecting.waiting:
            del _collecting[loop, collector]
            collecting.close()
