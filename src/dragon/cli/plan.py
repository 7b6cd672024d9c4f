"""`dragon plan`: prints which process ran where, as a table or as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dragon.commands import table
from dragon.infrastructure import variables
from dragon.infrastructure.plain_number import listed
from dragon.runtime.placement import PlanRecord, read_plan

_HELP = """\
usage: dragon plan [--json] [option of dragon ...] PROG [ARG ...]

Run a program as `dragon` does, and print at its end where each of its processes ran: host, CPUs, GPUs, and the policy
that decided. The output of the program is written to stderr.

  dragon plan --nodes 4 --cpus 32 --gpus 4 train.py     rehearse on four simulated nodes of that shape
  dragon plan --json train.py > plan.json               the same as a list of objects, in the order of placement
"""

_HEADER = ("host", "process", "target", "CPUs", "GPUs", "chosen by")


def main(words: Sequence[str], run: Callable[[Sequence[str]], int]) -> int:
    """Run the remaining command line with `run`, and print the plan. Returns the program's exit code."""
    if words[:1] in ([], ["-h"], ["--help"]):
        print(_HELP, end="")
        return 0 if words else 2
    as_json = "--json" in words[:1]
    # In the current folder, which other nodes share.
    with tempfile.TemporaryDirectory(prefix=".dragon-plan-", dir=os.getcwd()) as folder:
        path = os.environ[variables.PLAN] = str(Path(folder) / "plan")
        stdout = os.dup(1)
        os.dup2(2, 1)
        try:
            code = run(words[1:] if as_json else words)
        finally:
            sys.stdout.flush()
            os.dup2(stdout, 1)
            os.close(stdout)
        print_plan(read_plan(path), as_json)
    return code


def print_plan(records: Sequence[PlanRecord], as_json: bool) -> None:
    """Print placements on stdout, ordered by node; the JSON is a list of objects, in the order of placement."""
    if as_json:
        print(json.dumps([record._asdict() for record in records], indent=2))
        return
    print(table([list(_HEADER), *(_row(record) for record in sorted(records, key=lambda record: record.node))]))


def _row(record: PlanRecord) -> list[str]:
    name = f"{record.group}[{record.rank}]" if record.rank is not None and record.group else record.name
    gpus = ", ".join(f"{variable}={devices}" for variable, devices in record.gpus.items())
    return [record.host_name, name, record.target, listed(record.cpus) or "all", gpus or "-", record.policy]
