"""`torchloader submit`: more jobs for a workload that runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from torchloader.cli.masters import add_run, say
from torchloader.inputs.mistakes import InputError
from torchloader.inputs.reading import read

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """The command; its exit code is 1 where a job was not taken."""
    parser = argparse.ArgumentParser(
        prog="torchloader submit",
        description="Submit the jobs of a file at once to the workload that runs; arrival times are not looked at.",
        epilog="A workload ends with its last job, unless it was started with --hold.",
    )
    parser.add_argument("jobs", metavar="FILE", help="a workload's CSV, or jobs in TOML or YAML")
    add_run(parser)
    arguments = parser.parse_args(list(words))
    try:
        workload = read(arguments.jobs)
    except (InputError, OSError) as error:
        print(f"torchloader: {error}", file=sys.stderr)
        return 2
    for mistake in workload.errors:
        print(f"torchloader: {mistake}; this job is left out", file=sys.stderr)
    codes = [say(arguments.run, "submit", job.name, msgspec.json.encode(job)) for job in workload.jobs]
    return max([*codes, 1 if workload.errors else 0])
