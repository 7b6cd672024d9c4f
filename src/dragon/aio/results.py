"""Awaits the results of a pool, or of a batch."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from dragon.aio.waiting import wait
from dragon.infrastructure.errors import DestroyedError
from dragon.native.collecting import Collector
from dragon.native.process_group import ProcessGroup
from dragon.native.results import ApplyResult, Elements, IMapIterator
from dragon.runtime import processes
from dragon.runtime.handle import Words
from dragon.runtime.spawning import RUNNING, STATUS


async def join(process: Any) -> Any:
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


class _Promise(Protocol):
    def listen(self, listener: Callable[[], object]) -> None: ...

    def unlisten(self, listener: Callable[[], object]) -> None: ...


class _Task(Protocol):
    """A task of a batch."""

    _promise: _Promise

    def get(self, block: bool = True) -> Any: ...


async def result(pending: ApplyResult | _Task) -> Any:
    """Wait for a result of apply_async(), map_async() or starmap_async() of a pool, or of a task of a batch, and return
    it. Raises what the function raised, and for a task what its get() raises."""
    if isinstance(pending, ApplyResult):
        await _until(pending._collector, pending.ready)
        return pending.get()
    await _outcome(pending._promise)
    return pending.get(block=False)


async def _outcome(promise: _Promise) -> None:
    loop = asyncio.get_running_loop()
    there = asyncio.Event()

    def wake() -> None:  # in the thread of the batch
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(there.set)

    promise.listen(wake)
    try:
        await there.wait()
    finally:
        promise.unlisten(wake)


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
