"""Records what a node measures: hands it to a thread that orders it and writes it to files."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

import dragon
from dragon.agent.services import Services
from dragon.agent.telemetry.seen import lifetimes
from dragon.infrastructure import recordings
from dragon.infrastructure.metrics import Kind, Lifetime, Span, Tags
from dragon.infrastructure.structs import msgspec
from dragon.runtime.log import runtime_log
from dragon.runtime.run_info import RunInfo, run_name

_MOST_SORTED = 2**20  # that are sorted together, in some 100 MB
_PIECE = 2**15  # rows; a reader loads at least this many for a metric with few values


def as_written(path: Path) -> Iterator[Any]:
    """Yield the rows of a stream, of which there are few, in the order in which they were written."""
    batches = list(recordings.whole_batches(path))
    if batches:
        yield pa.Table.from_batches(batches)


def ordered_samples(path: Path) -> Iterator[Any]:
    """Yield the values of a stream as small sorted tables; for a very long stream, as several such sequences."""
    values: list[Any] = []
    series: list[Any] = []
    known: set[int] = set()
    rows = 0
    for batch in recordings.whole_batches(path):
        numbers = batch["series"].to_pylist()
        places = dict(zip(numbers, range(len(numbers)), strict=True))
        new = pa.array([place for number, place in places.items() if number not in known], pa.int64())
        known.update(places)
        table = pa.Table.from_batches([batch])
        values.append(table.select(["time", "value", "series"]))
        series.append(table.take(new).select(["metric", "kind", "tags", "series"]))
        rows += len(numbers)
        if rows >= _MOST_SORTED:
            yield from _ordered(pa.concat_tables(values), pa.concat_tables(series))
            values, series, known, rows = [], [], set(), 0
    if values:
        yield from _ordered(pa.concat_tables(values), pa.concat_tables(series))


def _ordered(values: pa.Table, series: pa.Table) -> Iterator[pa.Table]:
    values, series = values.combine_chunks(), series.sort_by([("metric", "ascending"), ("series", "ascending")])
    rank = pa.compute.index_in(values["series"], value_set=series["series"].combine_chunks())
    keys = pa.table([rank, values["time"]], ["rank", "time"])
    order = pa.compute.sort_indices(keys, sort_keys=[("rank", "ascending"), ("time", "ascending")])
    schema = recordings.schema_of("samples")
    for begin in range(0, len(order), _PIECE):
        piece = order.slice(begin, _PIECE)
        told = series.take(rank.take(piece))
        rows = values.take(piece)
        columns = [(rows if name in rows.column_names else told)[name] for name in schema.names]
        yield pa.table(columns, schema=schema)


_UNFINISHED = ".unfinished"
_ZSTD = pa.Codec.is_available("zstd")


class StreamFile:
    """A new Arrow IPC stream in a folder. `stem` is its name; each batch is in the file when `write` returns. All
    methods raise OSError. A batch that was not written completely is removed again, and later ones can be written."""

    def __init__(self, folder: Path, stem: str, schema: pa.Schema) -> None:
        self._path = _free(folder, stem)
        self._schema = schema
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size = 0
        self._memory = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if _ZSTD else None)
        self._stream = pa.ipc.new_stream(self._memory, schema, options=options)  # which begins with the schema

    def write(self, columns: list[list[Any]]) -> None:
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        begin = self._memory.tell()
        self._stream.write_batch(pa.record_batch(arrays, schema=self._schema))
        try:
            self._append(self._memory.getvalue())
            begin = 0
        finally:
            self._memory.seek(begin)  # the schema stays until it is in the file
            self._memory.truncate()

    def _append(self, data: bytes) -> None:
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written", str(self._path))
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def finish(self, tables: Callable[[Path], Iterator[Any]]) -> None:
        """Close the stream, and make a Parquet file of the rows that `tables` reads from it."""
        self.close()
        target = self._path.with_suffix(recordings.PARQUET)
        temporary = self._path.with_suffix(recordings.PARQUET + _UNFINISHED)
        try:
            with pa.parquet.ParquetWriter(temporary, self._schema, compression="zstd" if _ZSTD else "none") as writer:
                for table in tables(self._path):
                    writer.write_table(table)
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        self._path.unlink()
        pa.default_memory_pool().release_unused()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _free(folder: Path, stem: str) -> Path:
    """Return a path that is not used. An hour may come twice if the clock is set back."""
    count = 1
    while True:
        path = folder / (f"{stem}{recordings.STREAM}" if count == 1 else f"{stem}.{count}{recordings.STREAM}")
        if not (path.exists() or path.with_suffix(recordings.PARQUET).exists()):
            return path
        count += 1


_MOST_NUMBERS = 100_000

# Time, metric, tags, kind and value.
Row = tuple[float, str, Tags, Kind, float]


class Parcel(msgspec.Struct):
    """What is to be written together, and when it was handed over. `last`: the run has ended."""

    time: float
    rows: list[Row]
    lifetimes: list[Lifetime]
    spans: list[Span] = []
    last: bool = False


class Writer:
    """Writes parcels into the folder of a run, until the last one. What cannot be written is dropped, which is logged
    once; the next parcel is tried again. `description` is that of the run if this node is the one that writes it."""

    def __init__(self, folder: Path, prefix: str, description: recordings.RunDescription | None) -> None:
        self.parcels: SimpleQueue[Parcel] = SimpleQueue()
        self.taken = 0  # rows that came out of the queue
        self._folder = folder
        self._prefix = prefix
        self._description = description
        self._made = False
        self._hour = ""
        self._samples: StreamFile | None = None
        self._others: dict[recordings.Content, StreamFile] = {}
        self._numbers: dict[tuple[str, Tags], int] = {}
        self._next_number = 0
        self._told = False

    def run(self) -> None:
        last = False
        while not last:
            parcel = self.parcels.get()
            self.write(parcel)
            self.taken += len(parcel.rows)
            last = parcel.last

    def write(self, parcel: Parcel) -> None:
        for step in self.steps(parcel):
            try:
                step()
            except (OSError, ValueError, pa.ArrowException) as error:
                self._tell(str(error))

    def steps(self, parcel: Parcel) -> list[Callable[[], None]]:
        """Return the steps for a parcel. Each is done whether or not the one before it succeeded."""
        steps: list[Callable[[], None]] = [] if self._made else [self._make_folder]
        if recordings.hour_name(parcel.time) != self._hour:
            self._hour = recordings.hour_name(parcel.time)
            steps.append(self._finish_samples)
        steps.append(partial(self._write_samples, parcel.rows))
        steps += [partial(self._write_others, "lifetimes", parcel.lifetimes)]
        steps += [partial(self._write_others, "spans", parcel.spans)]
        if parcel.last:
            steps += [self._finish_samples, self._finish_others, partial(self._describe, parcel.time)]
        return steps

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            log.warning("telemetry is not recorded in %s: %s; the program continues", self._folder, reason)

    def _make_folder(self) -> None:
        for folder in reversed([self._folder, *self._folder.parents]):  # one by one, so that all are private
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        self._made = True
        self._describe(None)

    def _describe(self, ended: float | None) -> None:
        if self._description is None or not self._made:
            return
        self._description.ended = ended
        temporary = self._folder / f".{recordings.DESCRIPTION}.{os.getpid()}"
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self._description)))
            temporary.rename(self._folder / recordings.DESCRIPTION)
        finally:
            temporary.unlink(missing_ok=True)

    def _write_samples(self, rows: list[Row]) -> None:
        if rows and self._made:
            if self._samples is None:
                self._samples = StreamFile(
                    self._folder, f"{self._prefix}-{self._hour}", recordings.schema_of("samples")
                )
            self._samples.write(self._columns(rows))

    def _finish_samples(self) -> None:
        file, self._samples = self._samples, None
        self._numbers.clear()
        if file is not None:
            file.finish(ordered_samples)

    def _write_others(self, content: recordings.Content, rows: Sequence[Lifetime | Span]) -> None:
        if rows and self._made:
            schema = recordings.schema_of(content)
            if content not in self._others:
                self._others[content] = StreamFile(self._folder, recordings.stem_of(self._prefix, content), schema)
            self._others[content].write([[getattr(row, name) for row in rows] for name in schema.names])

    def _finish_others(self) -> None:
        files, self._others = self._others, {}
        for file in files.values():
            file.finish(as_written)

    def _columns(self, rows: list[Row]) -> list[list[Any]]:
        times, metrics, tags, kinds, values = map(list, zip(*rows, strict=True))
        return [times, metrics, kinds, tags, values, list(map(self._number, metrics, tags))]

    def _number(self, metric: str, tags: Tags) -> int:
        """Return a number for a series that no other series has; after very many series, it may get a new one."""
        number = self._numbers.get((metric, tags))
        if number is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            number = self._numbers[metric, tags] = self._next_number
            self._next_number += 1
        return number


log = runtime_log("telemetry")

_FLUSH_INTERVAL_S = 2.0  # seconds; at most this much is lost if the agent is killed
_MOST_ROWS = 200_000  # rows that may wait to be written
_CLOCK_MARGIN_S = 60.0  # seconds that the clock may be set back without missing the end of a process
_CLOSE_TIMEOUT_S = 10.0


def open_recorder(services: Services, directory: Path) -> Recorder:
    """Start recording what this agent's node measures."""
    info = RunInfo.read(services.run.folder)
    members = services.links.members.values() if services.links is not None else []
    description = recordings.RunDescription(
        name=run_name(services.run.folder, info),
        command=info.command,
        started=info.started,
        nodes=[member.node.host_name for member in members] or [services.host_name],
        version=dragon.__version__,
    )
    return Recorder(directory, description, services.run.node, partial(lifetimes, services))


