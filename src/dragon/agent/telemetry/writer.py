"""Writes what a node measured to its files, in a thread of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from dragon.infrastructure.metrics import Kind, Lifetime, Tags
from dragon.infrastructure.recordings import (
    DESCRIPTION,
    Content,
    RunDescription,
    hour_name,
    sample_schema,
    schema_of,
    stem_of,
)
from dragon.infrastructure.spans import Span
from dragon.runtime.log import runtime_log

if TYPE_CHECKING:
    from dragon.agent.telemetry.stream_file import StreamFile

__all__ = ["Parcel", "Row", "Writer"]

log = runtime_log("telemetry")

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
    """Writes parcels into the folder of a run, until the last one.

    What cannot be written is dropped, which is logged once; the next parcel is tried again. `description` is that of
    the run if this node is the one that writes it.
    """

    def __init__(self, folder: Path, prefix: str, description: RunDescription | None) -> None:
        self.parcels: SimpleQueue[Parcel] = SimpleQueue()
        self.taken = 0  # rows that came out of the queue
        self._folder = folder
        self._prefix = prefix
        self._description = description
        self._made = False
        self._hour = ""
        self._samples: StreamFile | None = None
        self._others: dict[Content, StreamFile] = {}
        self._numbers: dict[tuple[str, Tags], int] = {}
        self._next_number = 0
        self._told = False

    def run(self) -> None:
        """Write the parcels of the queue; the body of the thread."""
        last = False
        while not last:
            parcel = self.parcels.get()
            self.write(parcel)
            self.taken += len(parcel.rows)
            last = parcel.last

    def write(self, parcel: Parcel) -> None:
        """Write one parcel."""
        try:
            import pyarrow
        except ImportError as error:
            self._tell(f"{error}; pip install 'dragon-runtime[telemetry]'")
            return
        for step in self._steps(parcel):
            try:
                step()
            except (OSError, ValueError, pyarrow.ArrowException) as error:
                self._tell(str(error))

    def _steps(self, parcel: Parcel) -> list[Callable[[], None]]:
        """Return the steps for a parcel. Each is done whether or not the one before it succeeded."""
        steps: list[Callable[[], None]] = [] if self._made else [self._make_folder]
        if hour_name(parcel.time) != self._hour:
            self._hour = hour_name(parcel.time)
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
        temporary = self._folder / f".{DESCRIPTION}.{os.getpid()}"
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self._description)))
            temporary.rename(self._folder / DESCRIPTION)
        finally:
            temporary.unlink(missing_ok=True)

    def _write_samples(self, rows: list[Row]) -> None:
        if rows and self._made:
            if self._samples is None:
                self._samples = self._new(f"{self._prefix}-{self._hour}", sample_schema())
            self._samples.write(self._columns(rows))

    def _finish_samples(self) -> None:
        file, self._samples = self._samples, None
        self._numbers.clear()
        if file is not None:
            from dragon.agent.telemetry.ordering import ordered_samples

            file.finish(ordered_samples)

    def _write_others(self, content: Content, rows: Sequence[Lifetime | Span]) -> None:
        if rows and self._made:
            schema = schema_of(content)
            if content not in self._others:
                self._others[content] = self._new(stem_of(self._prefix, content), schema)
            self._others[content].write([[getattr(row, name) for row in rows] for name in schema.names])

    def _finish_others(self) -> None:
        files, self._others = self._others, {}
        for file in files.values():
            from dragon.agent.telemetry.ordering import as_written

            file.finish(as_written)

    def _new(self, stem: str, schema: Any) -> StreamFile:
        from dragon.agent.telemetry.stream_file import StreamFile

        return StreamFile(self._folder, stem, schema)

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
