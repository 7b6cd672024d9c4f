"""The recent values of all metrics of a node, in memory of fixed size."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping

from dragon.infrastructure.metrics import Aggregate, Kind, Tags
from dragon.infrastructure.series import Record, has, reduced

_MOST_POINTS = 600
_MOST_SERIES = 8192
_BYTES_PER_POINT = 16

_Key = tuple[str, Tags]


class Series:
    """The newest values of one metric with one set of tags, and the number and the sum of all values there were."""

    def __init__(self, name: str, tags: dict[str, str], kind: Kind) -> None:
        self.name = name
        self.tags = tags
        self.kind = kind
        self.count = 0
        self.total = 0.0
        self.last = 0.0
        self.changed = 0.0
        self._times = array("d")
        self._values = array("d")

    def add(self, time: float, value: float) -> bool:
        """Append a value; if there are too many, it replaces the oldest. Return whether the series got longer."""
        place = self.count % _MOST_POINTS
        grows = self.count < _MOST_POINTS
        if grows:
            self._times.append(time)
            self._values.append(value)
        else:
            self._times[place], self._values[place] = time, value
        self.count += 1
        self.total += value
        self.last, self.changed = value, time
        return grows

    def __len__(self) -> int:
        return len(self._times)

    def points(self, start: float, end: float) -> list[tuple[float, float]]:
        """Return the times and values between two times, sorted by time."""
        found = [(t, v) for t, v in zip(self._times, self._values, strict=True) if start <= t <= end]
        return sorted(found, key=lambda point: point[0])


class History:
    """All series. If there are too many, the one that was not written to for the longest time is dropped."""

    def __init__(self) -> None:
        self._series: OrderedDict[_Key, Series] = OrderedDict()
        self._points = 0

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series.values())

    @property
    def size(self) -> int:
        """The bytes that the points take."""
        return self._points * _BYTES_PER_POINT

    def add(self, name: str, tags: Tags, kind: Kind, time: float, value: float) -> None:
        """Add a value. Raises ValueError if the metric is of another kind."""
        key = name, tags
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(name, dict(tags), kind)
            if len(self._series) > _MOST_SERIES:
                _, forgotten = self._series.popitem(last=False)
                self._points -= len(forgotten)
        elif series.kind != kind:
            raise ValueError(f"metric {name!r} is a {series.kind} already, and cannot be a {kind} as well")
        self._series.move_to_end(key)
        self._points += series.add(time, value)

    def last(self, name: str, tags: Tags) -> float:
        """Return the newest value, 0 if there is none."""
        series = self._series.get((name, tags))
        return series.last if series is not None else 0.0

    def names(self) -> set[str]:
        """Return the metrics that have values."""
        return {series.name for series in self}

    def kinds(self) -> dict[str, Kind]:
        """Return the metrics that have values, with their kinds."""
        return {series.name: series.kind for series in self}

    def query(
        self,
        metrics: Collection[str],
        tags: Mapping[str, Collection[str]],
        start: float,
        end: float,
        interval: float,
        aggregate: Aggregate,
    ) -> list[Record]:
        """Return the series of these metrics that have points in the given time, and whose tags have the given values.

        Args:
            tags: for each tag the values that are allowed, "*" for any
            interval: if above 0, the points within each `interval` seconds are combined to one
        """
        found = []
        for series in self:
            if series.name in metrics and has(series.tags, tags):
                points = series.points(start, end)
                times, values = reduced([t for t, _ in points], [v for _, v in points], interval, aggregate)
                if times:
                    found.append((series.name, series.tags, times, values))
        return found