class Recorder:
    """Records values and lifetimes of a node in a directory, from now on.

    Args:
        lifetimes: returns the processes that are alive or have ended since a time
    """

    def __init__(
        self,
        directory: Path,
        description: recordings.RunDescription,
        node: int,
        lifetimes: Callable[[float], list[Lifetime]],
    ) -> None:
        folder = directory / recordings.folder_name(description.started, description.name)
        self._writer = Writer(
            folder, recordings.node_prefix(description.nodes[node], node), None if node else description
        )
        self._lifetimes = lifetimes
        self._rows: list[Row] = []
        self._spans: list[Span] = []
        self._handed = 0
        self._late = False
        self._looked = 0.0
        self._known: dict[int, float | None] = {}  # when each process ended, as it was recorded
        self._loop = asyncio.get_running_loop()
        # A daemon thread, so that the process can end even if the file system hangs.
        self._thread = threading.Thread(target=self._writer.run, name="recorder", daemon=True)
        self._thread.start()
        self._timer = self._loop.call_later(_FLUSH_INTERVAL_S, self._hand_over)

    def add(self, moment: float, metric: str, tags: Tags, kind: Kind, value: float) -> None:
        if self._handed - self._writer.taken + len(self._rows) < _MOST_ROWS:
            self._rows.append((moment, metric, tags, kind, value))
        else:
            self._drop()

    def add_spans(self, spans: list[Span]) -> None:
        if len(self._spans) + len(spans) <= _MOST_ROWS:
            self._spans += spans
        else:
            self._drop()

    def _drop(self) -> None:
        if not self._late:
            self._late = True
            log.warning("telemetry is written too slowly, and some of it is dropped")

    def _hand_over(self) -> None:
        self._timer = self._loop.call_later(_FLUSH_INTERVAL_S, self._hand_over)
        now = time.time()
        self._put(Parcel(now, self._rows, self._news(now), self._spans))

    def _put(self, parcel: Parcel) -> None:
        self._rows, self._spans = [], []
        self._handed += len(parcel.rows)
        self._writer.parcels.put(parcel)

    def _news(self, now: float) -> list[Lifetime]:
        """Return the processes that have started or ended since the last call."""
        found = self._lifetimes(min(self._looked, now) - _CLOCK_MARGIN_S)
        self._looked = now
        news = [one for one in found if self._known.get(one.puid, 0.0) != one.ended]
        self._known = {one.puid: one.ended for one in found}
        return news

    async def close(self) -> None:
        """Write what is left, and turn the files into those of a run that has ended."""
        self._timer.cancel()
        now = time.time()
        self._known = {puid: ended for puid, ended in self._known.items() if ended is not None}
        # Processes that are still alive end with the run; their exit codes are not known.
        ended = [msgspec.structs.replace(one, ended=one.ended or now) for one in self._news(now)]
        self._put(Parcel(now, self._rows, ended, self._spans, last=True))
        await self._loop.run_in_executor(None, self._thread.join, _CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("telemetry could not be written within %g s; some of it is missing", _CLOSE_TIMEOUT_S)
