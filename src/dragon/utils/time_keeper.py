"""Measures where a program spends its time: adds up seconds by name, and sends the sums to the run's telemetry."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Hashable
from types import TracebackType
from typing import Self

from dragon.runtime.nodes import own_node
from dragon.telemetry import Telemetry

__all__ = ["TimeKeeper"]


class TimeKeeper:
    """Adds up seconds by id, if `recording` is True or the run has telemetry enabled.

    In a run with telemetry (`dragon --telemetry-level`) a thread sends the sums every `collection_window` seconds, and
    the rest at stop() or the program's end, as the metric `timekeeper_name` with the tags `id` and `hostname`. Sent
    sums start again at 0, unless `clear_all` is False.

        timings = TimeKeeper("solver", recording=True)
        with timings.record("assemble"):
            ...
        print(timings)

    Threads may share it. Raises ValueError for a `collection_window` that is not positive.
    """

    def __init__(
        self,
        timekeeper_name: str = "",
        recording: bool = False,
        collection_window: float = 10.0,
        clear_all: bool = True,
    ) -> None:
        if not collection_window > 0:
            raise ValueError(f"collection_window must be a positive number of seconds, not {collection_window!r}")
        self._name = timekeeper_name or "timekeeper"
        self._recording = recording
        self._window = collection_window
        self._clear_all = clear_all
        self._timings: dict[Hashable, float] = {}
        self._lock = threading.RLock()
        self._telemetry = Telemetry()
        self._stopping = threading.Event()
        self._sender: threading.Thread | None = None
        if self._telemetry.level > 0:
            self.start_telemetry()

    class Recorder:
        """Adds the duration of its block, also if that ends with an exception."""

        def __init__(self, timekeeper: TimeKeeper, id: Hashable, start: float | None = None) -> None:
            self._timekeeper = timekeeper
            self._id = id
            self._begun = start

        def __enter__(self) -> Self:
            if self._begun is None:
                self._begun = self._timekeeper.now()
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            assert self._begun is not None
            self._timekeeper.add(self._id, self._begun)
            self._begun = None

    def record(self, id: Hashable, start: float | None = None) -> Recorder:
        """Return a context manager that adds the seconds from `start` (a value of now()), or from the beginning of its
        block, to its end."""
        return self.Recorder(self, id, start)

    @staticmethod
    def now() -> float:
        """Return the seconds of a monotonic clock."""
        return time.perf_counter()

    def add(self, id: Hashable, start: float, end: float | None = None) -> None:
        """Add the seconds between two values of now(); `end` is the present time by default."""
        self.add_elapsed(id, (self.now() if end is None else end) - start)

    def add_elapsed(self, id: Hashable, elapsed: float) -> None:
        """Add `elapsed` seconds to an id."""
        if self._recording or self._sender is not None:
            with self._lock:
                self._timings[id] = self._timings.get(id, 0) + elapsed

    def reset(self, id: Hashable) -> None:
        """Set the sum of an id to 0."""
        with self._lock:
            if id in self._timings:
                self._timings[id] = 0

    def reset_all(self) -> None:
        """Remove all ids."""
        with self._lock:
            self._timings.clear()

    def empty(self) -> bool:
        """Return whether nothing is recorded."""
        return not self._timings

    def get_timings(self) -> dict[Hashable, float]:
        """Return the seconds by id."""
        with self._lock:
            return dict(self._timings)

    def __str__(self) -> str:
        timings = self.get_timings()
        if not timings:
            return "Nothing was recorded" + ("" if self._recording else "; recording=True records")
        width = max(len(str(id)) for id in timings)
        return "\n".join(f"{id!s:{width}}  {seconds:10.6f} s" for id, seconds in timings.items())

    # ---- telemetry

    def start_telemetry(self) -> None:
        """Start to send what is recorded from now on to the run's telemetry."""
        if self._sender is None:
            self._stopping.clear()
            self._sender = threading.Thread(target=self._send_on, name=f"timekeeper {self._name}", daemon=True)
            self._sender.start()
            atexit.register(self.stop)

    def stop(self) -> None:
        """Send the rest, and stop sending."""
        sender, self._sender = self._sender, None
        if sender is not None:
            atexit.unregister(self.stop)
            self._stopping.set()
            sender.join()
            self._send()

    def _send_on(self) -> None:
        while not self._stopping.wait(self._window):
            self._send()

    def _send(self) -> None:
        with self._lock:
            timings = {id: seconds for id, seconds in self._timings.items() if seconds}
            if self._clear_all:
                self._timings.update(dict.fromkeys(timings, 0.0))
        for id, seconds in timings.items():
            self._telemetry.add_data(self._name, seconds, tags={"id": id, "hostname": own_node().host_name})
