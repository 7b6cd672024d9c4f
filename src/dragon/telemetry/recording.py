"""Reads the telemetry of a run from the files that `dragon --telemetry` wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from dragon.infrastructure import recordings
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.metrics import Aggregate, Lifetime, Record, RunState, Span, has, reduced
from dragon.infrastructure.recordings import Content, RunDescription, content_of_file
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.telemetry import Query

if TYPE_CHECKING:
    from pyarrow import Table

    from dragon.telemetry.recorded_file import RecordedFile

_COLUMNS = ["time", "metric", "tags", "value", "series"]
_AT_A_TIME = 10_000
_LEVEL = 4  # the default telemetry level of recordings
_LEVEL_OF_SPANS = 5
_Key = tuple[str, tuple[tuple[str, str], ...]]


class NoRecordingError(DragonError):
    """Raised if a folder has no telemetry of a run, or it cannot be read here; the message says what to do."""


class Recording:
    """The recorded telemetry of a run. `path` is the run's folder, or a directory of several, of which the newest is
    used.

    For a run that was killed, or has not ended, it has what was written so far. A query reads only the files and
    columns that it needs, so that long recordings of many nodes can be queried. Raises NoRecordingError.

    Attributes:
        folder: the folder of the run.

    Examples:
        >>> import subprocess, sys, tempfile
        >>> from dragon.telemetry import Recording
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = subprocess.run([sys.executable, "-m", "dragon", "--telemetry", folder, "sleep", "3"])
        ...     "load_average" in Recording(folder).names()
        True
    """

    def __init__(self, path: str | Path) -> None:
        try:
            import pyarrow.compute
        except ImportError as error:
            raise NoRecordingError(
                f"a recording cannot be read: {error}; pip install 'dragon-runtime[telemetry]'"
            ) from None
        self._compute = pyarrow.compute
        self.folder = _run_folder(Path(path))
        """The folder of the run."""

    # ---- the run

    @property
    def description(self) -> RunDescription | None:
        """The description of the run; None if its first node could not write it."""
        try:
            return msgspec.json.decode((self.folder / recordings.DESCRIPTION).read_bytes(), type=RunDescription)
        except (FileNotFoundError, ValueError):
            return None

    def run(self, processes: Iterable[Lifetime]) -> RunState:
        """Return the state of the run from its files and the result of lifetimes(). They do not contain which nodes
        were lost."""
        told = self.description
        return RunState(
            name=self.folder.name if told is None else told.name,
            command=str(self.folder) if told is None else told.command,
            started=self.start,
            hosts=list(dict.fromkeys([*(told.nodes if told else ()), *(one.host for one in processes)])),
            lost={},
            level=_LEVEL_OF_SPANS if any(True for _ in self._files("spans")) else _LEVEL,
            period=1.0,
        )

    @property
    def start(self) -> float:
        """When the run started, in seconds since 1970; if unknown, the time of the first value."""
        description = self.description
        return self._span()[0] if description is None else description.started

    @property
    def end(self) -> float:
        """When the run ended, in seconds since 1970; if it was killed or has not ended, the time of the last value."""
        description = self.description
        return self._span()[1] if description is None or description.ended is None else description.ended

    def _span(self) -> tuple[float, float]:
        spans = [file.span("time") for _, file in self._samples()]
        spans += [file.span("started") for file in self._processes()]
        known = list(chain.from_iterable(span for span in spans if span is not None))
        if not known:
            raise NoRecordingError(f"{self.folder} has no measurements of its run")
        return min(known), max(known)

    @property
    def damaged(self) -> list[Path]:
        """The files that cannot be read at all."""
        files = [*(file for _, file in self._samples()), *self._processes()]
        return [file.parquet for file in files if file.is_damaged]

    def lifetimes(self) -> list[Lifetime]:
        """Return the processes of the run, in the order of their starts.

        A process without `ended` was alive when its node last wrote; one with `ended` but no `code` ended with the run.
        """
        last: dict[int, Lifetime] = {}
        for file in self._processes():
            for row in file.table().to_pylist():
                last[row["puid"]] = Lifetime(**row)
        return sorted(last.values(), key=lambda one: one.started)

    def spans(self, what: str | None = None) -> Iterator[tuple[str, Span]]:
        """Yield what processes waited for and did, if that was recorded (level 5), each with the host of its node. With
        `what` only spans of that kind; see Span."""
        for node, file in self._files("spans"):
            host, table = self._host(node), file.table()
            if what is not None:
                table = table.filter(self._compute.equal(table["what"], what))
            for batch in table.to_batches(max_chunksize=_AT_A_TIME):
                for row in batch.to_pylist():
                    yield host, Span(**row)

    def _host(self, node: str) -> str:
        """Return the host of a node, given the prefix of the names of its files."""
        (prefix, _, number), description = node.rpartition("-"), self.description
        return prefix if description is None else description.nodes[int(number)]

    # ---- values

    def names(self) -> set[str]:
        """Return the names of the metrics that have values."""
        return set().union(*(file.distinct("metric") for _, file in self._samples()))

    def answer(self, question: Query) -> list[Record]:
        """Return the answer to a query, as the run would have given it."""
        return self.query(*msgspec.structs.astuple(question))

    def query(
        self,
        metrics: Collection[str],
        tags: Mapping[str, Collection[str]],
        start: float,
        end: float,
        interval: float,
        aggregate: Aggregate,
    ) -> list[Record]:
        """Return the series of these metrics with values between `start` and `end`, whose tags have one of the given
        values ("*": any).

        The values within each `interval` seconds are reduced to one; with 0 they are not.
        """
        if not metrics:
            return []
        field = self._compute.field
        condition = field("metric").isin(list(metrics)) & (field("time") >= start) & (field("time") <= end)
        found = []
        for _, files in groupby(self._samples(tags.get("host")), key=lambda pair: pair[0]):
            series: dict[_Key, tuple[list[float], list[float]]] = {}
            for _, file in files:
                self._collect(file.table(_COLUMNS, condition), tags, series)
            for (name, pairs), (times, values) in series.items():
                order = sorted(range(len(times)), key=times.__getitem__)
                reduced_times, reduced_values = reduced(
                    [times[place] for place in order], [values[place] for place in order], interval, aggregate
                )
                found.append((name, dict(pairs), reduced_times, reduced_values))
        return found

    def _collect(
        self, table: Table, tags: Mapping[str, Collection[str]], series: dict[_Key, tuple[list[float], list[float]]]
    ) -> None:
        """Add the values of a file to the series that have the tags."""
        if not table:
            return
        table = table.sort_by("series").combine_chunks()
        ends = self._compute.run_end_encode(table["series"].chunk(0)).run_ends.to_pylist()
        for begin, end in pairwise([0, *ends]):
            row = table.slice(begin, 1).select(["metric", "tags"]).to_pylist()[0]
            if has(dict(row["tags"]), tags):
                times, values = series.setdefault((row["metric"], tuple(row["tags"])), ([], []))
                times += table["time"][begin:end].to_pylist()
                values += table["value"][begin:end].to_pylist()

    # ---- files

    def _samples(self, hosts: Collection[str] | None = None) -> list[tuple[str, RecordedFile]]:
        """Return the files of values, each with its node, by node and in the order in which they were written."""
        wanted = None if hosts is None or "*" in hosts else {recordings.host_prefix(host) for host in hosts}
        return [
            (node, file) for node, file in self._files("samples") if wanted is None or node.rpartition("-")[0] in wanted
        ]

    def _processes(self) -> list[RecordedFile]:
        return [file for _, file in self._files("lifetimes")]

    def _files(self, wanted: Content) -> Iterator[tuple[str, RecordedFile]]:
        """Yield the files with that content, each with its node."""
        from dragon.telemetry.recorded_file import RecordedFile

        schema = recordings.schema_of(wanted)
        told = [(content_of_file(stem), stem) for stem in _stems(self.folder)]
        for (node, content), stem in sorted((of, stem) for of, stem in told if of is not None):
            if content == wanted:
                yield node, RecordedFile(self.folder / stem, schema)


def _stems(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir() if path.suffix in (recordings.STREAM, recordings.PARQUET)}


def _is_run(folder: Path) -> bool:
    return (folder / recordings.DESCRIPTION).exists() or any(
        content_of_file(stem) is not None for stem in _stems(folder)
    )


def _run_folder(path: Path) -> Path:
    if not path.is_dir():
        raise NoRecordingError(f"there is no folder {path}")
    if _is_run(path):
        return path
    runs = [folder for folder in path.iterdir() if folder.is_dir() and _is_run(folder)]
    if not runs:
        raise NoRecordingError(
            f"there is no telemetry of a run in {path}; `dragon --telemetry {path} PROGRAM` records one"
        )
    return max(runs, key=lambda folder: folder.name)
