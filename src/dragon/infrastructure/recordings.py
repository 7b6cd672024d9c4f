"""The format of a run's telemetry on disk.

```
DIRECTORY/20261121T140312Z-3fa9c1/          a run: when it started, in UTC, and its name
    run.json                                 RunDescription
    HOST-0-20261121T14Z.parquet              what node 0 measured in an hour of UTC
    HOST-0-20261121T15Z.arrows               the same of the hour that runs: an Arrow IPC stream
    HOST-0.lifetimes.arrows                  its processes: one row when one starts, one when it ends
    HOST-0.spans.arrows                      what its processes waited for and did, at level 5
```

A stream can be read up to its last complete batch, whatever happened to its writer, a Parquet file only when it is
complete; so a stream is converted when it is complete. If both exist, the Parquet file counts if it is complete.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from dragon.infrastructure.structs import msgspec

DESCRIPTION = "run.json"
STREAM, PARQUET = ".arrows", ".parquet"

# The kinds of files. Samples have one file for each hour.
Content = Literal["samples", "lifetimes", "spans"]
_HOURLY = re.compile(r"(?P<node>.+-\d+)-\d{8}T\d{2}Z(\.\d+)?")


class RunDescription(msgspec.Struct):
    """A run. `nodes` are the host names of its nodes by index; times are in seconds since 1970. `ended` is None if the
    run did not end regularly, or is still running."""

    name: str
    command: str
    started: float
    nodes: list[str]
    version: str
    ended: float | None = None


def folder_name(started: float, run: str) -> str:
    """Return the name of a run's folder within the directory of recordings; names sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(started))}-{run}"


def host_prefix(host: str) -> str:
    """Return the beginning of the names of files of a host's nodes, before the index of the node."""
    return re.sub(r"[^\w.-]", "_", host)


def node_prefix(host: str, node: int) -> str:
    """Return the beginning of the names of a node's files."""
    return f"{host_prefix(host)}-{node}"


def hour_name(moment: float) -> str:
    """Return an hour in the form of file names."""
    return time.strftime("%Y%m%dT%HZ", time.gmtime(moment))


def stem_of(prefix: str, content: Content) -> str:
    """Return the stem of the name of a node's file with that content."""
    return f"{prefix}.{content}"


def content_of_file(stem: str) -> tuple[str, Content] | None:
    """Return the node's prefix and the content of a file with that stem; None if it is not a recording."""
    contents: tuple[Content, ...] = ("lifetimes", "spans")
    for content in contents:
        if stem.endswith(f".{content}"):
            return stem.removesuffix(f".{content}"), content
    match = _HOURLY.fullmatch(stem)
    return (match["node"], "samples") if match else None


def schema_of(content: Content) -> Any:
    """Return the Arrow schema of files with that content."""
    return {"samples": sample_schema, "lifetimes": lifetime_schema, "spans": span_schema}[content]()


def sample_schema() -> Any:
    """Return the schema of measured values. In a file, rows of one metric with the same tags have the same `series`."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("time", pa.float64(), nullable=False),
            pa.field("metric", pa.string(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("tags", pa.map_(pa.string(), pa.string()), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
            pa.field("series", pa.int32(), nullable=False),
        ]
    )


def lifetime_schema() -> Any:
    """Return the schema of processes: the fields of `Lifetime`."""
    import pyarrow as pa

    numbers = [pa.field(name, pa.int64(), nullable=False) for name in ("puid", "pid", "parent", "group")]
    return pa.schema(
        [
            pa.field("node", pa.int32(), nullable=False),
            pa.field("host", pa.string(), nullable=False),
            *numbers,
            pa.field("name", pa.string(), nullable=False),
            pa.field("started", pa.float64(), nullable=False),
            pa.field("ended", pa.float64()),
            pa.field("code", pa.int32()),
            pa.field("terminated", pa.bool_()),
        ]
    )


def span_schema() -> Any:
    """Return the schema of spans: the fields of `Span`."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("start", pa.float64(), nullable=False),
            pa.field("end", pa.float64(), nullable=False),
            pa.field("pid", pa.int64(), nullable=False),
            pa.field("thread", pa.uint64(), nullable=False),
            pa.field("what", pa.string(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("link", pa.int64(), nullable=False),
            pa.field("failed", pa.bool_()),
        ]
    )


def whole_batches(path: Path) -> Iterator[Any]:
    """Yield the record batches of a stream, up to the first incomplete one. Raises OSError if it cannot be opened."""
    import pyarrow as pa

    # Not mapped into memory, because the writer may truncate an incomplete batch.
    with pa.OSFile(str(path)) as file:
        try:
            stream = pa.ipc.open_stream(file)
            while True:
                yield stream.read_next_batch()
        except (StopIteration, OSError, pa.ArrowException):
            return  # the end of the stream, or an incomplete batch
