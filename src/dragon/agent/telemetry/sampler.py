"""Reads all sources periodically, without waiting for any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dragon.agent.telemetry.seen import Seen
from dragon.agent.telemetry.source import Source
from dragon.infrastructure.metrics import Sample
from dragon.runtime.log import runtime_log

__all__ = ["Sampler"]

log = runtime_log("telemetry")

_SAMPLE_TIMEOUT_S = 10.0
_FIRST_SAMPLE_S = 0.1  # seconds over which the first load of the CPUs is measured


class Sampler:
    """Reads all sources every `period` seconds, and gives the values to `store`.

    A source that has not answered yet is not read again.
    """

    def __init__(
        self, sources: list[Source], period: float, look: Callable[[], Seen], store: Callable[[list[Sample]], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sources = sources
        self._period = period
        self._look = look
        self._store = store
        self._asked: dict[Source, tuple[float, asyncio.Future[list[Sample]]]] = {}
        self._told: set[tuple[str, str]] = set()
        self._closed = False
        # Not the loop's own threads, because the loop would wait for their end.
        self._threads = ThreadPoolExecutor(len(sources), "telemetry")
        self._timer = self._loop.call_later(min(period, _FIRST_SAMPLE_S), self._ask)

    def _ask(self) -> None:
        now = self._loop.time()
        self._timer = self._loop.call_later(self._period, self._ask)
        seen = self._look()
        for source in self._sources:
            if source in self._asked:
                waited = now - self._asked[source][0]
                if waited > _SAMPLE_TIMEOUT_S:
                    self._tell(source, "hangs", f"have not been measured for {waited:.0f} s; they are waited for")
                continue
            future = self._loop.run_in_executor(self._threads, source.read, seen)
            self._asked[source] = now, future
            future.add_done_callback(partial(self._answered, source))

    def _answered(self, source: Source, done: asyncio.Future[list[Sample]]) -> None:
        if done.cancelled() or self._closed:
            return
        del self._asked[source]
        error = done.exception()
        if error is not None:
            self._tell(source, type(error).__name__, f"cannot be measured: {error!r}")
        else:
            self._store(done.result())

    def _tell(self, source: Source, what: str, text: str) -> None:
        if (source.name, what) not in self._told:
            self._told.add((source.name, what))
            log.warning("%s %s", source.name, text)

    def close(self) -> None:
        """Stop. Values that are still being read are dropped."""
        self._closed = True
        self._timer.cancel()
        for _, future in self._asked.values():
            future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
