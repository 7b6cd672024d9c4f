"""Writes the values that the nodes of a run have in memory to files, in the format of a recording."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

import dragon
from dragon.infrastructure.metrics import METRICS, Kind, RunState
from dragon.infrastructure.recordings import (
    DESCRIPTION,
    PARQUET,
    RunDescription,
    folder_name,
    hour_name,
    lifetime_schema,
    node_prefix,
    sample_schema,
    stem_of,
)
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import Kinds, Lifetimes, Query, StateOfRun

__all__ = ["dump"]


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
        return temporary.rename(_free(directory, folder_name(now, run.name)))
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _free(directory: Path, name: str) -> Path:
    """Return a path that does not exist yet, with a number appended if necessary."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (directory / each for each in names) if not path.exists())


def _write(folder: Path, run: RunState, now: float) -> None:
    prefixes = {host: node_prefix(host, node) for node, host in enumerate(run.hosts)}
    _write_samples(folder, {host: f"{prefix}-{hour_name(now)}" for host, prefix in prefixes.items()})
    _write_lifetimes(folder, {host: stem_of(prefix, "lifetimes") for host, prefix in prefixes.items()})
    description = RunDescription(run.name, run.command, run.started, run.hosts, dragon.__version__)
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(description)))


def _write_samples(folder: Path, stems: dict[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    schema = sample_schema()
    kinds = {name: metric.kind for name, metric in METRICS.items()} | dict(ask(Kinds()))
    numbers = itertools.count()
    with ExitStack() as files:
        writers: dict[str, Any] = {}
        for name in sorted(kinds):
            for host, rows in _columns_by_host(name, kinds[name], numbers).items():
                if host not in writers:
                    path = folder / (stems[host] + PARQUET)
                    writers[host] = files.enter_context(pa.parquet.ParquetWriter(path, schema))
                writers[host].write_table(pa.table(rows, schema=schema))


def _columns_by_host(name: str, kind: Kind, numbers: itertools.count[int]) -> dict[str, dict[str, Any]]:
    """Return all values of a metric as the columns of a table, by host. Only one metric at a time is in memory."""
    records = ask(Query([name], {}, -math.inf, math.inf, interval=0.0, aggregate="last"))
    tables: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for _, tags, times, values in records:
        columns, count = tables[tags["host"]], len(times)
        columns["time"] += times
        columns["metric"] += [name] * count
        columns["kind"] += [kind.value] * count
        columns["tags"] += [sorted(tags.items())] * count
        columns["value"] += values
        columns["series"] += [next(numbers)] * count
    return tables


def _write_lifetimes(folder: Path, stems: dict[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    schema = lifetime_schema()
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in ask(Lifetimes()):
        rows[one.host].append(msgspec.structs.asdict(one))
    for host, found in rows.items():
        pa.parquet.write_table(pa.Table.from_pylist(found, schema=schema), folder / (stems[host] + PARQUET))
