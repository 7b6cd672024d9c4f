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
from typing import TYPE_CHECKING, Any, Literal

from dragon.infrastructure.structs import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

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


def schema_of(content: Content) -> pa.Schema:
    """Return the Arrow schema of files with that content: of measured values, where rows of one metric with the same
    tags have the same `series`; or the fields of `Lifetime` or `Span`."""
    import pyarrow as pa

    text, real, small, number, truth = pa.string(), pa.float64(), pa.int32(), pa.int64(), pa.bool_()
    samples = {"time": real, "metric": text, "kind": text, "tags": pa.map_(text, text), "value": real, "series": small}
    ids = dict.fromkeys(("puid", "pid", "parent", "group"), number)
    ended = {"ended": real, "code": small, "terminated": truth}
    spans = {"start": real, "end": real, "pid": number, "thread": pa.uint64(), "what": text, "name": text}
    columns = {
        "samples": samples,
        "lifetimes": {"node": small, "host": text, **ids, "name": text, "started": real, **ended},
        "spans": {**spans, "link": number, "failed": truth},
    }
    optional = {*ended, "failed"}
    return pa.schema([pa.field(name, kind, nullable=name in optional) for name, kind in columns[content].items()])


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
