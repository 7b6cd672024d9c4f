"""`dragon plan`: which process ran where, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragon.runtime.lacking import listed
from dragon.runtime.plan import PlanRecord

__all__ = ["print_plan"]

_HEADER = ("host", "process", "target", "CPUs", "GPUs", "chosen by")


def print_plan(records: Sequence[PlanRecord], as_json: bool) -> None:
    """Print placements on stdout, ordered by node; the JSON is a list of objects, in the order of placement."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(list(records))).decode())
        return
    rows = [_HEADER, *(_row(record) for record in sorted(records, key=lambda record: record.node))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(record: PlanRecord) -> tuple[str, ...]:
    name = f"{record.group}[{record.rank}]" if record.rank is not None and record.group else record.name
    gpus = ", ".join(f"{variable}={devices}" for variable, devices in record.gpus.items())
    return record.host_name, name, record.target, listed(record.cpus) or "all", gpus or "-", record.policy
