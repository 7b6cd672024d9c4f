"""Awaiting the results of a pool."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from dragon.native.collecting import Collector
from dragon.native.results import ApplyResult, IMapIterator

__all__ = ["result", "results"]


async def result(pending: ApplyResult) -> Any:
    """What apply_async(), map_async() or starmap_async() of a pool returned, once it is there. Raises what the function
    raised."""
    await _collecting(pending._collector).until(pending.ready)
    return pending.get()


async def results(iterator: IMapIterator) -> AsyncIterator[Any]:
    """What imap() or imap_unordered() of a pool gives, as it comes. Raises what the function raised."""
    arrivals = _collecting(iterator._collector)
    while True:
        await arrivals.until(iterator.is_due)
        try:
            found = iterator.next(0)
        except StopIteration:
            return
        except (TimeoutError, multiprocessing.TimeoutError):
            continue  # another task took it
        yield found


class _Collecting:
    """One loop's collecting of a pool's results, while any of its tasks waits for one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collector: Collector) -> None:
        self.loop, self._collector = loop, collector
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, which is looked at once results have come."""
        if done():
            return
        found: asyncio.Future[None] = self.loop.create_future()
        if not self._waiting:
            self.loop.add_reader(self._collector.fileno(), self._collector.poll)
            self._collector.listeners.append(self._on_results)
        self._waiting[found] = done
        try:
            self._look()  # it may have come before this listened
            await found
        finally:
            del self._waiting[found]
            if not self._waiting:
                self._collector.listeners.remove(self._on_results)
                self.loop.remove_reader(self._collector.fileno())

    def _on_results(self) -> None:
        self.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        for found, done in list(self._waiting.items()):
            if not found.done() and done():
                found.set_result(None)


class _Mine(threading.local):
    collecting: _Collecting | None = None


_mine = _Mine()


def _collecting(collector: Collector) -> _Collecting:
    """This loop's."""
    loop = asyncio.get_running_loop()
    known = _mine.collecting
    if known is None or known.loop is not loop or known._collector is not collector:
        known = _mine.collecting = _Collecting(loop, collector)
    return known
