"""Metrics of programs."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from dragon.infrastructure import variables
from dragon.infrastructure.metrics import Kind
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.structs import msgspec
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import AddValue, StartMeasuring, StopMeasuring, TelemetryLevel
from dragon.runtime.run import identity, in_run


class Telemetry:
    """Adds a program's metrics to those of the run. At level 0 it does nothing.

    The level is that of the run when this object was made, or DRAGON_TELEMETRY_LEVEL if no run has begun. When it is
    sent to another process, a new object is made there. `metrics_url` and `timeout` have no effect, as there is no
    service to find. `telem_cfg` is a mapping or the path of a YAML file; only its `collector_rate` is used, the seconds
    between measurements for `start`. Raises OSError, TypeError or ValueError for settings that cannot be read.

    Examples:
        >>> from dragon.telemetry import Telemetry
        >>> telemetry = Telemetry()
        >>> telemetry.start(1)
        >>> telemetry.add_data("loss", 0.25, tags={"model": "small"})
    """

    def __init__(
        self,
        metrics_url: str = "http://localhost:4243/api/metrics",
        timeout: float | None = None,
        telem_cfg: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        self._period = _period_in(telem_cfg)
        # Without telemetry no run is started just to ask for its level.
        self._level: int = ask(TelemetryLevel()) if in_run() or variables.telemetry_level() else 0

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    @property
    def level(self) -> int:
        """The telemetry level of the run; 0 means that nothing is measured."""
        return self._level

    def start(self, telemetry_level: int = 2) -> None:
        """Let all nodes measure at that level from now on. Raises ValueError for an unknown level."""
        level = int(operator.index(telemetry_level))
        ask(StartMeasuring(level, self._period))
        self._level = level

    def shutdown(self) -> None:
        """Stop measuring on all nodes, and discard their values."""
        if self._level:
            ask(StopMeasuring())
            self._level = 0

    def add_data(
        self,
        ts_metric_name: str,
        ts_data: float,
        timestamp: float | None = None,
        telemetry_level: int = 1,
        tagk: str | None = None,
        tagv: str | None = None,
        *,
        tags: Mapping[str, object] | None = None,
    ) -> None:
        """Add a value to a metric, with the present time or `timestamp` (seconds since 1970). Does nothing if the run's
        level is below `telemetry_level`.

        `tags`, or one tag by `tagk` and `tagv`, distinguish series of the same metric; host and process are added
        automatically. Raises ValueError for a name or tag that the runtime uses itself, TypeError for what is not a
        number.
        """
        if (tagk is None) != (tagv is None):
            raise ValueError(f"metric {ts_metric_name!r}: tagk={tagk!r} and tagv={tagv!r}: a tag is a name and a value")
        told = dict(tags or {}) if tagk is None else {tagk: tagv, **(tags or {})}
        self._add(ts_metric_name, ts_data, Kind.GAUGE, timestamp, telemetry_level, told)

    def counter(self, name: str, *, telemetry_level: int = 1, **tags: object) -> Counter:
        """Return a counter, for example of images read or requests answered."""
        return Counter(self, name, telemetry_level, tags)

    def timer(self, name: str, *, telemetry_level: int = 1, **tags: object) -> Timer:
        """Return a context manager that adds the seconds of its block to a metric."""
        return Timer(self, name, telemetry_level, tags)

    def _add(
        self, name: str, value: float, kind: Kind, when: float | None, level: int, tags: Mapping[str, object]
    ) -> None:
        if not name or not isinstance(name, str):
            raise ValueError(f"{name!r} is not a valid name of a metric")
        if taken := {"host", "puid"} & set(tags):
            raise ValueError(f"metric {name!r}: the tag {taken.pop()!r} is set by the run; give yours another name")
        when = plain_number(when)
        if when is not None and not math.isfinite(when):
            raise ValueError(f"metric {name!r}: {when!r} is not a valid time")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"metric {name!r}: {value!r} is not a number") from None
        if not 0 < level <= self._level:
            return
        told = {"puid": str(identity().puid), **{str(tag): str(value) for tag, value in tags.items()}}
        ask(AddValue(name, number, kind, when, told))


def _period_in(settings: Mapping[str, Any] | str | os.PathLike[str] | None) -> float | None:
    if isinstance(settings, (str, os.PathLike)):
        try:
            settings = msgspec.yaml.decode(Path(settings).read_bytes())
        except ValueError as error:
            raise ValueError(f"telem_cfg: {settings} is no YAML: {error}") from None
    if not isinstance(settings, Mapping | None):
        raise TypeError(f"telem_cfg: settings by name, or a YAML file of them, not {settings!r}")
    period = plain_number((settings or {}).get("collector_rate"))
    if period is None:
        return None
    if not isinstance(period, int | float) or not period >= variables.SHORTEST_PERIOD:
        raise ValueError(f"collector_rate={period!r}: the shortest is {variables.SHORTEST_PERIOD} s")
    return period


class _Instrument:
    def __init__(self, telemetry: Telemetry, name: str, level: int, tags: Mapping[str, object]) -> None:
        self._telemetry, self._name, self._level, self._tags = telemetry, name, level, tags

    def _note(self, value: float, kind: Kind) -> None:
        self._telemetry._add(self._name, value, kind, None, self._level, self._tags)


class Counter(_Instrument):
    """A number that only grows.

    Examples:
        >>> from dragon.telemetry import AnalysisClient, Telemetry
        >>> Telemetry().start(1)
        >>> images = Telemetry().counter("images", model="small")
        >>> images.add(64); images.add(32)
        >>> [max(record["dps"].values()) for record in AnalysisClient().get_data("images")]
        [96.0]
    """

    def add(self, count: float = 1) -> None:
        """Increase the counter. Raises ValueError if `count` is negative or not finite."""
        if not -math.inf < count < math.inf:
            raise ValueError(f"counter {self._name!r} cannot grow by {count}")
        if count < 0:
            raise ValueError(f"counter {self._name!r} cannot shrink by {-count}")
        self._note(count, Kind.COUNTER)


class Timer(_Instrument):
    """Measures the duration of its blocks, which may end with an exception and may be nested.

    Examples:
        >>> from dragon.telemetry import AnalysisClient, Telemetry
        >>> Telemetry().start(1)
        >>> with Telemetry().timer("epoch", model="small"):
        ...     _ = sum(range(1000))
        >>> "epoch" in AnalysisClient().get_metrics()
        True
    """

    def __init__(self, telemetry: Telemetry, name: str, level: int, tags: Mapping[str, object]) -> None:
        super().__init__(telemetry, name, level, tags)
        self._begun: list[float] = []

    def __enter__(self) -> Self:
        self._begun.append(time.perf_counter())
        return self

    def __exit__(self, *raised: object) -> None:
        self._note(time.perf_counter() - self._begun.pop(), Kind.SUMMARY)
