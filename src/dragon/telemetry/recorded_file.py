"""Files of values: reads those of a recording, and writes what a run has in memory."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

import dragon
from dragon.agent.telemetry.recorder import Parcel, Row, Writer
from dragon.infrastructure import recordings
from dragon.infrastructure.metrics import METRICS, RunState
from dragon.infrastructure.structs import msgspec
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import Kinds, Lifetimes, Query, StateOfRun


def dump(directory: Path) -> Path:
    """Write all values and lifetimes of the run into a new private folder within `directory`, and return its path.

    Raises OSError, after removing incomplete files.
    """
    now = time.time()
    run = ask(StateOfRun())
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".dump-", dir=directory))
    try:
        _write(temporary, run, now)
        return temporary.rename(_free(directory, recordings.folder_name(now, run.name)))
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _free(directory: Path, name: str) -> Path:
    """Return a path that does not exist yet, with a number appended if necessary."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (directory / each for each in names) if not path.exists())


def _write(folder: Path, run: RunState, now: float) -> None:
    writers = {host: Writer(folder, recordings.node_prefix(host, node), None) for node, host in enumerate(run.hosts)}
    kinds = {name: metric.kind for name, metric in METRICS.items()} | dict(ask(Kinds()))
    for name in sorted(kinds):  # only one metric at a time is in memory
        rows: dict[str, list[Row]] = defaultdict(list)
        for _, tags, times, values in ask(Query([name], {}, -math.inf, math.inf, interval=0.0, aggregate="last")):
            series = name, tuple(sorted(tags.items())), kinds[name]
            rows[tags["host"]] += [(when, *series, value) for when, value in zip(times, values, strict=True)]
        for host, found in rows.items():
            _write_parcel(writers[host], Parcel(now, found, []))
    lifetimes = ask(Lifetimes())
    for host, writer in writers.items():
        _write_parcel(writer, Parcel(now, [], [one for one in lifetimes if one.host == host], last=True))
    description = recordings.RunDescription(run.name, run.command, run.started, run.hosts, dragon.__version__)
    (folder / recordings.DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(description)))


def _write_parcel(writer: Writer, parcel: Parcel) -> None:
    for step in writer.steps(parcel):
        step()


_MAGIC = b"PAR1"


class RecordedFile:
    """A file of a recording. `place` is its path without the suffix. While its run continues, the stream may be
    converted to Parquet at any time."""

    def __init__(self, place: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self.parquet = place.with_name(place.name + recordings.PARQUET)
        self.stream = place.with_name(place.name + recordings.STREAM)

    @property
    def is_damaged(self) -> bool:
        """Whether it is an incomplete Parquet file, which cannot be read, and there is no stream either."""
        return not self.stream.exists() and not _is_whole(self.parquet)

    def table(self, columns: list[str] | None = None, condition: pa.compute.Expression | None = None) -> pa.Table:
        """Return the rows that fulfil a condition, in the order in which the values of a series were written."""
        if not _is_whole(self.parquet):
            try:
                return self._schema_of(columns).empty_table() if self.is_damaged else self._streamed(columns, condition)
            except FileNotFoundError:
                pass  # it was converted to Parquet meanwhile
        dataset = pa.dataset.dataset([str(self.parquet)], schema=self._schema, format="parquet")
        return dataset.to_table(columns=columns, filter=condition)

    def _schema_of(self, columns: list[str] | None) -> pa.Schema:
        return self._schema if columns is None else pa.schema([self._schema.field(name) for name in columns])

    def _streamed(self, columns: list[str] | None, condition: pa.compute.Expression | None) -> pa.Table:
        tables = [self._schema_of(columns).empty_table()]
        for batch in recordings.whole_batches(self.stream):
            table = pa.Table.from_batches([batch])
            table = table if condition is None else table.filter(condition)
            tables.append(table if columns is None else table.select(columns))
        return pa.concat_tables(tables, promote_options="default")  # an earlier version had fewer columns

    def distinct(self, column: str) -> set[Any]:
        """Return the distinct values of a column."""
        if not _is_whole(self.parquet):
            return set(self.table([column])[column].unique().to_pylist())
        file = pa.parquet.ParquetFile(self.parquet, read_dictionary=[column])
        found: set[Any] = set()
        for number, statistics in enumerate(_statistics(file.metadata, column)):
            if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
                found.add(statistics.min)
            else:
                found.update(file.read_row_group(number, columns=[column])[column].unique().to_pylist())
        return found

    def span(self, column: str) -> tuple[float, float] | None:
        """Return the least and the greatest value of a column of numbers; None if there are no rows."""
        if _is_whole(self.parquet):
            told = list(_statistics(pa.parquet.read_metadata(self.parquet), column))
            if told and all(each is not None and each.has_min_max for each in told):
                return min(each.min for each in told), max(each.max for each in told)
        values = self.table([column])[column]
        ends = pa.compute.min_max(values).as_py()
        return None if ends["min"] is None else (ends["min"], ends["max"])


def _statistics(metadata: pa.parquet.FileMetaData, column: str) -> Iterator[Any]:
    """Yield the statistics of a column in each row group."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    place = paths.index(column)
    for group in range(metadata.num_row_groups):
        yield metadata.row_group(group).column(place).statistics


def _is_whole(path: Path) -> bool:
    """Return whether a Parquet file has its footer."""
    try:
        with path.open("rb") as file:
            if file.seek(0, 2) < 3 * len(_MAGIC):
                return False
            file.seek(-len(_MAGIC), 2)
            return file.read() == _MAGIC
    except FileNotFoundError:
        return False
