"""Small helper functions for programs, and a timer of their parts."""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import threading
import time
from collections.abc import Hashable
from hashlib import blake2b
from pathlib import Path
from typing import Self

from dragon.files import whole_file, write_bytes
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.nodes import own_node
from dragon.runtime.run import this_run
from dragon.telemetry import Telemetry

__all__ = [
    "B64",
    "TimeKeeper",
    "b64decode",
    "b64encode",
    "get_cpu_count",
    "get_local_kv",
    "hash",
    "host_id",
    "set_local_kv",
    "strtobool",
]


class B64:
    """Bytes whose str() is their base64 text. Raises TypeError for what is not bytes."""

    def __init__(self, data: bytes) -> None:
        self._text = self.bytes_to_str(data)

    def __str__(self) -> str:
        return self._text

    def decode(self) -> bytes:
        """Return the bytes."""
        return self.str_to_bytes(self._text)

    @classmethod
    def from_str(cls, serialized_str: str) -> Self:
        """Return the B64 object of a base64 text. Raises ValueError for invalid text."""
        return cls(cls.str_to_bytes(serialized_str))

    @staticmethod
    def bytes_to_str(the_bytes: bytes) -> str:
        """Return the base64 text of bytes. Raises TypeError for what is not bytes."""
        if not isinstance(the_bytes, bytes | bytearray | memoryview):
            raise TypeError(f"expected bytes, not {type(the_bytes).__name__}")
        return base64.b64encode(the_bytes).decode("ascii")

    @staticmethod
    def str_to_bytes(the_str: str) -> bytes:
        """Return the bytes of base64 text. Raises ValueError for invalid text."""
        try:
            return base64.b64decode(the_str, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{the_str[:40]!r} is not base64: {error}") from None


b64encode = B64.bytes_to_str
"""Return the base64 text of bytes. Raises TypeError for what is not bytes."""
b64decode = B64.str_to_bytes
"""Return the bytes of base64 text. Raises ValueError for invalid text."""


def host_id() -> int:
    """Return the number of this node, unique in the run: its `h_uid`."""
    from dragon.native.machine import current

    return current().h_uid


def hash(byte_str: bytes) -> int:
    """Return a 32-bit hash of bytes, the same in every process and every run."""
    return int.from_bytes(blake2b(byte_str, digest_size=4).digest(), "little")


def get_cpu_count() -> int:
    """Return the number of CPUs of this node that the run may use."""
    from dragon.native.machine import current

    return current().num_cpus


def strtobool(val: str) -> bool:
    """Return True for "yes", "true", "on", "1" and the like, False for their opposites. Raises ValueError for other
    text."""
    word = val.strip().lower()
    if word in ("y", "yes", "t", "true", "on", "1"):
        return True
    if word in ("n", "no", "f", "false", "off", "0"):
        return False
    raise ValueError(f"{val!r} says neither yes nor no")


_POLL_S = 0.01


def _file(key: str) -> Path:
    if not isinstance(key, str):
        raise TypeError(f"a key is a string, not {key!r}")
    folder = this_run().folder / "values"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / blake2b(os.fsencode(key), digest_size=16).hexdigest()


def set_local_kv(key: str, value: str, timeout: float | None = None) -> None:
    """Set a value for all processes of this node. `timeout` has no effect. Raises TypeError if the key or the value is
    not a string."""
    if not isinstance(value, str):
        raise TypeError(f"a value is a string, not {value!r}")
    with whole_file(_file(key)) as file:  # atomic: a concurrent reader gets the old value, or this one
        write_bytes(file, value.encode("utf-8", "surrogatepass"))


def get_local_kv(key: str, timeout: float | None = None) -> str:
    """Return the value that a process of this node has set; waits for it up to `timeout` seconds. Raises KeyError if
    there is none."""
    timeout = checked_seconds("timeout", timeout)
    end = time.monotonic() + (timeout or 0)
    path = _file(key)
    while True:
        try:
            return path.read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            if time.monotonic() >= end:
                raise KeyError(key) from None
            time.sleep(_POLL_S)


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

        def __exit__(self, *raised: object) -> None:
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
