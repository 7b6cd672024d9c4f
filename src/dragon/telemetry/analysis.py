"""Queries of the metrics of all nodes of a run, or of a recording."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.metrics import AGGREGATES, Aggregate, Lifetime
from dragon.lazy_modules import name_of_package
from dragon.runtime.agent_client import ask
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.protocol.telemetry import Kinds, Lifetimes, Query, TelemetryLevel
from dragon.telemetry.recording import NoRecordingError, Recording

_WINDOW_S = 300.0
_POLL_S = 0.05
_MIN_INTERVAL_S = 0.001


class AnalysisClient:
    """Reads the metrics of the run, from any of its processes. Each node keeps the last 600 values of each of its
    metrics, which is ten minutes with the default period.

    With a `path` it reads a recording that `dragon --telemetry` has made, and needs no run: the path is its folder, or
    a directory of several, of which the newest is used. Raises NoRecordingError if there is none.

    Examples:
        >>> from dragon.telemetry import AnalysisClient, Telemetry
        >>> Telemetry().start(1)
        >>> Telemetry().add_data("accuracy", 0.75, tags={"model": "small"})
        >>> (record,) = AnalysisClient().get_data("accuracy", {"model": ["small", "large"]})
        >>> record["tags"]["model"], list(record["dps"].values())
        ('small', [0.75])
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._recording = None if path is None else Recording(path)

    def connect(self, timeout: float | None = None) -> None:
        """Wait until the run has telemetry enabled. Returns at once for a recording.

        Raises RuntimeError if it is not enabled within `timeout` seconds; None does not wait.
        """
        end = time.monotonic() + (checked_seconds("timeout", timeout) or 0.0)
        while self._recording is None and not ask(TelemetryLevel()):
            if time.monotonic() >= end:
                raise RuntimeError(
                    "the run has no telemetry: start it with `dragon --telemetry-level 2`, or call Telemetry().start()"
                )
            time.sleep(_POLL_S)

    def get_metrics(self) -> set[str]:
        """Return the names of the metrics that have values on some node."""
        return {name for name, _ in ask(Kinds())} if self._recording is None else self._recording.names()

    def get_data(
        self,
        metrics: str | Iterable[str],
        tags: Mapping[str, object] | None = None,
        start_time: float | None = None,
        *,
        end_time: float | None = None,
        interval: float = 1.0,
        aggregate: Aggregate = "last",
    ) -> list[dict[str, Any]]:
        """Return the values of metrics, one record for each set of tags, since `start_time` (default: five minutes ago;
        for a recording, all).

        `tags` selects series: each tag must have the value, or one of the values; "*" matches any. The values within
        each `interval` seconds are reduced to one by `aggregate`: last, avg, min, max, sum, count or dev (standard
        deviation). With `interval=0` they are not reduced.

        A record has `metric`, `tags`, and `dps`: values by time, which is a string, in seconds since 1970. Raises
        ValueError for an unknown aggregate, or an interval that is neither 0 nor at least 0.001 s.
        """
        if aggregate not in AGGREGATES:
            raise ValueError(f"aggregate={aggregate!r}: there are {', '.join(AGGREGATES)}")
        interval = checked_seconds("interval", interval)
        start_time, end_time = checked_seconds("start_time", start_time), checked_seconds("end_time", end_time)
        if interval != 0 and not _MIN_INTERVAL_S <= interval < math.inf:
            raise ValueError(f"interval={interval}: it must be 0, or at least {_MIN_INTERVAL_S} seconds")
        now = time.time()
        since, until = (now - _WINDOW_S, now) if self._recording is None else (-math.inf, math.inf)
        question = Query(
            metrics=[metrics] if isinstance(metrics, str) else list(metrics),
            tags={name: _choices(wanted) for name, wanted in (tags or {}).items()},
            start=since if start_time is None else start_time,
            end=until if end_time is None else end_time,
            interval=interval,
            aggregate=aggregate,
        )
        records = ask(question) if self._recording is None else self._recording.answer(question)
        return [
            {
                "metric": name,
                "tags": told,
                "aggregateTags": [],
                "dps": {_text(when): value for when, value in zip(times, values, strict=True)},
            }
            for name, told, times, values in records
        ]

    def get_lifetimes(self, since: float = 0.0) -> list[Lifetime]:
        """Return the processes of the run that are alive, or have ended since that time (seconds since 1970). Available
        at any telemetry level."""
        since = checked_seconds("since", since) or 0.0
        if self._recording is not None:
            return [one for one in self._recording.lifetimes() if one.ended is None or one.ended >= since]
        return ask(Lifetimes(since))

    def db_dump(self, directory: str | Path = ".") -> Path:
        """Write all values that the nodes have in memory to a new folder within `directory` on this node, and return
        its path. It can be read like a recording: with AnalysisClient(path), `dragon dashboard PATH`, or any program
        that reads Parquet.

        Raises RuntimeError if telemetry is not enabled, NoRecordingError if pyarrow is missing, OSError if the files
        cannot be written, and ValueError for the client of a recording, which consists of files already.
        """
        if self._recording is not None:
            raise ValueError(f"this client reads a recording, which is in files already: {self._recording.folder}")
        if importlib.util.find_spec("pyarrow") is None:
            raise NoRecordingError("db_dump() needs pyarrow: pip install 'dragon-runtime[telemetry]'")
        from dragon.telemetry.recorded_file import dump

        self.connect()
        return dump(Path(directory))

    def reboot(self, *, exclude_huids: object = None, exclude_hostnames: object = None) -> None:
        """Raise NotSupportedError."""
        raise NotSupportedError("a run does not reboot its nodes; `dragon --resilient` continues without a lost one")


def _choices(wanted: object) -> list[str]:
    """Return the values that a tag may have, as strings."""
    if isinstance(wanted, Iterable) and not isinstance(wanted, str):
        return [str(one) for one in wanted]
    return [str(wanted)]


def _text(when: float) -> str:
    return str(int(when)) if when == int(when) else repr(when)


def __getattr__(name: str) -> Any:
    return name_of_package("dragon.telemetry", __name__, name)  # programs import all of the package's from here
