"""Values of metrics over time: selection by tags, and aggregation over intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from dragon.infrastructure.metrics import Aggregate

# Name, tags, times and values of one series, in order of time.
Record = tuple[str, dict[str, str], list[float], list[float]]

_REDUCE: dict[Aggregate, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "avg": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "sum": sum,  # fsum refuses infinities, but a loss that diverged must be visible
    "count": lambda values: float(len(values)),
    "dev": lambda values: math.dist(values, [sum(values) / len(values)] * len(values)) / math.sqrt(len(values)),
}


def has(tags: Mapping[str, str], wanted: Mapping[str, Collection[str]]) -> bool:
    """Return whether each wanted tag has one of its values; "*" means any value."""
    return all(name in tags and ("*" in values or tags[name] in values) for name, values in wanted.items())


_SHORTEST = 1e-6  # seconds


def reduced(
    times: list[float], values: list[float], interval: float, aggregate: Aggregate
) -> tuple[list[float], list[float]]:
    """Aggregate the values within each interval of `interval` seconds to one, at the start of the interval.

    With 0, or less than a microsecond, which times since 1970 cannot resolve, the values are returned unchanged.
    """
    if not interval >= _SHORTEST:
        return times, values
    reduce = _REDUCE[aggregate]
    found: tuple[list[float], list[float]] = ([], [])
    begin = 0
    for slot, members in groupby([math.floor(time / interval) for time in times]):
        end = begin + sum(1 for _ in members)
        found[0].append(slot * interval)
        found[1].append(reduce(values[begin:end]))
        begin = end
    return found
