"""Sorts recorded values into the order in which they are queried: by metric and series, then by time.

The description of a series takes most of the memory, and is the same for all its values. So it is kept once for each
series while the values are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from dragon.infrastructure.recordings import sample_schema, whole_batches

__all__ = ["as_written", "ordered_samples"]

_MOST_ROWS = 2**20  # that are sorted together, in some 100 MB
_PIECE = 2**15  # rows; a reader loads at least this many for a metric with few values


def as_written(path: Path) -> Iterator[Any]:
    """Yield the rows of a stream, of which there are few, in the order in which they were written."""
    batches = list(whole_batches(path))
    if batches:
        yield pa.Table.from_batches(batches)


def ordered_samples(path: Path) -> Iterator[Any]:
    """Yield the values of a stream as small sorted tables; for a very long stream, as several such sequences."""
    values: list[Any] = []
    series: list[Any] = []
    known: set[int] = set()
    rows = 0
    for batch in whole_batches(path):
        numbers = batch["series"].to_pylist()
        places = dict(zip(numbers, range(len(numbers)), strict=True))
        new = pa.array([place for number, place in places.items() if number not in known], pa.int64())
        known.update(places)
        table = pa.Table.from_batches([batch])
        values.append(table.select(["time", "value", "series"]))
        series.append(table.take(new).select(["metric", "kind", "tags", "series"]))
        rows += len(numbers)
        if rows >= _MOST_ROWS:
            yield from _ordered(pa.concat_tables(values), pa.concat_tables(series))
            values, series, known, rows = [], [], set(), 0
    if values:
        yield from _ordered(pa.concat_tables(values), pa.concat_tables(series))


def _ordered(values: Any, series: Any) -> Iterator[Any]:
    values, series = values.combine_chunks(), series.sort_by([("metric", "ascending"), ("series", "ascending")])
    rank = pa.compute.index_in(values["series"], value_set=series["series"].combine_chunks())
    keys = pa.table([rank, values["time"]], ["rank", "time"])
    order = pa.compute.sort_indices(keys, sort_keys=[("rank", "ascending"), ("time", "ascending")])
    schema = sample_schema()
    for begin in range(0, len(order), _PIECE):
        piece = order.slice(begin, _PIECE)
        told = series.take(rank.take(piece))
        rows = values.take(piece)
        columns = [(rows if name in rows.column_names else told)[name] for name in schema.names]
        yield pa.table(columns, schema=schema)
